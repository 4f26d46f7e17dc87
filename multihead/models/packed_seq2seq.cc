#include "multihead/models/packed_seq2seq.h"

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/kernels/attention/token_attention.h"
#include "multihead/kernels/elementwise/activation.h"
#include "multihead/kernels/reduce/norm.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

Tensor in_f32(const Tensor& x) { return x.defined() ? x.detach().to(Dtype::f32).contiguous() : Tensor(); }

// Sinusoids kept in a table: max_positions is only a number in a file. Later ones are computed as they come.
constexpr int64_t kKeptPositions = 1024;

// `blocks` of rows, each with its `heads` side by side element by element: in this order products of the
// decoder leave queries, keys and values. What reads them has its columns so.
Tensor interleave(const Tensor& rows, int64_t blocks, int64_t heads) {
  if (heads == 1) return rows;
  const int64_t rest = rows.numel() / rows.size(0);
  const Tensor split = reshape(contiguous(rows), {blocks, heads, rows.size(0) / (blocks * heads), rest});
  return reshape(contiguous(transpose(split, 1, 2)), rows.shape());
}

const float* data_or_null(const Tensor& x) { return x.defined() ? x.data<float>() : nullptr; }

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

// The stream x of a call and what its sub-layers need on the way.
struct PackedSeq2Seq::Rows {
  Rows(int64_t row_count, const Seq2SeqConfig& c) : count(row_count) {
    const int64_t e = c.embed_dim, inner = c.num_heads * head_dim(c), raw_dim = c.gated ? 2 * c.ffn_dim : 0;
    buffer = Tensor::empty({row_count * (3 * e + 4 * inner + c.ffn_dim + raw_dim)});
    x = buffer.data<float>();
    y = x + row_count * e;
    normed = y + row_count * e;
    query = normed + row_count * e;
    attended = query + row_count * 3 * inner;
    hidden = attended + row_count * inner;
    raw = hidden + row_count * c.ffn_dim;
  }
  int64_t count;
  Tensor buffer;
  float *x, *y, *normed;
  float* query;  // rows query_stride apart: with keys and values behind them, or alone
  float *attended, *hidden;
  float* raw;   // gated: gate and up
  Tensor bias;  // of the scores of self-attention, [tokens, heads]
  std::vector<float> scratch;
};

PackedSeq2Seq::PackedSeq2Seq(const Seq2Seq& model, WeightDtype weight_dtype)
    : config_(model.config()), weight_dtype_(weight_dtype) {
  const NoTape silent;
  source_table_ = in_f32(model.source_embedding.weight);
  target_table_ = config_.share_embeddings ? source_table_ : in_f32(model.target_embedding.weight);
  if (config_.positions == Positions::learned) {
    source_positions_ = learned_positions(model.source_positions);
    target_positions_ = learned_positions(model.target_positions);
  } else if (config_.positions == Positions::sinusoidal) {
    source_positions_ = target_positions_ =
        nn::sinusoidal_positions(std::min(config_.max_positions, kKeptPositions), config_.embed_dim,
                                 config_.position_offset, config_.sinusoid_layout);
  }
  const auto norm_of = [](const nn::Norm& norm) { return Norm{in_f32(norm.weight), in_f32(norm.bias)}; };
  for (const auto& layer : model.transformer.encoder.layers) encoder_.push_back(layer_of(layer, false));
  std::vector<Tensor> weights, biases;
  int64_t stacked = 0;
  for (const auto& layer : model.transformer.decoder.layers) {
    Layer& to = decoder_.emplace_back(layer_of(layer, true));
    to.self.at = step_size_, to.cross.at = stacked;
    step_size_ += 2 * to.self.size(), stacked += 2 * to.cross.size();
    interleaves_ |= to.self.interleaved || to.cross.interleaved;
    const nn::MultiHeadAttention& cross = layer.multihead_attn;
    const int64_t size = to.cross.size(), heads = to.cross.interleaved ? to.cross.heads : 1;
    weights.push_back(interleave(slice(cross.in_proj_weight, 0, size, 3 * size), 2, heads));
    if (cross.in_proj_bias.defined()) {
      biases.push_back(interleave(slice(cross.in_proj_bias, 0, size, 3 * size), 2, heads));
    }
  }
  memory_ = {concat(weights, 0), biases.empty() ? Tensor() : concat(biases, 0), 0, stacked, weight_dtype};
  output_ = {model.output_weight, model.output_bias, 0, config_.target_vocab_size, weight_dtype};
  if (model.encoder_bias.weight.defined()) {
    encoder_bias_ = in_f32(model.encoder_bias());
    decoder_bias_ = in_f32(transpose(model.decoder_bias(), 0, 1));
  }
  if (config_.embedding_norm) {
    source_norm_ = norm_of(model.source_norm);
    target_norm_ = norm_of(model.target_norm);
  }
  if (!config_.final_norm) return;
  encoder_norm_ = norm_of(model.transformer.encoder.norm);
  decoder_norm_ = norm_of(model.transformer.decoder.norm);
}

