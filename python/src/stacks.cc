#include <nanobind/stl/pair.h>

#include "multihead/nn/encoder_decoder.h"
#include "multihead/nn/transformer.h"
#include "python/src/attention.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"
#include "python/src/names.h"

namespace multihead::python {
namespace {

// A keyword of a layer or stack, or its default; what is left over is refused by name.
class Keywords {
 public:
  Keywords(const char* who, const nb::handle& words)
      : who_(who), rest_(nb::cast<nb::dict>(words.attr("copy")())) {}

  template <class T>
  T take(const char* name, T fallback) {
    if (!rest_.contains(name)) return fallback;
    nb::object value = nb::object(rest_[name]);
    nb::del(rest_[name]);
    try {
      return nb::cast<T>(value);
    } catch (nb::cast_error&) {
      throw nb::type_error((std::string(who_) + ": " + name + " has a wrong type").c_str());
    }
  }
  int64_t need(const char* name) {
    if (!rest_.contains(name))
      throw nb::type_error((std::string(who_) + ": " + name + " is missing").c_str());
    return take<int64_t>(name, 0);
  }
  Rng& rng() {
    Rng* given = take<Rng*>("rng", nullptr);
    return rng_or_default(given);
  }
  void finish() const {
    for (auto [name, value] : rest_) {
      throw nb::type_error(
          (std::string(who_) + ": unknown option '" + nb::cast<std::string>(name) + "'").c_str());
    }
  }

