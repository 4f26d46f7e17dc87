// Encoders and the vectors of texts.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "multihead/embed/sentence_encoder.h"
#include "multihead/io/npy.h"
#include "multihead/models/encoder.h"
#include "multihead/models/hugging_face.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"
#include "python/src/names.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

using embed::SentenceEncoder;
using models::Encoder;
using models::EncoderConfig;
using Sequences = std::vector<std::vector<int32_t>>;

models::TokenRows to_rows(const Sequences& sequences, const Sequences& types) {
  return models::TokenRows::of(sequences, types);
}

void bind_encoder(nb::module_& m) {
  nb::class_<EncoderConfig> config(
      m, "EncoderConfig",
      "The configuration of an encoder: sizes, positions, head ('none', 'masked_lm', "
      "'classification', 'tokens').");
  bind_config_fields(config, "EncoderConfig");
  config.def_rw("labels", &EncoderConfig::labels);
  nb::class_<Encoder> c(
      m, "Encoder",
      "An encoder such as BERT. Sequences are lists of token ids of any lengths; nothing is padded, "
      "and a sequence\nhas the same bits in whatever company.");
  c.def(
      "__init__",
      [](Encoder* self, const EncoderConfig& config, Rng* rng) {
        new (self) Encoder(models::resolved(config), rng_or_default(rng));
      },
      "config"_a, nb::kw_only(), "rng"_a = nb::none());
  c.def_prop_ro("config", [](const Encoder& model) { return model.config(); });
  c.def(
      "features",
      [](const Encoder& model, const Sequences& sequences, const Sequences& types, Rng* rng) {
        return unlocked([&] { return model.features(to_rows(sequences, types), rng); });
      },
      "sequences"_a, "types"_a = Sequences(), nb::kw_only(), "rng"_a = nb::none(),
      "The last hidden states [N, E], one sequence behind the other. With an rng, dropout is active.");
  c.def(
      "pooled",
      [](const Encoder& model, const Sequences& sequences, const Sequences& types) {
        return unlocked([&] {
          const models::TokenRows rows = to_rows(sequences, types);
          return model.pooled(model.features(rows), rows);
        });
      },
      "sequences"_a, "types"_a = Sequences(), "The pooler's output [S, E].");
  c.def(
      "logits",
      [](const Encoder& model, const Sequences& sequences, const Sequences& types, Rng* rng) {
        return unlocked([&] { return model.logits(to_rows(sequences, types), rng); });
      },
      "sequences"_a, "types"_a = Sequences(), nb::kw_only(), "rng"_a = nb::none(),
      "The head's output: [N, vocab_size], [S, labels] or [N, labels].");
  c.def(
      "save",
      [](Encoder& model, const Path& folder) {
        unlocked([&] {
          models::save_encoder(model, folder);
          return 0;
        });
      },
      "folder"_a, "Writes config.json and model.safetensors as Hugging Face's family has them.");
  c.def_static(
      "load", [](const Path& folder) { return unlocked([&] { return models::load_encoder(folder); }); },
      "folder"_a, "Loads a Hugging Face folder: BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA.");
  bind_part(c, "token_embedding", &Encoder::token_embedding);
  bind_part(c, "position_embedding", &Encoder::position_embedding);
  bind_part(c, "type_embedding", &Encoder::type_embedding);
  bind_part(c, "embedding_norm", &Encoder::embedding_norm);
  bind_part(c, "embedding_projection", &Encoder::embedding_projection);
  bind_parts(c, "layers", &Encoder::layers);
  bind_part(c, "pooler", &Encoder::pooler);
  bind_part(c, "head_dense", &Encoder::head_dense);
  bind_part(c, "head_norm", &Encoder::head_norm);
  bind_weight(c, "head_bias", &Encoder::head_bias);
  bind_part(c, "classifier", &Encoder::classifier);
  bind_module(c, "Encoder");
}

void bind_sentence_encoder(nb::module_& m) {
  nb::class_<SentenceEncoder>(m, "TextEncoder", "What multihead.SentenceEncoder is made of.")
      .def_static(
          "load", [](const Path& folder) { return unlocked([&] { return SentenceEncoder::load(folder); }); },
          "folder"_a)
      .def(
          "encode",
          [](const SentenceEncoder& encoder, const std::vector<std::string>& texts, const std::string& prompt,
             const std::string& prompt_name, std::optional<bool> normalize, int64_t truncate_dim,
             int64_t batch_tokens, nb::object progress) {
            embed::EncodeTextOptions options = {.prompt = prompt,
                                                .prompt_name = prompt_name,
                                                .normalize = normalize,
                                                .truncate_dim = truncate_dim,
                                                .batch_tokens = batch_tokens};
            options.progress = [&](int64_t done, int64_t total) {
              const Locked locked;
              if (PyErr_CheckSignals() != 0) throw nb::python_error();
              if (!progress.is_none()) progress(done, total);
            };
            return unlocked([&] { return encoder.encode(texts, options); });
          },
          "texts"_a, nb::kw_only(), "prompt"_a = "", "prompt_name"_a = "", "normalize"_a = nb::none(),
          "truncate_dim"_a = 0, "batch_tokens"_a = 2048, "progress"_a = nb::none())
      .def_prop_ro("dim", &SentenceEncoder::dim)
      .def_prop_ro("max_length", &SentenceEncoder::max_length)
      .def_prop_ro("prompts", &SentenceEncoder::prompts)
      .def_prop_ro("encoder", &SentenceEncoder::encoder, nb::rv_policy::reference_internal)
      .def_prop_ro("tokenizer", &SentenceEncoder::tokenizer);
  m.def(
      "nearest",
      [](nb::handle queries, nb::handle corpus, int64_t count) {
        const Tensor q = to_tensor(queries, {"nearest", "queries"}),
                     x = to_tensor(corpus, {"nearest", "corpus"});
        const auto best = unlocked([&] { return embed::nearest(q, x, count); });
        std::vector<std::vector<std::pair<int64_t, float>>> result;
        for (const auto& list : best) {
          auto& row = result.emplace_back();
          for (const embed::Match& match : list) row.emplace_back(match.row, match.score);
        }
        return result;
      },
      "queries"_a, "corpus"_a, "count"_a = 10,
      "For each query the (row, score) of the rows of corpus with the largest inner products, largest "
      "first.");
}

}  // namespace

void bind_embed(nb::module_& m) {
  bind_encoder(m);
  bind_sentence_encoder(m);
}

}  // namespace multihead::python