PackedSeq2Seq::Attention PackedSeq2Seq::attention_of(const nn::MultiHeadAttention& from, bool decodes,
                                                     bool keys) const {
  Attention to{.heads = from.options().num_heads, .head_dim = from.options().head_dim};
  to.scale = config_.scale_scores ? 1 / std::sqrt(static_cast<float>(to.head_dim)) : 1;
  to.interleaved = decodes && kernels::token_attention_interleaves(to.heads, to.head_dim);
  const int64_t heads = to.interleaved ? to.heads : 1, blocks = keys ? 3 : 1, end = blocks * to.size();
  const auto rows = [&](const Tensor& x) {
    return x.defined() ? interleave(slice(x, 0, 0, end), blocks, heads) : x;
  };
  to.in = {rows(from.in_proj_weight), rows(from.in_proj_bias), 0, end, weight_dtype_};
  const Tensor columns = interleave(contiguous(transpose(from.out_proj.weight, 0, 1)), 1, heads);
  to.out = {transpose(columns, 0, 1), from.out_proj.bias, 0, config_.embed_dim, weight_dtype_};
  return to;
}

PackedSeq2Seq::Layer PackedSeq2Seq::layer_of(const nn::TransformerLayer& from, bool decodes) const {
  const auto all_of = [&](const nn::Linear& linear) {
    return PackedLinear(linear.weight, linear.bias, 0, linear.out_features(), weight_dtype_);
  };
  Layer to;
  to.self = attention_of(from.self_attn, decodes, true);
  if (decodes) to.cross = attention_of(from.multihead_attn, true, false);
  to.fc1 = all_of(from.feed_forward.fc1);
  to.fc2 = all_of(from.feed_forward.fc2);
  const nn::Norm* norms[] = {&from.norm1, &from.norm2, &from.norm3};
  for (int i = 0; i < (decodes ? 3 : 2); ++i) {
    to.norms[i] = {in_f32(norms[i]->weight), in_f32(norms[i]->bias)};
  }
  return to;
}

size_t PackedSeq2Seq::bytes() const {
  size_t total = source_table_.bytes() + memory_.bytes() + output_.bytes();
  if (source_positions_.defined()) total += source_positions_.bytes();
  if (!config_.share_embeddings) total += target_table_.bytes();
  if (config_.positions == Positions::learned) total += target_positions_.bytes();
  for (const auto* layers : {&encoder_, &decoder_}) {
    for (const Layer& l : *layers) {
      for (const PackedLinear* p : {&l.self.in, &l.self.out, &l.cross.in, &l.cross.out, &l.fc1, &l.fc2}) {
        total += p->out_features() > 0 ? p->bytes() : 0;
      }
    }
  }
  return total;
}