 private:
  const char* who_;
  nb::dict rest_;
};

nn::TransformerLayerOptions layer_options(Keywords& k) {
  nn::TransformerLayerOptions o;
  o.attention.embed_dim = k.need("embed_dim");
  o.attention.num_heads = k.need("num_heads");
  o.attention.num_kv_heads = k.take<int64_t>("num_kv_heads", 0);
  o.attention.head_dim = k.take<int64_t>("head_dim", 0);
  const bool bias = k.take("attention_bias", true);
  o.attention.query_bias = o.attention.key_bias = o.attention.value_bias = bias;
  o.attention.out_bias = k.take("out_bias", true);
  o.attention.dropout_p = k.take("attention_dropout_p", 0.0);
  o.attention.qk_norm = k.take("qk_norm", false);
  o.attention.qk_norm_eps = k.take("qk_norm_eps", 1e-6);
  o.attention.zero_attn = k.take("zero_attn", false);
  o.feed_forward.embed_dim = o.attention.embed_dim;
  o.feed_forward.hidden_dim = k.take<int64_t>("hidden_dim", 4 * o.attention.embed_dim);
  o.feed_forward.activation = activation_of(k.take<std::string>("activation", "gelu"));
  o.feed_forward.gated = k.take("gated", false);
  o.feed_forward.bias = k.take("ffn_bias", true);
  o.feed_forward.dropout_p = k.take("ffn_dropout_p", 0.0);
  o.norm.kind = norm_kind_of(k.take<std::string>("norm", "layer"));
  o.norm.eps = k.take("norm_eps", 1e-5);
  o.norm.bias = k.take("norm_bias", true);
  o.norm_first = k.take("norm_first", false);
  o.cross_attention = k.take("cross_attention", false);
  o.dropout_p = k.take("dropout_p", 0.0);
  return o;
}

nn::StackOptions stack_options(Keywords& k) {
  nn::StackOptions o;
  o.num_layers = k.take<int64_t>("num_layers", o.num_layers);
  o.final_norm = k.take("final_norm", false);
  o.layer = layer_options(k);
  return o;
}

struct StackWords {
  nb::handle mask, memory_mask;
  Rng* rng;
  const RotaryTable* rotary;
  nb::handle alibi_slopes, relative_bias;
  bool capture;
  size_t layers;
};

// (result, [weights of every layer]) if capture was asked for.
template <class F>
nb::object run_stack(const StackWords& w, F&& f) {
  nn::StackCall call;
  call.mask = to_mask(w.mask);
  call.memory_mask = to_mask(w.memory_mask);
  call.rng = w.rng;
  call.rotary = w.rotary;
  call.alibi_slopes = to_tensor_or_none(w.alibi_slopes, {"stack", "alibi_slopes"});
  call.relative_bias = to_tensor_or_none(w.relative_bias, {"stack", "relative_bias"});
  std::vector<AttentionCapture> captures(w.layers);
  if (w.capture) call.capture = &captures;
  Tensor out = unlocked([&] { return f(call); });
  if (!w.capture) return nb::cast(std::move(out));
  nb::list weights;
  for (const AttentionCapture& c : captures) weights.append(c.weights);
  return nb::make_tuple(std::move(out), weights);
}

void bind_layer(nb::module_& m) {
  nb::class_<nn::TransformerLayer> c(
      m, "TransformerLayer",
      "An encoder layer, a decoder layer (cross_attention=True), or a language model's.\n\n"
      "Options   embed_dim, num_heads, num_kv_heads, head_dim, attention_bias, out_bias, "
      "attention_dropout_p,\n"
      "          hidden_dim (4 * embed_dim), activation ('gelu'), gated, ffn_bias, ffn_dropout_p, norm "
      "('layer',\n"
      "          'rms'), norm_eps, norm_first, cross_attention, dropout_p, rng\n"
      "Shapes    x [B, T, embed_dim] -> the same\n"
      "Weights   as torch.nn.TransformerEncoderLayer and TransformerDecoderLayer");
  c.def("__init__", [](nn::TransformerLayer* self, nb::kwargs words) {
    Keywords k("TransformerLayer", words);
    const nn::TransformerLayerOptions options = layer_options(k);
    Rng& rng = k.rng();
    k.finish();
    new (self) nn::TransformerLayer(options, rng);
  });
  c.def(
      "__call__",
      [](const nn::TransformerLayer& layer, nb::handle x, nb::handle mask, nb::handle memory,
         nb::handle memory_mask, Rng* rng, const RotaryTable* rotary, nb::handle alibi_slopes) {
        const Tensor t = to_tensor(x, {"TransformerLayer", "x"});
        nn::LayerCall call;
        call.attention.mask = to_mask(mask);
        call.attention.rotary = rotary;
        call.attention.alibi_slopes = to_tensor_or_none(alibi_slopes, {"TransformerLayer", "alibi_slopes"});
        call.attention.rng = call.cross.rng = call.rng = rng;
        call.memory = to_tensor_or_none(memory, {"TransformerLayer", "memory"});
        call.cross.mask = to_mask(memory_mask);
        return unlocked([&] { return layer(t, call); });
      },
      "x"_a, nb::kw_only(), "mask"_a = nb::none(), "memory"_a = nb::none(), "memory_mask"_a = nb::none(),
      "rng"_a = nb::none(), "rotary"_a = nb::none(), "alibi_slopes"_a = nb::none());
  bind_module(c, "TransformerLayer");
}

constexpr const char* kStackDoc =
    "Layers one after the other, then an optional norm.\n\nOptions   num_layers (6), final_norm, and those "
    "of "
    "TransformerLayer";

template <class Stack>
nn::StackOptions constructed(const char* name, const nb::kwargs& words, Rng*& rng) {
  Keywords k(name, words);
  nn::StackOptions options = stack_options(k);
  rng = &k.rng();
  k.finish();
  return options;
}

void bind_encoder_decoder(nb::module_& m) {
  nb::class_<nn::TransformerEncoder> encoder(m, "TransformerEncoder", kStackDoc);
  encoder.def("__init__", [](nn::TransformerEncoder* self, nb::kwargs words) {
    Rng* rng = nullptr;
    const nn::StackOptions o = constructed<nn::TransformerEncoder>("TransformerEncoder", words, rng);
    new (self) nn::TransformerEncoder(o, *rng);
  });
  encoder.def(
      "__call__",
      [](const nn::TransformerEncoder& e, nb::handle x, nb::handle mask, Rng* rng, const RotaryTable* rotary,
         nb::handle alibi_slopes, nb::handle relative_bias, bool capture) {
        const Tensor t = to_tensor(x, {"TransformerEncoder", "x"});
        return run_stack(
            {mask, nb::none(), rng, rotary, alibi_slopes, relative_bias, capture, e.layers.size()},
            [&](const nn::StackCall& call) { return e(t, call); });
      },
      "x"_a, nb::kw_only(), "mask"_a = nb::none(), "rng"_a = nb::none(), "rotary"_a = nb::none(),
      "alibi_slopes"_a = nb::none(), "relative_bias"_a = nb::none(), "capture"_a = false);
  bind_module(encoder, "TransformerEncoder");

  nb::class_<nn::TransformerDecoder> decoder(m, "TransformerDecoder", kStackDoc);
  decoder.def("__init__", [](nn::TransformerDecoder* self, nb::kwargs words) {
    Rng* rng = nullptr;
    const nn::StackOptions o = constructed<nn::TransformerDecoder>("TransformerDecoder", words, rng);
    new (self) nn::TransformerDecoder(o, *rng);
  });
  decoder.def(
      "__call__",
      [](const nn::TransformerDecoder& d, nb::handle x, nb::handle memory, nb::handle mask,
         nb::handle memory_mask, Rng* rng, bool capture) {
        const Tensor t = to_tensor(x, {"TransformerDecoder", "x"});
        const Tensor s = to_tensor(memory, {"TransformerDecoder", "memory"});
        return run_stack({mask, memory_mask, rng, nullptr, nb::none(), nb::none(), capture, d.layers.size()},
                         [&](const nn::StackCall& call) { return d(t, s, call); });
      },
      "x"_a, "memory"_a, nb::kw_only(), "mask"_a = nb::none(), "memory_mask"_a = nb::none(),
      "rng"_a = nb::none(), "capture"_a = false, "causal() is always part of the mask.");
  bind_module(decoder, "TransformerDecoder");

  nb::class_<nn::Transformer> both(m, "Transformer",
                                   "decoder(target, encoder(source)); options as two dicts.");
  both.def(
      "__init__",
      [](nn::Transformer* self, nb::dict encoder_words, nb::dict decoder_words, Rng* rng) {
        Keywords e("Transformer encoder", encoder_words), d("Transformer decoder", decoder_words);
        const nn::StackOptions first = stack_options(e);
        const nn::StackOptions second = stack_options(d);
        e.finish(), d.finish();
        new (self) nn::Transformer(first, second, rng_or_default(rng));
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
      "rng"_a = nb::none(), "source_mask also holds for the decoder's view of the source.");
  bind_module(both, "Transformer");
}

}  // namespace

void bind_stacks(nb::module_& m) {
  bind_layer(m);
  bind_encoder_decoder(m);
}

}  // namespace multihead::python
