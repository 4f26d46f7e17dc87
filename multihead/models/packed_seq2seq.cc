#include "multihead/models/packed_seq2seq.h"

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/kernels/attention/decode/token_attention.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

// Sinusoids kept in a table: max_positions is only a number in a file. Later ones are computed as they come.
constexpr int64_t kKeptPositions = 1024;

// `blocks` of rows, each with its `heads` side by side element by element.
Tensor interleave(const Tensor& rows, int64_t blocks, int64_t heads) {
  const int64_t rest = rows.numel() / rows.size(0);
  const Tensor split = reshape(contiguous(rows), {blocks, heads, rows.size(0) / (blocks * heads), rest});
  return reshape(contiguous(transpose(split, 1, 2)), rows.shape());
}

int64_t inner_size(const nn::MultiHeadAttention& a) { return a.options().num_heads * a.options().head_dim; }

// In this order products of the decoder leave queries, keys and values, and take what was attended to.
void interleave_heads(nn::MultiHeadAttention& a) {
  const int64_t heads = a.options().num_heads;
  if (!kernels::token_attention_interleaves(heads, a.options().head_dim)) return;
  for (Tensor* x : {&a.in_proj_weight, &a.in_proj_bias}) {
    if (x->defined()) *x = interleave(*x, 3, heads);
  }
  a.out_proj.weight = transpose(interleave(transpose(a.out_proj.weight, 0, 1), 1, heads), 0, 1);
}

}  // namespace

void PackedState::select(std::span<const int64_t> parents) {
  const Busy busy(in_use_, "select");
  for (const int64_t parent : parents) {
    MH_CHECK(parent >= 0 && parent < rows(), ValueError, "select: row ", parent, " of ", rows());
  }
  const auto of_parents = [&](const auto& rows) {
    std::remove_cvref_t<decltype(rows)> chosen;
    for (const int64_t parent : parents) chosen.push_back(rows[static_cast<size_t>(parent)]);
    return chosen;
  };
  history_ = of_parents(history_);
  source_ = of_parents(source_);
}

size_t PackedState::bytes() const {
  size_t total = memory_.bytes();
  for (const Tensor& step : steps_) total += step.bytes();
  return total;
}

PackedSeq2Seq::PackedSeq2Seq(const Seq2Seq& model, WeightDtype weight_dtype)
    : model_(model), weight_dtype_(weight_dtype) {
  const NoTape silent;
  const Seq2SeqConfig& c = config();
  output_ = PackedLinear(model.output_weight, weight_dtype);
  model_.output_weight = Tensor();
  take_heads();
  const auto pack = [&](const std::string&, const Tensor& weight) {
    return weight.defined() ? PackedLinear(weight, weight_dtype) : PackedLinear();
  };
  nn::pack_matrices(model_.transformer, pack);
  nn::replace_parameters(model_, [](const Tensor& x) { return x.detach().to(Dtype::f32).clone(); });
  if (c.positions == Positions::learned) {
    positions_ =
        slice(model_.target_positions.weight, 0, c.position_offset, c.max_positions + c.position_offset);
  } else if (c.positions == Positions::sinusoidal) {
    positions_ = nn::sinusoidal_positions(std::min(c.max_positions, kKeptPositions), c.embed_dim,
                                          c.position_offset, c.sinusoid_layout);
  }
  if (c.relative_buckets > 0) decoder_bias_ = contiguous(transpose(model_.decoder_bias(), 0, 1));
}

// From the decoder's attentions: the order of heads, and of cross-attention the keys' and values' weights.
void PackedSeq2Seq::take_heads() {
  std::vector<Tensor> weights, biases;
  for (nn::TransformerLayer& layer : model_.transformer.decoder.layers) {
    step_size_ += 2 * inner_size(layer.self_attn);
    interleave_heads(layer.self_attn);
    nn::MultiHeadAttention& cross = layer.multihead_attn;
    interleave_heads(cross);
    const int64_t size = inner_size(cross);
    const auto split = [&](Tensor& joint, Tensor& queries, std::vector<Tensor>& rest) {
      if (!joint.defined()) return;
      queries = slice(joint, 0, 0, size);
      rest.push_back(slice(joint, 0, size, 3 * size));
      joint = Tensor();
    };
    split(cross.in_proj_weight, cross.q_proj.weight, weights);
    split(cross.in_proj_bias, cross.q_proj.bias, biases);
  }
  memory_ = PackedLinear(concat(weights, 0), weight_dtype_);
  if (!biases.empty()) memory_bias_ = concat(biases, 0).detach().to(Dtype::f32);
}

size_t PackedSeq2Seq::bytes() const {
  size_t total = memory_.bytes() + output_.bytes();
  if (config().positions == Positions::sinusoidal) total += positions_.bytes();
  Seq2Seq model = model_;
  for (const Tensor& parameter : nn::parameters(model)) total += parameter.bytes();
  const auto add = [&](const std::string&, Tensor&, PackedLinear& packed) {
    if (packed.defined()) total += packed.bytes();
  };
  nn::Visitor visitor = nn::Visitor::of_matrices(add);
  model.visit(visitor);
  return total;
}

