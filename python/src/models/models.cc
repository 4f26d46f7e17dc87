#include <nanobind/stl/map.h>

#include "multihead/core/error.h"
#include "multihead/generate/beam_search.h"
#include "multihead/generate/defaults.h"
#include "multihead/models/files/gguf.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/language_model.h"
#include "multihead/models/surgery/prune.h"
#include "multihead/text/tokenizer/files/gguf.h"
#include "python/src/attention/attention.h"
#include "python/src/bindings.h"
#include "python/src/def_op.h"
#include "python/src/models/decoding.h"
#include "python/src/models/folders.h"
#include "python/src/models/generation.h"
#include "python/src/modules.h"
#include "python/src/names.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

using models::LanguageModel;
using models::LanguageModelConfig;

void bind_language_model_config(nb::module_& m) {
  using C = LanguageModelConfig;
  nb::class_<C> c(
      m, "LanguageModelConfig",
      "The configuration of a language model: sizes, positions ('none', 'learned', 'sinusoidal', 'rotary', "
      "'alibi'),\nnorm ('layer', 'rms'), activation, gated, biases, dropout. Fields are keyword arguments.");
  c.def_rw("rotary_scaling", &C::rotary_scaling);
  bind_config_fields(c, "LanguageModelConfig");
  m.def("language_model_preset", &models::language_model_preset, "name"_a, "'tiny', 'small' or 'tutorial'.");
}

void bind_losses(nb::class_<LanguageModel>& c) {
  def_op(
      c, "loss", "loss",
      [](const LanguageModel& model, const Tensor& tokens, const Tensor& targets, Rng* rng,
         double label_smoothing) { return model.loss(tokens, targets, {.rng = rng}, label_smoothing); },
      "tokens"_a, "targets"_a, nb::kw_only(), "rng"_a = nb::none(), "label_smoothing"_a = 0.0,
      "Mean next-token cross-entropy in nats; targets -100 are ignored.");
  c.def(
      "attention_weights",
      [](const LanguageModel& model, nb::handle tokens) {
        const Tensor t = to_tensor(tokens, {"attention_weights", "tokens"});
        std::vector<AttentionCapture> captures(static_cast<size_t>(model.config().num_layers));
        models::LanguageModelCall options;
        options.capture = &captures;
        unlocked([&] { return model.features(t, options); });
        nb::list weights;
        for (const AttentionCapture& capture : captures) weights.append(capture.weights);
        return weights;
      },
      "tokens"_a, "The attention weights [B, H, T, T] of every layer.");
}

void bind_files(nb::class_<LanguageModel>& c) {
  c.def(
      "save",
      [](LanguageModel& model, const Path& folder, const text::Tokenizer* tokenizer, bool overwrite) {
        unlocked([&] {
          if (tokenizer != nullptr) {
            save_with_tokenizer(model, *tokenizer, folder, overwrite);
          } else {
            models::save_language_model(model, folder, overwrite);
          }
          return 0;
        });
      },
      "folder"_a, nb::kw_only(), "tokenizer"_a = nb::none(), "overwrite"_a = false,
      "Writes config.json and model.safetensors as Hugging Face's GPT-2 or Llama, if they can express it; "
      "with a "
      "tokenizer\nits files, too, and generation_config.json, by which others stop where texts end. A folder "
      "that "
      "holds another\nmodel is refused, unless overwrite: its tokenizer goes with it.");
  c.def(
      "save_gguf",
      [](LanguageModel& model, const Path& path, const text::Tokenizer& tokenizer, const std::string& type) {
        unlocked([&] {
          models::save_gguf(model, path, type, text::gguf_vocabulary(tokenizer, model.config().vocab_size));
          return 0;
        });
      },
      "path"_a, "tokenizer"_a, nb::kw_only(), "type"_a = "f16",
      "Writes a GGUF file for llama.cpp; type is f32, f16, bf16, q8_0, q4_1 or q4_0.");
  c.def_static(
      "load",
      [](const Path& folder, const std::optional<std::string>& weights, bool head, bool packed) {
        std::optional<nn::WeightDtype> dtype;
        if (weights) dtype = kernels::parse_weight_dtype(*weights);
        return unlocked([&] {
          return head ? models::load_language_model(folder, dtype, packed)
                      : models::load_decoder(folder, dtype, packed);
        });
      },
      "folder"_a, "weights"_a = nb::none(), nb::kw_only(), "head"_a = true, "packed"_a = false,
      "Loads a model from a Hugging Face folder (GPT-2, Llama families) or one of ours. weights: 'f32', or "
      "packed for\ninference as pack_weights() does. head=False: without the output layer, for embeddings. "
      "packed=True: f32\nweights are packed too, while they are read.");
  c.def_prop_ro(
      "weight_dtype",
      [](const LanguageModel& model) { return std::string(kernels::name(model.weight_dtype())); },
      "Of the layers' matrices.");
}

