#include "multihead/models/packed_seq2seq.h"

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/kernels/attention/token_attention.h"
#include "multihead/kernels/reduce/norm.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

Tensor in_f32(const Tensor& x) { return x.defined() ? x.detach().to(Dtype::f32).contiguous() : Tensor(); }

// Sinusoids kept in a table: max_positions is only a number in a file. Later ones are computed as they come.
constexpr int64_t kKeptPositions = 1024;

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
    const int64_t e = c.embed_dim;
    buffer = Tensor::empty({row_count * (7 * e + c.ffn_dim)});
    x = buffer.data<float>();
    y = x + row_count * e;
    normed = y + row_count * e;
    query = normed + row_count * e;
    attended = query + row_count * 3 * e;
    hidden = attended + row_count * e;
  }
  int64_t count;
  Tensor buffer;
  float *x, *y, *normed;
  float* query;  // rows query_stride apart: with keys and values behind them, or alone
  float *attended, *hidden;
  std::vector<float> scratch;
};

PackedSeq2Seq::PackedSeq2Seq(const Seq2Seq& model, WeightDtype weight_dtype)
    : config_(model.config()), weight_dtype_(weight_dtype) {
  const NoTape silent;
  interleaved_ =
      kernels::token_attention_interleaves(config_.num_heads, config_.embed_dim / config_.num_heads);
  source_table_ = in_f32(model.source_embedding.weight);
  target_table_ = config_.share_embeddings ? source_table_ : in_f32(model.target_embedding.weight);
  if (config_.positions == Positions::learned) {
    source_positions_ = in_f32(model.source_positions.weight);
    target_positions_ = in_f32(model.target_positions.weight);
  } else {
    source_positions_ = target_positions_ = nn::sinusoidal_positions(
        std::min(config_.max_positions, kKeptPositions), config_.embed_dim, 0, config_.sinusoid_layout);
  }
  const auto norm_of = [](const nn::Norm& norm) { return Norm{in_f32(norm.weight), in_f32(norm.bias)}; };
  for (const auto& layer : model.transformer.encoder.layers) encoder_.push_back(layer_of(layer, false));
  std::vector<Tensor> weights, biases;
  const int64_t e = config_.embed_dim;
  for (const auto& layer : model.transformer.decoder.layers) {
    decoder_.push_back(layer_of(layer, true));
    const nn::MultiHeadAttention& cross = layer.multihead_attn;
    weights.push_back(interleave(slice(cross.in_proj_weight, 0, e, 3 * e)));
    if (cross.in_proj_bias.defined()) biases.push_back(interleave(slice(cross.in_proj_bias, 0, e, 3 * e)));
  }
  const auto stacked = static_cast<int64_t>(2 * decoder_.size()) * e;
  memory_ = {concat(weights, 0), biases.empty() ? Tensor() : concat(biases, 0), 0, stacked, weight_dtype};
  output_ = {model.output_weight, model.output_bias, 0, config_.target_vocab_size, weight_dtype};
  if (!config_.final_norm) return;
  encoder_norm_ = norm_of(model.transformer.encoder.norm);
  decoder_norm_ = norm_of(model.transformer.decoder.norm);
}

// The order of rows in which all products of the decoder leave queries, keys or values: the heads of an
// element side by side.
Tensor PackedSeq2Seq::interleave(const Tensor& rows) const {
  if (!interleaved_) return rows;
  const int64_t blocks = rows.size(0) / config_.embed_dim, rest = rows.numel() / rows.size(0);
  const Tensor heads =
      reshape(rows, {blocks, config_.num_heads, config_.embed_dim / config_.num_heads, rest});
  return reshape(contiguous(transpose(heads, 1, 2)), rows.shape());
}

// What reads them.
Tensor PackedSeq2Seq::interleave_columns(const Tensor& weight) const {
  return interleaved_ ? transpose(interleave(contiguous(transpose(weight, 0, 1))), 0, 1) : weight;
}

PackedSeq2Seq::Layer PackedSeq2Seq::layer_of(const nn::TransformerLayer& from, bool decodes) const {
  const int64_t e = config_.embed_dim;
  const auto in_of = [&](const nn::MultiHeadAttention& attention, int64_t end) {
    const auto rows = [&](const Tensor& x) { return decodes && x.defined() ? interleave(x) : x; };
    return PackedLinear(rows(attention.in_proj_weight), rows(attention.in_proj_bias), 0, end, weight_dtype_);
  };
  const auto out_of = [&](const nn::MultiHeadAttention& attention) {
    const Tensor& weight = attention.out_proj.weight;
    return PackedLinear(decodes ? interleave_columns(weight) : weight, attention.out_proj.bias, 0, e,
                        weight_dtype_);
  };
  const auto all_of = [&](const nn::Linear& linear) {
    return PackedLinear(linear.weight, linear.bias, 0, linear.out_features(), weight_dtype_);
  };
  Layer to;
  to.self_all = in_of(from.self_attn, 3 * e);
  to.self_out = out_of(from.self_attn);
  if (decodes) {
    to.cross_query = in_of(from.multihead_attn, e);
    to.cross_out = out_of(from.multihead_attn);
  }
  to.fc1 = all_of(from.feed_forward.fc1);
  to.fc2 = all_of(from.feed_forward.fc2);
  const nn::Norm* norms[] = {&from.norm1, &from.norm2, &from.norm3};
  for (int i = 0; i < (decodes ? 3 : 2); ++i) {
    to.norms[i] = {in_f32(norms[i]->weight), in_f32(norms[i]->bias)};
  }
  return to;
}

