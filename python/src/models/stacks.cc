#include <nanobind/stl/pair.h>

#include "multihead/core/error.h"
#include "multihead/nn/encoder_decoder.h"
#include "multihead/nn/transformer.h"
#include "python/src/attention/attention_keywords.h"
#include "python/src/bindings.h"
#include "python/src/models/decoding.h"
#include "python/src/models/stack_options.h"
#include "python/src/modules.h"
#include "python/src/names.h"

namespace multihead::python {
namespace {

struct StackWords {
  nb::handle mask, memory_mask;
  Rng* rng;
  const RotaryTable* rotary;
  nb::handle alibi_slopes, relative_bias;
  std::string empty_row;
  nn::DecodeState* state;
  std::vector<int64_t> counts;
  bool capture, cross_capture;
  size_t layers;
};

nb::list weights_of(const std::vector<AttentionCapture>& captures) {
  nb::list weights;
  for (const AttentionCapture& c : captures) weights.append(c.weights);
  return weights;
}

// The result; (result, [weights of every layer], ...) if captures were requested.
template <class F>
nb::object run_stack(const StackWords& w, F&& f) {
  nn::StackCall call;
  call.mask = to_mask(w.mask);
  call.memory_mask = to_mask(w.memory_mask);
  call.rng = w.rng;
  call.rotary = w.rotary;
  call.alibi_slopes = to_tensor_or_none(w.alibi_slopes, {"stack", "alibi_slopes"});
  call.relative_bias = to_tensor_or_none(w.relative_bias, {"stack", "relative_bias"});
  call.empty_row = empty_row_of(w.empty_row);
  call.state = w.state;
  call.counts = w.counts;
  std::vector<AttentionCapture> own(w.layers), cross(w.layers);
  if (w.capture) call.capture = &own;
  if (w.cross_capture) call.cross_capture = &cross;
  Tensor out = unlocked([&] { return f(call); });
  if (!w.capture && !w.cross_capture) return nb::cast(std::move(out));
  nb::list result;
  result.append(std::move(out));
  if (w.capture) result.append(weights_of(own));
  if (w.cross_capture) result.append(weights_of(cross));
  return nb::tuple(result);
}

nn::DecodeState start_stack(const nn::TransformerDecoder& decoder, nb::handle memory, nb::handle lengths,
                            int64_t capacity, nb::handle dtype) {
  const Tensor m = to_tensor(memory, {"start", "memory"});
  MH_CHECK(m.rank() == 3, ShapeError, "start: memory must be [B, Ts, embed_dim], got ", m.shape());
  std::vector<int64_t> valid;
  if (!lengths.is_none()) valid = to_integers(lengths, {"start", "memory_lengths"});
  std::optional<Dtype> type;
  if (!dtype.is_none()) type = to_dtype(dtype);
  return unlocked([&] { return decoder.start(m, valid, capacity, type); });
}

constexpr const char* kStartDoc =
    "A DecodeState with room for `capacity` target tokens per row. The keys and values of memory [B, Ts, "
    "embed_dim] are\ncomputed once, here; row b has memory_lengths[b] valid tokens, all by default. dtype: "
    "the memory's, or 'bfloat16'.";

// Runs a layer on the next tokens of a state, with the state's memory if it holds one.
Tensor layer_step(const nn::TransformerLayer& layer, const Tensor& x, nn::LayerCall call,
                  nn::DecodeState& state, const std::vector<int64_t>& counts) {
  if (!state.cross.empty()) {
    call.projected = &state.cross.front();
    const auto rows = static_cast<int64_t>(state.cross_lengths.size());
    call.cross.mask &= lengths(Tensor::of<int64_t>({rows}, state.cross_lengths));
  }
  return move_on("TransformerLayer", x, state, counts, [&](const nn::CacheUpdate& update) {
    check_positions("TransformerLayer", state, call.attention);
    call.update = update;
    return layer(x, call);
  });
}

void check_memory_or_state(const char* who, const Tensor& memory) {
  MH_CHECK(!memory.defined(), ValueError, who,
           ": give a memory or a state, not both: a state holds the memory it was started with");
}

void bind_layer_steps(nb::class_<nn::TransformerLayer>& c) {
  c.def(
      "make_state",
      [](const nn::TransformerLayer& layer, int64_t batch, int64_t capacity, int64_t window,
         nb::handle dtype) { return make_layer_state(layer.self_attn, batch, capacity, window, dtype); },
      "batch"_a, "capacity"_a, nb::kw_only(), "window"_a = 0, "dtype"_a = nb::none(),
      "A DecodeState of this layer with room for `capacity` tokens per row. window > 0: a ring for a sliding "
      "window of that many\nkeys. With cross_attention use start().");
  c.def(
      "start",
      [](const nn::TransformerLayer& layer, nb::handle memory, nb::handle memory_lengths, int64_t capacity,
         nb::handle dtype) {
        nn::TransformerDecoder one;
        one.layers.push_back(layer);
        return start_stack(one, memory, memory_lengths, capacity, dtype);
      },
      "memory"_a, "memory_lengths"_a = nb::none(), nb::kw_only(), "capacity"_a, "dtype"_a = nb::none(),
      kStartDoc);
}

void bind_layer(nb::module_& m) {
  nb::class_<nn::TransformerLayer> c(
      m, "TransformerLayer",
      "An encoder layer, a decoder layer (cross_attention=True), or a language model's.\n\nOptions   "
      "query_bias, key_bias and value_bias are attention_bias unless given; hidden_dim is 4 * embed_dim,\n   "
      "       scale 1 / sqrt(head_dim), head_dim embed_dim / num_heads; norm 'layer' or 'rms'\nShapes    x "
      "[B, T, embed_dim] -> the same\nWeights   as torch.nn.TransformerEncoderLayer and "
      "TransformerDecoderLayer; submodules by the same names");
  c.def(
      "__init__",
      [](nn::TransformerLayer* self, const nb::kwargs& words) {
        const StackArguments given = layer_arguments("TransformerLayer", words);
        new (self) nn::TransformerLayer(given.stack.layer, rng_or_default(given.rng));
      },
      nb::sig(layer_signature()));
  Attention<const nn::TransformerLayer&, nb::handle, nb::handle, nb::handle, AttentionCapture*,
            nn::DecodeState*, nb::handle>::
      bind(
          c, "__call__", "TransformerLayer", kLayerKeywords,
          [](const nn::TransformerLayer& layer, nb::handle x, nb::handle memory, nb::handle memory_mask,
             AttentionCapture* cross_capture, nn::DecodeState* state, nb::handle counts,
             const AttentionArguments& to) {
            const Tensor t = to_tensor(x, {to.who, "x"});
            nn::LayerCall call;
            call.attention = to.call;
            call.rng = to.call.rng;
            call.memory = to_tensor_or_none(memory, {to.who, "memory"});
            call.cross.mask = to_mask(memory_mask);
            call.cross.empty_row = call.attention.empty_row;
            call.cross.capture = cross_capture;
            const std::vector<int64_t> fresh = to_counts(counts, to.who);
            MH_CHECK(state != nullptr || fresh.empty(), ValueError, to.who, ": counts needs a state");
            if (state != nullptr) check_memory_or_state(to.who, call.memory);
            return unlocked([&] {
              return state != nullptr ? layer_step(layer, t, call, *state, fresh) : layer(t, call);
            });
          },
          "The options of attention are the self-attention's. With a state, x attends to the state and, "
          "causally, to itself,\nand is appended to it: counts[b] tokens of row b, all by default.",
          "x"_a, nb::kw_only(), "memory"_a = nb::none(), "memory_mask"_a = nb::none(),
          "cross_capture"_a = nb::none(), "state"_a = nb::none(), "counts"_a = nb::none());
  bind_part(c, "self_attn", &nn::TransformerLayer::self_attn);
  bind_part(c, "multihead_attn", &nn::TransformerLayer::multihead_attn);
  bind_part(c, "feed_forward", &nn::TransformerLayer::feed_forward);
  bind_part(c, "norm1", &nn::TransformerLayer::norm1);
  bind_part(c, "norm2", &nn::TransformerLayer::norm2);
  bind_part(c, "norm3", &nn::TransformerLayer::norm3);
  bind_part(c, "post_norm1", &nn::TransformerLayer::post_norm1);
  bind_part(c, "post_norm2", &nn::TransformerLayer::post_norm2);
  const auto present = [](nn::Linear& part) {
    return part.weight.defined() || part.packed.defined() ? &part : nullptr;
  };
  c.def_prop_ro("linear1",
                [present](nn::TransformerLayer& layer) { return present(layer.feed_forward.fc1); });
  c.def_prop_ro("linear2",
                [present](nn::TransformerLayer& layer) { return present(layer.feed_forward.fc2); });
  bind_layer_steps(c);
  bind_module(c, "TransformerLayer");
}

constexpr const char* kStackDoc =
    "A stack of layers, then an optional norm; options as those of TransformerLayer.";

template <class Stack>
void bind_constructor(nb::class_<Stack>& c, const char* name) {
  c.def(
      "__init__",
      [name](Stack* self, const nb::kwargs& words) {
        const StackArguments given = stack_arguments(name, words);
        new (self) Stack(given.stack, rng_or_default(given.rng));
      },
      nb::sig(stack_signature()));
}

void bind_encoder_stack(nb::module_& m) {
  nb::class_<nn::TransformerEncoder> encoder(m, "TransformerEncoder", kStackDoc);
  bind_constructor(encoder, "TransformerEncoder");
  encoder.def(
      "__call__",
      [](const nn::TransformerEncoder& e, nb::handle x, nb::handle mask, Rng* rng, const RotaryTable* rotary,
         nb::handle alibi_slopes, nb::handle relative_bias, const std::string& empty_row, bool capture) {
        const Tensor t = to_tensor(x, {"TransformerEncoder", "x"});
        return run_stack({mask,
                          nb::none(),
                          rng,
                          rotary,
                          alibi_slopes,
                          relative_bias,
                          empty_row,
                          nullptr,
                          {},
                          capture,
                          false,
                          e.layers.size()},
                         [&](const nn::StackCall& call) { return e(t, call); });
      },
      "x"_a, nb::kw_only(), "mask"_a = nb::none(), "rng"_a = nb::none(), "rotary"_a = nb::none(),
      "alibi_slopes"_a = nb::none(), "relative_bias"_a = nb::none(), "empty_row"_a = "zero",
      "capture"_a = false, "capture: (result, [weights of every layer, before dropout]).");
  bind_parts(encoder, "layers", &nn::TransformerEncoder::layers);
  bind_part(encoder, "norm", &nn::TransformerEncoder::norm);
  bind_module(encoder, "TransformerEncoder");
}

void bind_decoder_stack(nb::module_& m) {
  nb::class_<nn::TransformerDecoder> decoder(m, "TransformerDecoder", kStackDoc);
  bind_constructor(decoder, "TransformerDecoder");
  decoder.def(
      "__call__",
      [](const nn::TransformerDecoder& d, nb::handle x, nb::handle memory, nb::handle mask,
         nb::handle memory_mask, Rng* rng, const RotaryTable* rotary, nb::handle alibi_slopes,
         nb::handle relative_bias, const std::string& empty_row, bool capture, bool cross_capture,
         nn::DecodeState* state, nb::handle counts) {
        constexpr const char* who = "TransformerDecoder";
        const Tensor t = to_tensor(x, {who, "x"});
        const Tensor s = to_tensor_or_none(memory, {who, "memory"});
        if (state != nullptr) check_memory_or_state(who, s);
        return run_stack({mask, memory_mask, rng, rotary, alibi_slopes, relative_bias, empty_row, state,
                          to_counts(counts, who), capture, cross_capture, d.layers.size()},
                         [&](const nn::StackCall& call) { return d(t, s, call); });
      },
      "x"_a, "memory"_a = nb::none(), nb::kw_only(), "mask"_a = nb::none(), "memory_mask"_a = nb::none(),
      "rng"_a = nb::none(), "rotary"_a = nb::none(), "alibi_slopes"_a = nb::none(),
      "relative_bias"_a = nb::none(), "empty_row"_a = "zero", "capture"_a = false, "cross_capture"_a = false,
      "state"_a = nb::none(), "counts"_a = nb::none(),
      "causal() is always part of the mask. With a state from start() instead of a memory, x attends to it "
      "and\nis appended to it: counts[b] tokens of row b, all by default; the result is bitwise equal to one "
      "call on everything.\ncapture, cross_capture: (result, [weights of every layer], ...).");
  decoder.def("start", &start_stack, "memory"_a, "memory_lengths"_a = nb::none(), nb::kw_only(), "capacity"_a,
              "dtype"_a = nb::none(), kStartDoc);
  bind_parts(decoder, "layers", &nn::TransformerDecoder::layers);
  bind_part(decoder, "norm", &nn::TransformerDecoder::norm);
  bind_module(decoder, "TransformerDecoder");
}

void bind_both_stacks(nb::module_& m) {
  nb::class_<nn::Transformer> both(m, "Transformer",
                                   "decoder(target, encoder(source)); options as two dicts.");
  both.def(
      "__init__",
      [](nn::Transformer* self, nb::dict encoder_words, nb::dict decoder_words, Rng* rng) {
        if (encoder_words.contains("rng") || decoder_words.contains("rng"))
          throw nb::type_error("Transformer: rng is an argument of its own, not one of encoder or decoder");
        const StackArguments first = stack_arguments("Transformer encoder", encoder_words);
        const StackArguments second = stack_arguments("Transformer decoder", decoder_words);
        new (self) nn::Transformer(first.stack, second.stack, rng_or_default(rng));
      },
      nb::kw_only(), "encoder"_a, "decoder"_a, "rng"_a = nb::none());
  both.def(
      "__call__",
      [](const nn::Transformer& t, nb::handle source, nb::handle target, nb::handle source_mask,
         nb::handle target_mask, Rng* rng) {
        const Tensor s = to_tensor(source, {"Transformer", "source"}),
                     y = to_tensor(target, {"Transformer", "target"});
        nn::StackCall e, d;
        e.mask = d.memory_mask = to_mask(source_mask);
        d.mask = to_mask(target_mask);
        e.rng = d.rng = rng;
        return unlocked([&] { return t(s, y, e, d); });
      },
      "source"_a, "target"_a, nb::kw_only(), "source_mask"_a = nb::none(), "target_mask"_a = nb::none(),
      "rng"_a = nb::none(), "source_mask also applies to cross-attention.");
  bind_part(both, "encoder", &nn::Transformer::encoder);
  bind_part(both, "decoder", &nn::Transformer::decoder);
  bind_module(both, "Transformer");
}

}  // namespace

void bind_stacks(nb::module_& m) {
  bind_layer(m);
  bind_encoder_stack(m);
  bind_decoder_stack(m);
  bind_both_stacks(m);
}

}  // namespace multihead::python