PackedState PackedSeq2Seq::start(std::span<const std::vector<int32_t>> sources) const {
  const NoTape silent;
  MH_CHECK(
      !nn::detail::looking(), ValueError,
      "PackedSeq2Seq: named points do not reach packed weights, which beam search uses; look at Seq2Seq");
  size_t longest = 1;
  for (const auto& source : sources) longest = std::max(longest, source.size());
  const int64_t length = static_cast<int64_t>(longest), count = std::ssize(sources);
  TokenBatch batch{Tensor::full({count, length}, static_cast<double>(config().pad_id), Dtype::i32), {}};
  for (int64_t b = 0; b < count; ++b) {
    const std::vector<int32_t>& source = sources[static_cast<size_t>(b)];
    std::copy(source.begin(), source.end(), batch.tokens.data<int32_t>() + b * length);
    batch.lengths.push_back(std::ssize(source));
  }
  PackedState state;
  state.memory_ = memory_(model_.encode(batch), memory_bias_);
  for (int64_t b = 0; b < count; ++b) {
    nn::TokenList& tokens = state.source_tokens_.emplace_back();
    for (int64_t t = 0; t < batch.lengths[static_cast<size_t>(b)]; ++t) {
      tokens.push_back(state.memory_.data<float>() + (b * length + t) * memory_.out_features());
    }
    state.source_.push_back(b);
  }
  state.history_.resize(sources.size());
  return state;
}

// [length, heads]: the biases of the last of `length` tokens for each; undefined where there are none.
Tensor PackedSeq2Seq::step_bias(int64_t length) const {
  if (!decoder_bias_.defined()) return {};
  const int64_t farthest = config().relative_distance, heads = config().num_heads;
  Tensor bias = Tensor::empty({length, heads});
  for (int64_t t = 0; t < length; ++t) {
    const int64_t row = farthest - std::min(farthest, length - 1 - t);
    std::copy_n(decoder_bias_.data<float>() + row * heads, heads, bias.data<float>() + t * heads);
  }
  return bias;
}

Tensor PackedSeq2Seq::embed(std::span<const int32_t> tokens, int64_t position) const {
  const Seq2SeqConfig& c = config();
  Tensor x = model_.target_embedding(Tensor::of<int32_t>({std::ssize(tokens), 1}, tokens));
  if (c.scale_embeddings) x = scale(x, std::sqrt(static_cast<double>(c.embed_dim)));
  if (positions_.defined()) {
    x = add(x,
            position < positions_.size(0)
                ? slice(positions_, 0, position, position + 1)
                : nn::sinusoidal_positions(1, c.embed_dim, position + c.position_offset, c.sinusoid_layout));
  }
  return c.embedding_norm ? model_.target_norm(x) : x;
}

Tensor PackedSeq2Seq::step(std::span<const int32_t> tokens, PackedState& state) const {
  const NoTape silent;
  const Busy busy(state.in_use_, "PackedSeq2Seq");
  const int64_t rows = state.rows();
  MH_CHECK(static_cast<int64_t>(tokens.size()) == rows, ShapeError, "PackedSeq2Seq: ", tokens.size(),
           " tokens for ", rows, " rows");
  MH_CHECK(state.memory_.defined() && state.memory_.size(2) == memory_.out_features(), ValueError,
           "PackedSeq2Seq: the state belongs to another model");
  MH_CHECK(state.length_ < config().max_positions, ValueError,
           "PackedSeq2Seq: the model has max_positions = ", config().max_positions);
  nn::TokenPass pass(embed(tokens, state.length_), {}, {});
  const Tensor& added = state.steps_.emplace_back(Tensor::empty({rows, step_size_}));
  for (int64_t row = 0; row < rows; ++row) {
    state.history_[static_cast<size_t>(row)].push_back(added.data<float>() + row * step_size_);
  }
  const Tensor bias = step_bias(++state.length_);
  nn::ListCall call{.own = state.history_,
                    .added = added.data<float>(),
                    .added_width = step_size_,
                    .source = state.source_tokens_,
                    .source_of = state.source_,
                    .bias = bias.defined() ? bias.data<float>() : nullptr};
  const nn::TransformerDecoder& decoder = model_.transformer.decoder;
  for (const nn::TransformerLayer& layer : decoder.layers) {
    pass.run(layer, call);
    call.own_at += 2 * inner_size(layer.self_attn), call.source_at += 2 * inner_size(layer.multihead_attn);
  }
  if (config().final_norm) pass.run(decoder.norm);
  Tensor features = reshape(pass.result(), {rows, config().embed_dim});
  if (config().scale_output) {
    features = scale(features, 1 / std::sqrt(static_cast<double>(config().embed_dim)));
  }
  return output_(features, model_.output_bias);
}

}  // namespace multihead::models