size_t PackedSeq2Seq::bytes() const {
  size_t total = source_table_.bytes() + source_positions_.bytes() + memory_.bytes() + output_.bytes();
  if (!config_.share_embeddings) total += target_table_.bytes();
  if (config_.positions == Positions::learned) total += target_positions_.bytes();
  for (const auto* layers : {&encoder_, &decoder_}) {
    for (const Layer& l : *layers) {
      for (const PackedLinear* p : {&l.self_all, &l.self_out, &l.cross_query, &l.cross_out, &l.fc1, &l.fc2}) {
        total += p->out_features() > 0 ? p->bytes() : 0;
      }
    }
  }
  return total;
}

// [count, embed_dim]: the encodings of positions from `begin` on.
Tensor PackedSeq2Seq::positions(const Tensor& table, int64_t begin, int64_t count) const {
  if (begin + count <= table.size(0)) return slice(table, 0, begin, begin + count);
  return nn::sinusoidal_positions(count, config_.embed_dim, begin, config_.sinusoid_layout);
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
  layer.fc1(x, r.hidden, {.rows = r.count, .activation = config_.activation});
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
  AttentionOptions options;
  options.mask = lengths(Tensor::of<int64_t>({batch}, valid));
  const Tensor all = Tensor::empty({batch, length, 3 * e});
  for (const Layer& layer : encoder_) {
    sublayer(layer.norms[0], r, [&](const float* x) {
      layer.self_all(x, all.data<float>(), {.rows = r.count});
      const Tensor out = attention_packed(all, {.num_heads = config_.num_heads}, options).contiguous();
      layer.self_out(out.data<float>(), r.y, {.rows = r.count, .residual = r.x});
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

// The keys and values of layer l stand 2·l·embed_dim behind a token.
void PackedSeq2Seq::attend_tokens(size_t layer, Rows& r, int64_t query_stride, int64_t row, int64_t rows,
                                  const std::vector<PackedState::Token>& tokens) const {
  const int64_t e = config_.embed_dim, at = 2 * static_cast<int64_t>(layer) * e,
                head_dim = e / config_.num_heads;
  kernels::token_attention({.query = r.query + row * query_stride,
                            .query_stride = query_stride,
                            .rows = rows,
                            .tokens = tokens.data(),
                            .count = static_cast<int64_t>(tokens.size()),
                            .key_offset = at,
                            .value_offset = at + e,
                            .heads = config_.num_heads,
                            .head_dim = head_dim,
                            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                            .out = r.attended + row * e,
                            .out_stride = e,
                            .scratch = r.scratch.data(),
                            .interleaved = interleaved_});
}

void PackedSeq2Seq::attend_self(size_t layer, PackedState& state, const float* x, Rows& r) const {
  const Layer& l = decoder_[layer];
  const int64_t e = config_.embed_dim;
  float* pair = state.steps_.back().data<float>() + 2 * static_cast<int64_t>(layer) * e;
  l.self_all(x, r.query, {.rows = r.count});
  for (int64_t row = 0; row < r.count; ++row) {
    std::copy_n(r.query + (3 * row + 1) * e, 2 * e, pair + row * memory_.out_features());
    attend_tokens(layer, r, 3 * e, row, 1, state.history_[static_cast<size_t>(row)]);
  }
  l.self_out(r.attended, r.y, {.rows = r.count, .residual = r.x});
}

// Rows of one source share one pass over its tokens.
void PackedSeq2Seq::attend_source(size_t layer, const PackedState& state, const float* x, Rows& r) const {
  const Layer& l = decoder_[layer];
  l.cross_query(x, r.query, {.rows = r.count});
  for (int64_t row = 0, end; row < r.count; row = end) {
    const int64_t source = state.source_[static_cast<size_t>(row)];
    for (end = row + 1; end < r.count && state.source_[static_cast<size_t>(end)] == source;) ++end;
    attend_tokens(layer, r, config_.embed_dim, row, end - row,
                  state.source_tokens_[static_cast<size_t>(source)]);
  }
  l.cross_out(r.attended, r.y, {.rows = r.count, .residual = r.x});
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
  const Tensor& added = state.steps_.emplace_back(Tensor::empty({rows, memory_.out_features()}));
  for (int64_t row = 0; row < rows; ++row) {
    state.history_[static_cast<size_t>(row)].push_back(added.data<float>() + row * memory_.out_features());
  }
  ++state.length_;
  const int64_t longest = std::max(state.length_, state.memory_.size(1));
  r.scratch.resize(static_cast<size_t>(kernels::token_attention_scratch(longest, interleaved_)));
  for (size_t i = 0; i < decoder_.size(); ++i) {
    sublayer(decoder_[i].norms[0], r, [&](const float* x) { attend_self(i, state, x, r); });
    sublayer(decoder_[i].norms[1], r, [&](const float* x) { attend_source(i, state, x, r); });
    sublayer(decoder_[i].norms[2], r, [&](const float* x) { feed_forward(decoder_[i], x, r); });
  }
  if (config_.final_norm) normalize(decoder_norm_, r.x, r.x, rows);
  const Tensor logits = Tensor::empty({rows, config_.target_vocab_size});
  output_(r.x, logits.data<float>(), {.rows = rows});
  return logits;
}

}  // namespace multihead::models
