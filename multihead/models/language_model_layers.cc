// The layers of a language model: through their modules, or for a few tokens with a state by kernel calls.
#include "multihead/core/error.h"
#include "multihead/models/language_model.h"
#include "multihead/nn/decode/token_pass.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/attention/ring/context_scope.h"

namespace multihead::models {

// The arguments that the calls of all layers share.
struct LanguageModel::LayerCalls {
  nn::DecodeState* state = nullptr;
  std::vector<AttentionCapture>* capture = nullptr;
  nn::LayerCall call;
  Mask everywhere, nearby;
  RotaryTable global, local;
};

LanguageModel::LayerCalls LanguageModel::layer_calls(const LanguageModelCall& call, int64_t length,
                                                     const std::vector<int64_t>& starts) const {
  LayerCalls calls{
      .state = call.state, .capture = call.capture, .everywhere = call.mask, .nearby = call.mask};
  calls.call.rng = call.rng;
  calls.call.attention.softcap = config_.attention_softcap;
  if (call.rows != nullptr) calls.call.attention.cu_seqlens = call.rows->cu_seqlens;
  const ContextScope* const part = ContextScope::current();
  if (part != nullptr) length = part->shards().length();
  Tensor places;
  if (!frequencies_.empty() || !local_frequencies_.empty()) {
    if (call.rows != nullptr)
      places = call.rows->places();
    else if (part != nullptr)
      places = part->positions();
  }
  const auto table = [&](const std::vector<double>& frequencies, double amplitude) {
    const RotaryTable all = rotary_table(length, starts, frequencies, config_.rotary_layout, amplitude);
    return places.defined() ? rotary_at(all, places) : all;
  };
  if (!frequencies_.empty()) calls.global = table(frequencies_, rotary_amplitude(config_.rotary_scaling));
  if (!local_frequencies_.empty()) calls.local = table(local_frequencies_, 1);
  if (call.state != nullptr) return calls;
  if (config_.causal) calls.everywhere &= causal();
  const int64_t reach = config_.window - 1;
  if (config_.window > 0) calls.nearby &= window(reach, config_.causal ? 0 : reach);
  return calls;
}

// The call of layer i.
const nn::LayerCall& LanguageModel::layer_call(LayerCalls& calls, size_t i) const {
  nn::LayerCall& call = calls.call;
  const bool is_local = config_.window > 0 && !is_global(i);
  call.attention.mask = is_local ? calls.nearby : calls.everywhere;
  if (!frequencies_.empty() && !is_rotated(i)) {
    call.attention.rotary = nullptr;
  } else if (!frequencies_.empty()) {
    call.attention.rotary = is_local && !local_frequencies_.empty() ? &calls.local : &calls.global;
  }
  if (calls.state != nullptr) call.update.cache = &calls.state->layers[i];
  call.update.window = is_local ? config_.window : 0;
  call.attention.capture = calls.capture != nullptr ? &calls.capture->at(i) : nullptr;
  if (!alibi_slopes_.empty()) call.attention.alibi_slopes = alibi_slopes_[i].to(token_embedding.dtype());
  return call;
}

// Why the layers go through their modules; empty: the pass has them all.
std::string LanguageModel::declined(const nn::TokenPass& pass, LayerCalls& calls) const {
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string reason = pass.declined(layers[i], layer_call(calls, i));
    if (!reason.empty()) return concat("layer ", i, ": ", reason);
  }
  return {};
}

Tensor LanguageModel::run_layers(int64_t first, Tensor x, const LanguageModelCall& call,
                                 const std::vector<int64_t>& starts, const nn::CacheUpdate& update) const {
  LayerCalls calls = layer_calls(call, call.rows != nullptr ? call.rows->longest() : x.size(1), starts);
  calls.call.update = update;
  if (call.state != nullptr && nn::TokenPass::declined(x).empty()) {
    nn::TokenPass pass(x, update.held, update.counts);
    if (declined(pass, calls).empty()) {
      for (size_t i = 0; i < layers.size(); ++i) pass.run(layers[i], layer_call(calls, i));
      if (config_.final_norm) pass.run(final_norm);
      return pass.result();
    }
  }
  for (auto i = static_cast<size_t>(first); i < layers.size(); ++i) {
    const nn::detail::PointPath in("layers", i);
    x = layers[i](x, layer_call(calls, i));
  }
  return config_.final_norm ? final_norm(x, "final_norm") : x;
}

std::string LanguageModel::explain(const LanguageModelCall& call, int64_t tokens) const {
  const std::string modules = "layers: modules, because of ";
  if (call.state == nullptr) return modules + "no state";
  nn::DecodeState state = call.state->fork();
  const Tensor x = Tensor::empty({state.batch(), tokens, config_.embed_dim}, token_embedding.dtype());
  if (const std::string reason = nn::TokenPass::declined(x); !reason.empty()) return modules + reason;
  LanguageModelCall same = call;
  same.state = &state;
  LayerCalls calls = layer_calls(same, tokens, state.lengths);
  const std::vector<int64_t> held = state.held(), counts(held.size(), tokens);
  const std::string reason = declined(nn::TokenPass(x, held, counts), calls);
  return reason.empty() ? "layers: kernel calls without modules" : modules + reason;
}

}  // namespace multihead::models