Tensor PackedSeq2Seq::learned_positions(const nn::Embedding& table) const {
  return in_f32(slice(table.weight, 0, config_.position_offset, table.weight.size(0)));
}

// [count, embed_dim]: the encodings of positions from `begin` on.
Tensor PackedSeq2Seq::positions(const Tensor& table, int64_t begin, int64_t count) const {
  if (!table.defined()) return Tensor::zeros({count, config_.embed_dim});
  if (begin + count <= table.size(0)) return slice(table, 0, begin, begin + count);
  return nn::sinusoidal_positions(count, config_.embed_dim, begin + config_.position_offset,
                                  config_.sinusoid_layout);
}

void PackedSeq2Seq::embed(const Tensor& table, int32_t token, const float* position, float* to) const {
  const int64_t e = config_.embed_dim;
  MH_CHECK(token >= 0 && token < table.size(0), ValueError, "PackedSeq2Seq: token ", token,
           " is outside the vocabulary of ", table.size(0));
  const float factor = config_.scale_embeddings ? static_cast<float>(std::sqrt(static_cast<double>(e))) : 1;
  const float* row = table.data<float>() + token * e;
  for (int64_t i = 0; i < e; ++i) to[i] = row[i] * factor + position[i];
}

void PackedSeq2Seq::normalize(const Norm& norm, const float* x, float* y, int64_t rows) const {
  const bool layer = config_.norm == nn::NormKind::layer;
  std::vector<float> moments(static_cast<size_t>(2 * rows));
  kernels::norm({.rows = rows,
                 .size = config_.embed_dim,
                 .eps = config_.norm_eps,
                 .x = x,
                 .weight = norm.weight.data<float>(),
                 .bias = data_or_null(norm.bias),
                 .y = y,
                 .mean = layer ? moments.data() : nullptr,
                 .inv_std = moments.data() + rows});
}

// function(input, r) writes its result plus r.x to r.y.
template <class Function>
void PackedSeq2Seq::sublayer(const Norm& norm, Rows& r, Function function) const {
  if (!config_.norm_first) {
    function(r.x);
    return normalize(norm, r.y, r.x, r.count);
  }
  normalize(norm, r.x, r.normed, r.count);
  function(r.normed);
  std::swap(r.x, r.y);
}

void PackedSeq2Seq::feed_forward(const Layer& layer, const float* x, Rows& r) const {
  const int64_t size = config_.ffn_dim;
  if (config_.gated) {
    layer.fc1(x, r.raw, {.rows = r.count});
    kernels::gated(config_.activation, r.raw, r.raw + size, r.hidden, {r.count, size, 2 * size});
  } else {
    layer.fc1(x, r.hidden, {.rows = r.count, .activation = config_.activation});
  }
  layer.fc2(r.hidden, r.y, {.rows = r.count, .residual = r.x});
}

// [B · length, embed_dim]
Tensor PackedSeq2Seq::encode(std::span<const std::vector<int32_t>> sources, int64_t length) const {
  const auto batch = static_cast<int64_t>(sources.size());
  const int64_t e = config_.embed_dim;
  Rows r(batch * length, config_);
  const Tensor at = positions(source_positions_, 0, length);
  std::vector<int64_t> valid;
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<int32_t>& source = sources[static_cast<size_t>(b)];
    valid.push_back(static_cast<int64_t>(source.size()));
    for (int64_t t = 0; t < length; ++t) {
      const int32_t token =
          t < valid.back() ? source[static_cast<size_t>(t)] : static_cast<int32_t>(config_.pad_id);
      embed(source_table_, token, at.data<float>() + t * e, r.x + (b * length + t) * e);
    }
  }
  if (config_.embedding_norm) normalize(source_norm_, r.x, r.x, r.count);
  AttentionOptions options;
  options.relative_bias = encoder_bias_;
  if (!config_.scale_scores) options.scale = 1;
  options.mask = lengths(Tensor::of<int64_t>({batch}, valid));
  for (const Layer& layer : encoder_) {
    const Tensor all = Tensor::empty({batch, length, 3 * layer.self.size()});
    sublayer(layer.norms[0], r, [&](const float* x) {
      layer.self.in(x, all.data<float>(), {.rows = r.count});
      const Tensor out = attention_packed(all, {.num_heads = layer.self.heads}, options).contiguous();
      layer.self.out(out.data<float>(), r.y, {.rows = r.count, .residual = r.x});
    });
    sublayer(layer.norms[1], r, [&](const float* x) { feed_forward(layer, x, r); });
  }
  const Tensor result = Tensor::empty({r.count, e});
  if (config_.final_norm) {
    normalize(encoder_norm_, r.x, result.data<float>(), r.count);
  } else {
    std::copy_n(r.x, result.numel(), result.data<float>());
  }
  return result;
}

