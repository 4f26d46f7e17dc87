// Encoders and the vectors of texts.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "multihead/embed/image_classifier.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/embed/token_classifier.h"
#include "multihead/io/npy.h"
#include "multihead/models/encoder.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/image_encoder.h"
#include "python/src/bindings.h"
#include "python/src/def_op.h"
#include "python/src/models/folders.h"
#include "python/src/models/progress.h"
#include "python/src/models/vectors.h"
#include "python/src/modules.h"
#include "python/src/names.h"
#include "python/src/path.h"

namespace multihead::python {
namespace {

using embed::SentenceEncoder;
using models::Encoder;
using models::EncoderConfig;
using models::TokenRows;
using Sequences = std::vector<std::vector<int32_t>>;

void bind_image_encoder(nb::module_& m) {
  using models::ImageEncoder;
  using models::ImageEncoderConfig;
  nb::class_<ImageEncoderConfig> config(
      m, "ImageEncoderConfig",
      "The configuration of an encoder of images: sizes, head ('none', 'classification').");
  config.def_rw("labels", &ImageEncoderConfig::labels);
  bind_config_fields(config, "ImageEncoderConfig");
  nb::class_<ImageEncoder> c(
      m, "ImageEncoder",
      "A vision Transformer (ViT). pixels: [N, channels, image_size, image_size], scaled as the "
      "model\nexpects; an image's results have the same bits in any batch.");
  bind_config(c, &ImageEncoder::config);
  def_op(
      c, "features", "ImageEncoder.features",
      [](const ImageEncoder& model, const Tensor& pixels, Rng* rng) { return model.features(pixels, rng); },
      "pixels"_a, nb::kw_only(), "rng"_a = nb::none(),
      "The last hidden states [N, 1 + patches, E]. With an rng, dropout is active.");
  def_op(
      c, "pooled", "ImageEncoder.pooled",
      [](const ImageEncoder& model, const Tensor& pixels) { return model.pooled(model.features(pixels)); },
      "pixels"_a, "The pooler's output [N, E].");
  def_op(
      c, "logits", "ImageEncoder.logits",
      [](const ImageEncoder& model, const Tensor& pixels, Rng* rng) { return model.logits(pixels, rng); },
      "pixels"_a, nb::kw_only(), "rng"_a = nb::none(), "[N, labels].");
  bind_save(c, &models::save_image_encoder,
            "Writes config.json and model.safetensors as transformers has them.");
  c.def_static(
      "load", [](const Path& folder) { return unlocked([&] { return models::load_image_encoder(folder); }); },
      "folder"_a, "Loads a Hugging Face folder: ViT.");
  m.def(
      "is_image_folder",
      [](const Path& folder) { return unlocked([&] { return models::is_image_folder(folder); }); },
      "folder"_a, "Whether config.json is an ImageEncoder's.");
  bind_packing(c);
  bind_weight(c, "class_token", &ImageEncoder::class_token);
  bind_weight(c, "position_embedding", &ImageEncoder::position_embedding);
  bind_weight(c, "patch_weight", &ImageEncoder::patch_weight);
  bind_weight(c, "patch_bias", &ImageEncoder::patch_bias);
  bind_parts(c, "layers", &ImageEncoder::layers);
  bind_part(c, "final_norm", &ImageEncoder::final_norm);
  bind_part(c, "pooler", &ImageEncoder::pooler);
  bind_part(c, "classifier", &ImageEncoder::classifier);
  bind_module(c, "ImageEncoder");
}

void bind_encoder_parts(nb::class_<Encoder>& c) {
  bind_part(c, "token_embedding", &Encoder::token_embedding);
  bind_part(c, "position_embedding", &Encoder::position_embedding);
  bind_part(c, "type_embedding", &Encoder::type_embedding);
  bind_part(c, "embedding_norm", &Encoder::embedding_norm);
  bind_part(c, "final_norm", &Encoder::final_norm);
  bind_part(c, "embedding_projection", &Encoder::embedding_projection);
  bind_part(c, "relative_bias", &Encoder::relative_bias);
  bind_part(c, "distance_embedding", &Encoder::distance_embedding);
  bind_part(c, "distance_norm", &Encoder::distance_norm);
  bind_parts(c, "layers", &Encoder::layers);
  bind_part(c, "pooler", &Encoder::pooler);
  bind_part(c, "head_dense", &Encoder::head_dense);
  bind_part(c, "head_norm", &Encoder::head_norm);
  bind_weight(c, "head_bias", &Encoder::head_bias);
  bind_part(c, "classifier", &Encoder::classifier);
}

void bind_encoder(nb::module_& m) {
  nb::class_<EncoderConfig> config(m, "EncoderConfig",
                                   "The configuration of an encoder: sizes, positions, head ('none', "
                                   "'masked_lm', 'classification', 'tokens').");
  config.def_rw("labels", &EncoderConfig::labels);
  bind_config_fields(config, "EncoderConfig");
  nb::class_<Encoder> c(m, "Encoder",
                        "An encoder such as BERT. Sequences are lists of token ids of any lengths; nothing "
                        "is padded, and a sequence's\nresults have the same bits in any batch.");
  bind_config(c, &Encoder::config);
  def_op(
      c, "features", "Encoder",
      [](const Encoder& model, const Sequences& sequences, const Sequences& types, Rng* rng) {
        return model.features(TokenRows::of(sequences, types), rng);
      },
      "sequences"_a, "types"_a = Sequences(), nb::kw_only(), "rng"_a = nb::none(),
      "The last hidden states [N, E], sequences concatenated. With an rng, dropout is active.");
  def_op(
      c, "pooled", "Encoder",
      [](const Encoder& model, const Sequences& sequences, const Sequences& types) {
        const TokenRows rows = TokenRows::of(sequences, types);
        return model.pooled(model.features(rows), rows);
      },
      "sequences"_a, "types"_a = Sequences(), "The pooler's output [S, E].");
  def_op(
      c, "logits", "Encoder",
      [](const Encoder& model, const Sequences& sequences, const Sequences& types, Rng* rng) {
        return model.logits(TokenRows::of(sequences, types), rng);
      },
      "sequences"_a, "types"_a = Sequences(), nb::kw_only(), "rng"_a = nb::none(),
      "The head's output: [N, vocab_size], [S, labels] or [N, labels].");
  bind_save(c, &models::save_encoder,
            "Writes config.json and model.safetensors as Hugging Face's family has them.");
  c.def_static(
      "load",
      [](const Path& folder, const std::optional<std::string>& weights, bool packed,
         const std::optional<std::string>& task) {
        std::optional<nn::WeightDtype> dtype;
        if (weights) dtype = kernels::parse_weight_dtype(*weights);
        return unlocked([&] { return models::load_encoder(folder, dtype, packed, task.value_or("")); });
      },
      "folder"_a, "weights"_a = nb::none(), nb::kw_only(), "packed"_a = false, "task"_a = nb::none(),
      "Loads a Hugging Face folder (BERT, RoBERTa, XLM-R, CamemBERT, MPNet, DistilBERT, ELECTRA, ModernBERT, "
      "ALBERT,\nNomic BERT, GTE, T5's encoder) or a GGUF file, whose quantised matrices stay so. weights: "
      "'f32', "
      "or packed for\ninference as pack_weights() does. packed=True: f32 weights are packed, too.\ntask: "
      "with "
      "the adapter of this task merged (Jina Embeddings v3).");
  m.def(
      "is_encoder_folder",
      [](const Path& folder) { return unlocked([&] { return models::is_encoder_folder(folder); }); },
      "folder"_a, "Whether config.json is an Encoder's.");
  bind_packing(c);
  bind_encoder_parts(c);
  bind_adapter(c);
  bind_module(c, "Encoder");
}

// A classifier of texts may have its labels without its encoder.
int64_t label_count(const embed::TextClassifier& classifier) { return classifier.num_labels(); }
template <class Classifier>
int64_t label_count(const Classifier& classifier) {
  return classifier.encoder().config().num_labels;
}

// What every classifier has.
template <class Classifier>
void bind_classifier(nb::class_<Classifier>& c) {
  c.def_static(
      "load",
      [](const Path& folder, const std::string& weights) {
        const nn::WeightDtype dtype = kernels::parse_weight_dtype(weights);
        return unlocked([&] { return Classifier::load(folder, dtype); });
      },
      "folder"_a, "weights"_a = "f32", "weights: 'f32' or what pack_weights() takes.");
  c.def_prop_ro("labels", [](const Classifier& classifier) {
    std::vector<std::string> labels;
    for (int64_t i = 0; i < label_count(classifier); ++i) labels.push_back(classifier.label(i));
    return labels;
  });
  c.def_prop_ro("encoder", &Classifier::encoder, nb::rv_policy::reference_internal);
}

void bind_text_functions(nb::module_& m) {
  def_op(
      m, "label_probabilities", [](const Tensor& logits) { return embed::label_probabilities(logits); },
      "logits"_a, "Softmax of logits [n, labels]; of a single label the logistic function.");
  m.def(
      "fill_mask",
      [](const Encoder& encoder, const text::Tokenizer& tokenizer, const std::string& text, int64_t count) {
        const auto masks = unlocked([&] { return embed::fill_mask(encoder, tokenizer, text, count); });
        nb::list all;
        for (const auto& guesses : masks) {
          nb::list one;
          for (const embed::MaskGuess& guess : guesses) {
            nb::dict d;
            d["score"] = guess.probability, d["token"] = guess.token;
            d["token_str"] = to_str(guess.word), d["sequence"] = to_str(guess.text);
            one.append(d);
          }
          all.append(one);
        }
        return all;
      },
      "encoder"_a, "tokenizer"_a, "text"_a, "count"_a = 5,
      "For each mask of the text the most probable tokens: dicts with score, token, token_str and sequence.");
}

void bind_text_classifier(nb::module_& m) {
  using embed::TextClassifier;
  nb::class_<TextClassifier> c(
      m, "TextClassifier",
      "An encoder with a head for sequences and its tokenizer: labels of texts and of pairs of texts.");
  bind_classifier(c);
  const auto def_logits = [&]<class Texts>(const char* doc, Texts) {
    c.def(
        "logits",
        [](const TextClassifier& classifier, const Texts& texts, int64_t max_length, int64_t batch_tokens,
           nb::object progress) {
          const embed::ClassifyOptions options = {
              .max_length = max_length, .batch_tokens = batch_tokens, .progress = reporter(progress)};
          return unlocked([&] { return classifier.logits(texts, options); });
        },
        "texts"_a, nb::kw_only(), "max_length"_a = 0, "batch_tokens"_a = 1024, "progress"_a = nb::none(),
        doc);
  };
  def_logits("[n, labels] for a list of str; max_length 0: the model's limit.", std::vector<std::string>());
  def_logits(
      "[n, labels] for a list of pairs of str, each in one sequence; max_length 0: the folder's limit.",
      std::vector<embed::TextPair>());
  c.def_prop_ro("max_length", &TextClassifier::max_length);
  def_op(
      c, "scores", "TextClassifier.scores",
      [](const TextClassifier& classifier, const Tensor& logits) { return classifier.scores(logits); },
      "logits"_a,
      "What transformers' text-classification makes of logits [n, labels], by the folder's problem_type: "
      "their softmax,\nthe logistic function of each (multi_label, and of a single label), or themselves "
      "(regression).");
  c.def_prop_ro("has_sigmoid", &TextClassifier::has_sigmoid);
  c.def_prop_ro("tokenizer", &TextClassifier::tokenizer);
  bind_text_functions(m);
}

void bind_image_classifier(nb::module_& m) {
  using embed::ImageClassifier;
  nb::class_<ImageClassifier> c(
      m, "ImageClassifier",
      "An encoder of images with a head, and its folder's preprocessor_config.json; nothing is resized.");
  bind_classifier(c);
  c.def(
      "__init__",
      [](ImageClassifier* self, const models::ImageEncoder& encoder, std::vector<double> mean,
         std::vector<double> deviation, double factor) {
        new (self) ImageClassifier(
            encoder, {.rescale_factor = factor, .mean = std::move(mean), .deviation = std::move(deviation)});
      },
      "encoder"_a, nb::kw_only(), "image_mean"_a = std::vector<double>(),
      "image_std"_a = std::vector<double>(), "rescale_factor"_a = 1.0 / 255,
      "An encoder with a classification head that was trained on (pixel * rescale_factor - image_mean) / "
      "image_std, a number for each channel; empty: .5.");
  c.def(
      "save",
      [](ImageClassifier& classifier, const Path& folder, bool overwrite) {
        unlocked([&] { return classifier.save(folder, overwrite), 0; });
      },
      "folder"_a, nb::kw_only(), "overwrite"_a = false,
      "Writes what load() and transformers read: the model, and preprocessor_config.json.");
  c.def(
      "read",
      [](const ImageClassifier& classifier, const std::vector<Path>& files) {
        return unlocked([&] { return classifier.read({files.begin(), files.end()}); });
      },
      "files"_a,
      "PNG or PPM files as pixels() and logits() take them: [n, channels, size, size] of 0 to 255, resized.");
  const auto def = [&](const char* name, Tensor (ImageClassifier::*call)(const Tensor&) const,
                       const char* doc) {
    c.def(
        name,
        [call](const ImageClassifier& classifier, nb::handle images) {
          const nb::object floats =
              nb::module_::import_("numpy").attr("asarray")(images, "dtype"_a = "float32");
          const Tensor x = to_tensor(floats, {"ImageClassifier", "images"});
          return unlocked([&] { return (classifier.*call)(x); });
        },
        "images"_a, doc);
  };
  def("pixels", &ImageClassifier::pixels,
      "What the model reads: images [n, channels, size, size] of 0 to 255, rescaled and normalised.");
  def("logits", &ImageClassifier::logits, "[n, labels] of images [n, channels, size, size] of 0 to 255.");
  def_op(
      c, "scores", "ImageClassifier.scores",
      [](const ImageClassifier& classifier, const Tensor& logits) { return classifier.scores(logits); },
      "logits"_a, "As TextClassifier.scores().");
}

// Places count characters.
nb::list to_list(const std::vector<embed::Entity>& entities, const std::string& text, const char* label) {
  text::Encoding places;
  for (const embed::Entity& entity : entities) places.offsets.push_back(entity.place);
  places.sequence_ids.assign(entities.size(), 0);
  text::count_characters(places, text);
  nb::list list;
  for (size_t i = 0; i < entities.size(); ++i) {
    const auto [begin, end] = entities[i].place;
    nb::dict d;
    d[label] = entities[i].label, d["score"] = entities[i].score;
    d["word"] = to_str(std::string_view(text).substr(begin, end - begin));
    d["start"] = places.offsets[i].begin, d["end"] = places.offsets[i].end;
    list.append(d);
  }
  return list;
}

void bind_token_classifier(nb::module_& m) {
  using embed::TokenClassifier;
  nb::class_<TokenClassifier> c(
      m, "TokenClassifier",
      "An encoder with a head for tokens and its tokenizer: names, places ... in texts.");
  bind_classifier(c);
  c.def(
      "entities",
      [](const TokenClassifier& classifier, const std::vector<std::string>& texts, const std::string& how,
         const std::vector<std::string>& ignore_labels, int64_t max_length, int64_t batch_tokens,
         nb::object progress, int64_t stride) {
        const embed::EntityOptions options = {
            .aggregation = to_enum<embed::Aggregation>(how, "aggregation_strategy"),
            .ignored = ignore_labels,
            .max_length = max_length,
            .stride = stride,
            .batch_tokens = batch_tokens,
            .progress = reporter(progress)};
        const auto found = unlocked([&] { return classifier.entities(texts, options); });
        nb::list all;
        const bool is_grouped = options.aggregation != embed::Aggregation::none;
        const char* label = is_grouped ? "entity_group" : "entity";
        for (size_t i = 0; i < texts.size(); ++i) all.append(to_list(found[i], texts[i], label));
        return all;
      },
      "texts"_a, nb::kw_only(), "aggregation_strategy"_a = "simple",
      "ignore_labels"_a = std::vector<std::string>{"O"}, "max_length"_a = 0, "batch_tokens"_a = 1024,
      "progress"_a = nb::none(), "stride"_a = 0,
      "For each text its entities, as transformers' token-classification pipeline finds them: dicts with "
      "entity_group,\nscore, start and end (characters), and word, the text there. aggregation_strategy: "
      "'none' (every token, as\nentity), 'simple', or by words 'first', 'average', 'max'. stride: long texts "
      "are read in windows with this many\ntokens in common; 0: cut.");
  c.def_prop_ro("tokenizer", &TokenClassifier::tokenizer);
}

void bind_sentence_encoder(nb::module_& m) {
  nb::class_<SentenceEncoder>(m, "TextEncoder", "What multihead.SentenceEncoder is made of.")
      .def_static(
          "load",
          [](const Path& folder, const std::optional<std::string>& weights,
             const std::optional<std::string>& pooling) {
            std::optional<nn::WeightDtype> dtype;
            if (weights) dtype = kernels::parse_weight_dtype(*weights);
            SentenceEncoder encoder = unlocked([&] { return SentenceEncoder::load(folder, dtype); });
            if (pooling) encoder.set_pooling(to_enum<embed::Pooling>(*pooling, "pooling"));
            return encoder;
          },
          "folder"_a, "weights"_a = nb::none(), "pooling"_a = nb::none())
      .def(
          "route",
          [](const SentenceEncoder& encoder, const std::string& task) {
            return unlocked([&] { return encoder.route(task); });
          },
          "task"_a)
      .def_static(
          "has_routes", [](const Path& folder) { return embed::has_routes(folder); }, "folder"_a)
      .def(
          "encode",
          [](const SentenceEncoder& encoder, const std::vector<std::string>& texts,
             const std::optional<std::string>& prompt, const std::string& prompt_name,
             std::optional<bool> normalize, int64_t truncate_dim, int64_t batch_tokens, nb::handle precision,
             nb::object progress) {
            const embed::EncodeTextOptions options = {.prompt = prompt,
                                                      .prompt_name = prompt_name,
                                                      .normalize = normalize,
                                                      .truncate_dim = truncate_dim,
                                                      .batch_tokens = batch_tokens,
                                                      .precision = to_dtype(precision),
                                                      .progress = reporter(progress)};
            return unlocked([&] { return encoder.encode(texts, options); });
          },
          "texts"_a, nb::kw_only(), "prompt"_a = nb::none(), "prompt_name"_a = "", "normalize"_a = nb::none(),
          "truncate_dim"_a = 0, "batch_tokens"_a = 1024, "precision"_a = "float32", "progress"_a = nb::none())
      .def_prop_ro("dim", &SentenceEncoder::dim)
      .def_prop_ro("max_length", &SentenceEncoder::max_length)
      .def_prop_ro("prompts", &SentenceEncoder::prompts)
      .def_prop_ro("default_prompt_name", &SentenceEncoder::default_prompt_name)
      .def_prop_ro("truncate_dim", &SentenceEncoder::truncate_dim)
      .def_prop_ro("similarity_fn_name", &SentenceEncoder::similarity_fn_name)
      .def_prop_ro("model",
                   [](nb::handle self) {
                     const auto part = [&](const auto& model) {
                       return nb::cast(&model, nb::rv_policy::reference_internal, self);
                     };
                     return std::visit(part, nb::cast<const SentenceEncoder&>(self).model().any());
                   })
      .def_prop_ro("tokenizer", &SentenceEncoder::tokenizer);
}

}  // namespace

void bind_embed(nb::module_& m) {
  bind_encoder(m);
  bind_sentence_encoder(m);
  bind_text_classifier(m);
  bind_image_encoder(m);
  bind_image_classifier(m);
  bind_token_classifier(m);
  bind_vectors(m);
}

}  // namespace multihead::python