void bind_weights(nb::class_<LanguageModel>& c) {
  c.def_prop_ro("weight_bytes", &LanguageModel::weight_bytes, "Memory of all weights.");
  bind_part(c, "token_embedding", &LanguageModel::token_embedding);
  bind_part(c, "position_embedding", &LanguageModel::position_embedding);
  bind_parts(c, "layers", &LanguageModel::layers);
  bind_part(c, "final_norm", &LanguageModel::final_norm);
  bind_weight(c, "head_weight", &LanguageModel::head_weight);
  bind_weight(c, "head_bias", &LanguageModel::head_bias);
}

void bind_states(nb::class_<LanguageModel>& c) {
  const auto sizes = [](int64_t batch, int64_t capacity, bool ring, int64_t chunk, nb::handle dtype) {
    models::LanguageModelState options{batch, capacity, ring, chunk, {}};
    if (!dtype.is_none()) options.dtype = to_cache_dtype(dtype);
    return options;
  };
  c.def(
      "make_state",
      [sizes](const LanguageModel& model, int64_t batch, int64_t capacity, bool ring, int64_t chunk,
              nb::handle dtype) { return model.make_state(sizes(batch, capacity, ring, chunk, dtype)); },
      "batch"_a = 1, "capacity"_a = 0, nb::kw_only(), "ring"_a = false, "chunk"_a = 256,
      "dtype"_a = nb::none(),
      "A DecodeState with room for `capacity` tokens per row (0: the model's context). ring: memory for the "
      "window\nonly, calls of up to `chunk` tokens. dtype: the model's, 'bfloat16' or 'int8' (8 bits and a "
      "scale\nper head and token).");
  c.def(
      "explain",
      [](const LanguageModel& model, nn::DecodeState& state, int64_t tokens) {
        return model.explain({.state = &state}, tokens);
      },
      "state"_a, "tokens"_a = 1,
      "Whether a call with this many new tokens per row of the state runs as kernel calls alone or through "
      "the\nmodules, and why; the bits are the same.");
  c.def(
      "state_bytes",
      [sizes](const LanguageModel& model, int64_t batch, int64_t capacity, bool ring, int64_t chunk,
              nb::handle dtype) {
        return nn::decode_state_bytes(model.state_options(sizes(batch, capacity, ring, chunk, dtype)));
      },
      "batch"_a = 1, "capacity"_a = 0, nb::kw_only(), "ring"_a = false, "chunk"_a = 256,
      "dtype"_a = nb::none(), "The size in bytes of make_state().");
}

void bind_calls(nb::class_<LanguageModel>& c) {
  const auto call = [](const char* who, auto f) {
    return [who, f](const LanguageModel& model, nb::handle tokens, nb::handle mask, Rng* rng,
                    nn::DecodeState* state, nb::handle counts) {
      const Tensor t = to_tensor(tokens, {who, "tokens"});
      models::LanguageModelCall options;
      options.rng = rng;
      options.state = state;
      if (!counts.is_none()) options.counts = to_integers(counts, {who, "counts"});
      options.mask = to_mask(mask);
      return unlocked([&] { return f(model, t, options); });
    };
  };
  c.def("__call__",
        call("LanguageModel", [](const LanguageModel& l, const Tensor& t,
                                 const models::LanguageModelCall& o) { return l(t, o); }),
        "tokens"_a, nb::kw_only(), "mask"_a = nb::none(), "rng"_a = nb::none(), "state"_a = nb::none(),
        "counts"_a = nb::none(),
        "Logits; causal() is always in the mask. With a state, tokens attend to it and are appended to it: "
        "counts[b] of row\nb, all by default.");
  c.def("features",
        call("features", [](const LanguageModel& l, const Tensor& t,
                            const models::LanguageModelCall& o) { return l.features(t, o); }),
        "tokens"_a, nb::kw_only(), "mask"_a = nb::none(), "rng"_a = nb::none(), "state"_a = nb::none(),
        "counts"_a = nb::none(), "The last hidden states [B, T, E].");
  def_op(
      c, "sequence_features", "sequence_features",
      [](const LanguageModel& model, const std::vector<std::vector<int32_t>>& sequences, Rng* rng) {
        return model.features(models::TokenRows::of(sequences), rng);
      },
      "sequences"_a, nb::kw_only(), "rng"_a = nb::none(),
      "The last hidden states [N, E] of lists of token ids of any lengths, concatenated without padding.");
  c.def(
      "features_from",
      [](const LanguageModel& model, int64_t layer, nb::handle resid, nb::handle mask, Rng* rng) {
        const Tensor x = to_tensor(resid, {"features_from", "resid"});
        models::LanguageModelCall options;
        options.rng = rng;
        options.mask = to_mask(mask);
        return unlocked([&] { return model.features_from(layer, x, options); });
      },
      "layer"_a, "resid"_a, nb::kw_only(), "mask"_a = nb::none(), "rng"_a = nb::none(),
      "features() starting at a layer, from its resid_pre [B, T, E] (with post-norm not the resid_post "
      "of the layer\nbefore, which is not normed yet); num_layers: only the final norm.");
  def_op(
      c, "logits", "logits",
      [](const LanguageModel& model, const Tensor& features) { return model.logits(features); }, "features"_a,
      "Only the output layer: [..., E] -> [..., vocab_size].");
}

