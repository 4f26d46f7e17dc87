#include "multihead/nn/encoder_decoder.h"

#include <optional>

#include "multihead/core/error.h"
#include "multihead/nn/points-inl.h"

namespace multihead::nn {
namespace {

void build(const StackOptions& options, bool cross_attention, Rng& rng, std::vector<TransformerLayer>& layers,
           Norm& norm) {
  MH_CHECK(options.num_layers >= 1, ValueError, "Transformer: num_layers must be positive, got ",
           options.num_layers);
  MH_CHECK(cross_attention || !options.layer.cross_attention, ValueError,
           "TransformerEncoder: cross_attention is a decoder's");
  TransformerLayerOptions layer = options.layer;
  layer.cross_attention = cross_attention;
  for (int64_t i = 0; i < options.num_layers; ++i) layers.emplace_back(layer, rng);
  if (options.final_norm) norm = Norm(layer.attention.embed_dim, layer.norm);
}

LayerCall layer_call(const StackCall& call) {
  LayerCall layer;
  layer.attention.mask = call.mask;
  layer.attention.rotary = call.rotary;
  layer.attention.alibi_slopes = call.alibi_slopes;
  layer.attention.relative_bias = call.relative_bias;
  layer.attention.empty_row = call.empty_row;
  layer.cross.mask = call.memory_mask;
  layer.cross.empty_row = call.empty_row;
  layer.rng = call.rng;
  return layer;
}

void check_captures(const char* who, const std::vector<AttentionCapture>* captures, size_t layers) {
  MH_CHECK(captures == nullptr || captures->size() == layers, ShapeError, who,
           ": expected a capture for each of ", layers, " layers, got ",
           captures == nullptr ? 0 : captures->size());
}

AttentionCapture* capture_of(std::vector<AttentionCapture>* captures, size_t layer) {
  return captures != nullptr ? &(*captures)[layer] : nullptr;
}

Tensor to_tensor(const std::vector<int64_t>& values) {
  return Tensor::of<int64_t>({static_cast<int64_t>(values.size())}, values);
}

}  // namespace

TransformerEncoder::TransformerEncoder(const StackOptions& options, Rng& rng)
    : final_norm_(options.final_norm) {
  build(options, false, rng, layers, norm);
}

Tensor TransformerEncoder::operator()(const Tensor& x, const StackCall& call) const {
  MH_CHECK(call.state == nullptr && call.counts.empty() && call.memory_mask.is_empty() &&
               call.cross_capture == nullptr,
           ValueError, "TransformerEncoder: state, counts, memory_mask and cross_capture are a decoder's");
  check_captures("TransformerEncoder", call.capture, layers.size());
  LayerCall layer = layer_call(call);
  Tensor y = x;
  for (size_t i = 0; i < layers.size(); ++i) {
    layer.attention.capture = capture_of(call.capture, i);
    const detail::PointPath in("layers", i);
    y = layers[i](y, layer);
  }
  return final_norm_ ? norm(y, "final_norm") : y;
}

void TransformerEncoder::visit(Visitor& visitor) {
  visitor("layers", layers);
  if (final_norm_) visitor("norm", norm);
}

TransformerDecoder::TransformerDecoder(const StackOptions& options, Rng& rng)
    : final_norm_(options.final_norm) {
  build(options, true, rng, layers, norm);
}

Tensor TransformerDecoder::operator()(const Tensor& x, const Tensor& memory, const StackCall& call) const {
  check_captures("TransformerDecoder", call.capture, layers.size());
  check_captures("TransformerDecoder", call.cross_capture, layers.size());
  MH_CHECK(call.state == nullptr || !memory.defined(), ValueError,
           "TransformerDecoder: a state has its memory from start(); give one or the other");
  MH_CHECK(call.state != nullptr || call.counts.empty(), ValueError,
           "TransformerDecoder: counts are of tokens that a state gets");
  LayerCall layer = layer_call(call);
  DecodeState* state = call.state;
  std::optional<Busy> busy;
  if (state != nullptr) busy.emplace(state->in_use, "TransformerDecoder");
  std::vector<int64_t> counts = call.counts;
  if (state == nullptr) {
    MH_CHECK(memory.defined(), ValueError, "TransformerDecoder: it needs a memory or a state");
    MH_CHECK(memory.size(0) == x.size(0), ShapeError, "TransformerDecoder: the memory has ", memory.size(0),
             " rows, the target ", x.size(0));
    layer.attention.mask &= causal();
    layer.memory = memory;
  } else {
    MH_CHECK(state->layers.size() == layers.size() && state->cross.size() == layers.size() &&
                 state->batch() == x.size(0),
             ShapeError, "TransformerDecoder: the state has ", state->layers.size(), " layers and ",
             state->batch(), " rows, expected ", layers.size(), " and ", x.size(0));
    if (counts.empty()) counts.assign(static_cast<size_t>(x.size(0)), x.size(1));
    layer.cross.mask &= lengths(to_tensor(state->cross_lengths));
  }
  Tensor y = x;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (state != nullptr) {
      layer.update = {&state->layers[i], state->lengths, counts};
      layer.projected = &state->cross[i];
    }
    layer.attention.capture = capture_of(call.capture, i);
    layer.cross.capture = capture_of(call.cross_capture, i);
    const detail::PointPath in("layers", i);
    y = layers[i](y, layer);
  }
  if (state != nullptr) {
    for (size_t b = 0; b < counts.size(); ++b) state->lengths[b] += counts[b];
  }
  return final_norm_ ? norm(y, "final_norm") : y;
}

DecodeState TransformerDecoder::start(const Tensor& memory, const std::vector<int64_t>& memory_lengths,
                                      int64_t capacity, std::optional<Dtype> dtype) const {
  MH_CHECK(!layers.empty(), ValueError, "TransformerDecoder: it has no layers to start");
  const int64_t batch = memory.size(0), length = memory.size(1);
  MH_CHECK(memory_lengths.empty() || static_cast<int64_t>(memory_lengths.size()) == batch, ShapeError,
           "TransformerDecoder: memory_lengths must have ", batch, " entries, got ", memory_lengths.size());
  MH_CHECK(dtype != kInt8Cache, DtypeError,
           "TransformerDecoder: a state of int8 is for models without a source");
  const MultiHeadAttentionOptions& attention = layers.front().self_attn.options();
  std::vector<int64_t> kv_heads;
  for (const TransformerLayer& layer : layers) kv_heads.push_back(layer.self_attn.options().num_kv_heads);
  DecodeState state = make_decode_state({.kv_heads = std::move(kv_heads),
                                         .batch = batch,
                                         .head_dim = attention.head_dim,
                                         .value_head_dim = attention.value_head_dim,
                                         .capacity = capacity,
                                         .dtype = dtype.value_or(memory.dtype())});
  for (const TransformerLayer& layer : layers) {
    KvCache cross = layer.multihead_attn.project_memory(memory, memory);
    if (dtype) cross = {cross.key.to(*dtype), cross.value.to(*dtype)};
    state.cross.push_back(std::move(cross));
  }
  state.cross_lengths = memory_lengths;
  if (memory_lengths.empty()) state.cross_lengths.assign(static_cast<size_t>(batch), length);
  for (const int64_t valid : state.cross_lengths) {
    MH_CHECK(valid >= 0 && valid <= length, ValueError, "TransformerDecoder: a memory length of ", valid,
             " exceeds the memory's ", length, " tokens");
  }
  return state;
}

void TransformerDecoder::visit(Visitor& visitor) {
  visitor("layers", layers);
  if (final_norm_) visitor("norm", norm);
}

}  // namespace multihead::nn