PackedState PackedSeq2Seq::start(std::span<const std::vector<int32_t>> sources) const {
  const NoTape silent;
  MH_CHECK(
      !nn::detail::looking(), ValueError,
      "PackedSeq2Seq: named points do not reach packed weights, which beam search uses; look at Seq2Seq");
  size_t longest = 1;
  for (const auto& source : sources) longest = std::max(longest, source.size());
  const auto length = static_cast<int64_t>(longest), batch = static_cast<int64_t>(sources.size());
  MH_CHECK(length <= config_.max_positions, ValueError, "PackedSeq2Seq: source of ", length,
           " tokens, the model has max_positions = ", config_.max_positions);
  const Tensor encoded = encode(sources, length);
  PackedState state;
  state.memory_ = Tensor::empty({batch, length, memory_.out_features()});
  memory_(encoded.data<float>(), state.memory_.data<float>(), {.rows = batch * length});
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<const float*>& tokens = state.source_tokens_.emplace_back();
    const auto valid = static_cast<int64_t>(sources[static_cast<size_t>(b)].size());
    for (int64_t t = 0; t < valid; ++t) {
      tokens.push_back(state.memory_.data<float>() + (b * length + t) * memory_.out_features());
    }
    state.source_.push_back(b);
  }
  state.history_.resize(sources.size());
  return state;
}

void PackedSeq2Seq::attend_tokens(const Attention& attention, Rows& r, int64_t query_stride, int64_t row,
                                  int64_t rows, const std::vector<PackedState::Token>& tokens,
                                  const Tensor& bias) const {
  const int64_t size = attention.size();
  kernels::token_attention({.query = r.query + row * query_stride,
                            .query_stride = query_stride,
                            .rows = rows,
                            .tokens = tokens.data(),
                            .count = static_cast<int64_t>(tokens.size()),
                            .key_offset = attention.at,
                            .value_offset = attention.at + size,
                            .heads = attention.heads,
                            .head_dim = attention.head_dim,
                            .scale = attention.scale,
                            .bias = data_or_null(bias),
                            .out = r.attended + row * size,
                            .out_stride = size,
                            .scratch = r.scratch.data(),
                            .interleaved = attention.interleaved});
}

void PackedSeq2Seq::attend_self(const Attention& self, PackedState& state, const float* x, Rows& r) const {
  const int64_t size = self.size();
  float* pair = state.steps_.back().data<float>() + self.at;
  self.in(x, r.query, {.rows = r.count});
  for (int64_t row = 0; row < r.count; ++row) {
    std::copy_n(r.query + (3 * row + 1) * size, 2 * size, pair + row * step_size_);
    attend_tokens(self, r, 3 * size, row, 1, state.history_[static_cast<size_t>(row)], r.bias);
  }
  self.out(r.attended, r.y, {.rows = r.count, .residual = r.x});
}