void bind_language_model(nb::module_& m) {
  nb::class_<LanguageModel> c(m, "LanguageModel",
                              "A decoder-only Transformer: tokens [B, T] -> logits [B, T, vocab_size].");
  c.def(
      "__init__",
      [](LanguageModel* self, LanguageModelConfig config, nb::handle attention, Rng* rng) {
        if (!attention.is_none()) {
          config.attention =
              nb::cast<std::string>(nb::module_::import_("multihead.nn").attr("_name_of")(attention));
        }
        new (self) LanguageModel(config, rng_or_default(rng));
      },
      "config"_a, nb::kw_only(), "attention"_a = nb::none(), "rng"_a = nb::none(),
      "attention: a subclass of multihead.nn.Attention in place of multi-head attention.");
  c.def_prop_ro("config", &LanguageModel::config);
  bind_calls(c);
  c.def_prop_ro("longest", &LanguageModel::longest, "Longest supported sequence.");
  bind_states(c);
  bind_losses(c);
  bind_generate(c);
  bind_files(c);
  bind_packing(c);
  bind_weights(c);
  bind_adapter(c);
  bind_module(c, "LanguageModel");
}

void bind_prune(nb::module_& m) {
  using Lists = std::optional<std::vector<std::vector<int64_t>>>;
  m.def(
      "prune",
      [](const LanguageModel& model, Lists heads, Lists units) {
        const models::Pruning pruning{.heads = heads.value_or(models::PrunedHeads()),
                                      .units = units.value_or(models::PrunedHeads())};
        return unlocked([&] { return models::prune(model, pruning); });
      },
      "model"_a, nb::kw_only(), "heads"_a = nb::none(), "units"_a = nb::none(),
      "A smaller model, equal to this one with the outputs of these heads and feed-forward units at zero: "
      "for each layer a\nlist of heads, of units as many everywhere. Heads keep their numbers when some are "
      "pruned already. With grouped-query\nattention whole groups go, or as many heads of each that stays. "
      "Where all layers lose as many heads, and the family has\na head_dim of its own (Llama, Mistral, Qwen "
      "3, Gemma), the saved folder loads in transformers; else it is one of ours.");
  m.def(
      "prune",
      [](const models::Seq2Seq& model, Lists encoder_heads, Lists decoder_heads, Lists cross_heads,
         Lists encoder_units, Lists decoder_units) {
        const auto lists = [](const Lists& x) { return x.value_or(models::PrunedHeads()); };
        const models::Pruning encoder{.heads = lists(encoder_heads), .units = lists(encoder_units)},
            decoder{
                .heads = lists(decoder_heads), .cross = lists(cross_heads), .units = lists(decoder_units)};
        return unlocked([&] { return models::prune(model, encoder, decoder); });
      },
      "model"_a, nb::kw_only(), "encoder_heads"_a = nb::none(), "decoder_heads"_a = nb::none(),
      "cross_heads"_a = nb::none(), "encoder_units"_a = nb::none(), "decoder_units"_a = nb::none(),
      "The same of an encoder-decoder model; encoder and decoder keep as many units.");
  def_op(m, "pool_kv_heads", &models::pool_kv_heads, "model"_a, "num_kv_heads"_a,
         "Grouped-query attention from a model with more heads of keys and values, which are averaged; some "
         "training repairs it\n(Ainslie et al. 2023).");
  m.def("least_important", &models::least_important, "importance"_a, "keep_ratio"_a, "group"_a = 1,
        "For each row of importance what to remove so that the share keep_ratio of all stays, the least "
        "important first; each\nrow is divided by its length and keeps one; `group` neighbours stay or go "
        "together.");
}

}  // namespace

void bind_models(nb::module_& m) {
  bind_language_model_config(m);
  bind_language_model(m);
  bind_prune(m);
}

}  // namespace multihead::python