// Rows of one source share one pass over its tokens.
void PackedSeq2Seq::attend_source(const Attention& cross, const PackedState& state, const float* x,
                                  Rows& r) const {
  cross.in(x, r.query, {.rows = r.count});
  for (int64_t row = 0, end; row < r.count; row = end) {
    const int64_t source = state.source_[static_cast<size_t>(row)];
    for (end = row + 1; end < r.count && state.source_[static_cast<size_t>(end)] == source;) ++end;
    attend_tokens(cross, r, cross.size(), row, end - row, state.source_tokens_[static_cast<size_t>(source)],
                  {});
  }
  cross.out(r.attended, r.y, {.rows = r.count, .residual = r.x});
}

// [length, heads]: the biases that the last of so many tokens has for each; undefined where there are none.
Tensor PackedSeq2Seq::step_bias(int64_t length) const {
  if (!decoder_bias_.defined()) return {};
  const int64_t farthest = config_.relative_distance, heads = config_.num_heads;
  Tensor bias = Tensor::empty({length, heads});
  for (int64_t t = 0; t < length; ++t) {
    const int64_t row = farthest - std::min(farthest, length - 1 - t);
    std::copy_n(decoder_bias_.data<float>() + row * heads, heads, bias.data<float>() + t * heads);
  }
  return bias;
}

Tensor PackedSeq2Seq::step(std::span<const int32_t> tokens, PackedState& state) const {
  const NoTape silent;
  const Busy busy(state.in_use_, "PackedSeq2Seq");
  const int64_t rows = state.rows(), e = config_.embed_dim;
  MH_CHECK(static_cast<int64_t>(tokens.size()) == rows, ShapeError, "PackedSeq2Seq: ", tokens.size(),
           " tokens for ", rows, " rows");
  MH_CHECK(state.memory_.defined() && state.memory_.size(2) == memory_.out_features(), ValueError,
           "PackedSeq2Seq: the state belongs to another model");
  MH_CHECK(state.length_ < config_.max_positions, ValueError,
           "PackedSeq2Seq: the model has max_positions = ", config_.max_positions);
  Rows r(rows, config_);
  const Tensor at = positions(target_positions_, state.length_, 1);
  for (int64_t row = 0; row < rows; ++row) {
    embed(target_table_, tokens[static_cast<size_t>(row)], at.data<float>(), r.x + row * e);
  }
  if (config_.embedding_norm) normalize(target_norm_, r.x, r.x, rows);
  const Tensor& added = state.steps_.emplace_back(Tensor::empty({rows, step_size_}));
  for (int64_t row = 0; row < rows; ++row) {
    state.history_[static_cast<size_t>(row)].push_back(added.data<float>() + row * step_size_);
  }
  ++state.length_;
  r.bias = step_bias(state.length_);
  const int64_t longest = std::max(state.length_, state.memory_.size(1));
  r.scratch.resize(static_cast<size_t>(std::max(kernels::token_attention_scratch(longest, false),
                                                kernels::token_attention_scratch(longest, interleaves_))));
  for (size_t i = 0; i < decoder_.size(); ++i) {
    sublayer(decoder_[i].norms[0], r, [&](const float* x) { attend_self(decoder_[i].self, state, x, r); });
    sublayer(decoder_[i].norms[1], r, [&](const float* x) { attend_source(decoder_[i].cross, state, x, r); });
    sublayer(decoder_[i].norms[2], r, [&](const float* x) { feed_forward(decoder_[i], x, r); });
  }
  if (config_.final_norm) normalize(decoder_norm_, r.x, r.x, rows);
  if (config_.scale_output) {
    const float factor = 1 / std::sqrt(static_cast<float>(e));
    for (int64_t i = 0; i < rows * e; ++i) r.x[i] *= factor;
  }
  const Tensor logits = Tensor::empty({rows, config_.target_vocab_size});
  output_(r.x, logits.data<float>(), {.rows = rows});
  return logits;
}

}  // namespace multihead::models
