#include "multihead/embed/text_classifier.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/embed/batches-inl.h"
#include "multihead/embed/classifiers-inl.h"
#include "multihead/embed/modules/folder-inl.h"
#include "multihead/embed/modules/modules-inl.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"

namespace multihead::embed {
namespace {

// Where sentence-transformers keeps the name of a torch class, and where it has kept it.
std::optional<bool> read_sigmoid(const std::string& folder) {
  const Json config = detail::read_json(folder, "config.json");
  const Json own = detail::read_json(folder, "config_sentence_transformers.json");
  const Json* nested = detail::find_value(config, "sentence_transformers");
  for (const Json* name : {detail::find_value(own, "activation_fn"),
                           nested == nullptr ? nullptr : detail::find_value(*nested, "activation_fn"),
                           detail::find_value(config, "sbert_ce_default_activation_function")}) {
    if (name == nullptr || !name->is_string()) continue;
    const std::string& word = name->as_string();
    const bool is_sigmoid = word.ends_with(".Sigmoid");
    MH_CHECK(is_sigmoid || word.ends_with(".Identity"), FormatError, folder,
             ": activation_fn must be Sigmoid or Identity, got ", quote(word));
    return is_sigmoid;
  }
  return {};
}

}  // namespace

std::string pair_prompt(const std::string& folder) {
  const Json config = detail::read_json(folder, "config_sentence_transformers.json");
  const Json* type = detail::find_value(config, "model_type");
  if (type == nullptr || *type != Json("CrossEncoder")) return {};
  return detail::read_prompts(folder, {"CrossEncoder"}).resolve("TextClassifier", {}, "");
}

bool has_linear_head(const std::string& folder) {
  const Json modules = detail::read_json(folder, "modules.json"),
             config = detail::read_json(folder, "config.json");
  const Json* labels = detail::find_value(config, "id2label");
  if (labels == nullptr || !labels->is_object() || !modules.is_array() || modules.size() < 2) return false;
  const Json& last = modules.items().back();
  const Json *type = detail::find_value(last, "type"), *path = detail::find_value(last, "path");
  if (type == nullptr || path == nullptr || !type->is_string() || !path->is_string()) return false;
  if (!type->as_string().ends_with(".Dense")) return false;
  const Json dense = detail::read_json(folder, (path->as_string() + "/config.json").c_str());
  const Json *count = detail::find_value(dense, "out_features"),
             *function = detail::find_value(dense, "activation_function");
  return count != nullptr && *count == Json(static_cast<int64_t>(labels->size())) && function != nullptr &&
         function->is_string() && function->as_string().ends_with(".Identity");
}

bool is_text_classifier(const std::string& folder) {
  return has_linear_head(folder) || (models::is_encoder_folder(folder) &&
                                     models::encoder_head(folder) == models::EncoderHead::classification);
}

namespace {

// Labels and problem_type of an encoder's config.json, which are read where there is a head.
models::EncoderConfig labels_of_config(const std::string& folder) {
  Json config = detail::read_json(folder, "config.json");
  const Json* classes = detail::find_value(config, "architectures");
  const std::string stem =
      classes != nullptr && classes->is_array() && classes->size() > 0 && classes->at(size_t{0}).is_string()
          ? classes->at(size_t{0}).as_string()
          : "";
  MH_CHECK(stem.ends_with("Model"), FormatError, folder,
           "/config.json: architectures must name an encoder, such as BertModel, got ", quote(stem, 60));
  config["architectures"] =
      Json(std::vector<Json>{stem.substr(0, stem.size() - 5) + "ForSequenceClassification"});
  return models::encoder_config_from_json(config, folder + "/config.json");
}

}  // namespace

TextClassifier::TextClassifier(SentenceEncoder embedder, const models::EncoderConfig& labels)
    : encoder_(embedder.encoder()),
      tokenizer_(embedder.tokenizer()),
      max_length_(embedder.max_length()),
      text_length_(max_length_),
      embedder_(std::move(embedder)),
      num_labels_(labels.num_labels),
      problem_type_(labels.problem_type),
      labels_(labels.labels) {}

TextClassifier TextClassifier::load(const std::string& folder, nn::WeightDtype weights) {
  if (has_linear_head(folder)) {
    return {SentenceEncoder::load(folder, weights), labels_of_config(folder)};
  }
  models::Encoder encoder = models::load_encoder(folder, weights, true);
  MH_CHECK(encoder.config().head == models::EncoderHead::classification, ValueError, folder,
           ": expected a sequence classification head (...ForSequenceClassification), got ",
           word_of(encoder.config().head));
  const int64_t length = detail::read_max_length(folder, encoder.config().context);
  TextClassifier loaded(std::move(encoder), text::Tokenizer::load(models::tokenizer_folder(folder)), length);
  detail::check_transformer(folder, loaded.tokenizer_, "sequence-classification");
  const std::vector<detail::Module> modules = detail::read_modules(folder);
  MH_CHECK(modules.size() == 1, FormatError, folder, "/modules.json: ", quote(modules.back().kind, 80),
           " is not supported in a cross-encoder; supported is a Transformer alone");
  loaded.text_length_ = detail::read_tokenizer_length(folder, loaded.encoder_.config().context);
  loaded.sigmoid_ = read_sigmoid(folder);
  loaded.prompt_ = pair_prompt(folder);
  return loaded;
}

TextClassifier::TextClassifier(models::Encoder encoder, text::Tokenizer tokenizer, int64_t max_length)
    : encoder_(std::move(encoder)),
      tokenizer_(std::move(tokenizer)),
      max_length_(detail::length_limit("TextClassifier", max_length, encoder_.config().context)),
      text_length_(max_length_),
      num_labels_(encoder_.config().num_labels),
      problem_type_(encoder_.config().problem_type),
      labels_(encoder_.config().labels) {
  MH_CHECK(encoder_.config().head == models::EncoderHead::classification, ValueError,
           "TextClassifier: expected a sequence classification head, got ", word_of(encoder_.config().head));
}

text::Encoding TextClassifier::tokens(const std::string& text, int64_t max_length) const {
  if (embedder_) return {embedder_->tokens(text, max_length), {}};
  return {tokenizer_.encode(text, {.parse_special = true, .max_length = static_cast<size_t>(max_length)}),
          {}};
}

text::Encoding TextClassifier::tokens(const TextPair& pair, int64_t max_length) const {
  text::Encoding ids =
      tokenizer_.encode_pair(prompt_ + pair.first, pair.second,
                             {.parse_special = true, .max_length = static_cast<size_t>(max_length)});
  if (encoder_.config().token_types <= 1) ids.type_ids.clear();
  return ids;
}

Tensor TextClassifier::logits(int64_t count, int64_t limit, const ClassifyOptions& options,
                              const std::function<text::Encoding(size_t, int64_t)>& encode) const {
  if (options.max_length != 0) {
    limit = detail::length_limit("TextClassifier", options.max_length, encoder_.config().context);
  }
  const NoTape silent;
  Tensor out = Tensor::empty({count, num_labels()}, Dtype::f32);
  each_batch(
      count, options.batch_tokens, options.progress,
      [&](int64_t i) { return encode(static_cast<size_t>(i), limit); },
      [&](const models::TokenRows& rows, int64_t first) {
        const Tensor part = encoder_.logits(rows);
        std::copy_n(part.data<float>(), part.numel(), out.data<float>() + first * num_labels());
      });
  return out;
}

Tensor TextClassifier::logits(std::span<const std::string> texts, const ClassifyOptions& options) const {
  if (embedder_) {
    return embedder_->encode(texts, {.max_length = options.max_length,
                                     .batch_tokens = options.batch_tokens,
                                     .progress = options.progress});
  }
  return logits(std::ssize(texts), text_length_, options,
                [&](size_t i, int64_t limit) { return tokens(texts[i], limit); });
}

Tensor TextClassifier::logits(std::span<const TextPair> pairs, const ClassifyOptions& options) const {
  MH_CHECK(!embedder_ || pairs.empty(), ValueError,
           "TextClassifier: its head reads the vectors of single texts, not pairs");
  if (pairs.empty()) return Tensor::empty({0, num_labels()}, Dtype::f32);
  return logits(std::ssize(pairs), max_length_, options,
                [&](size_t i, int64_t limit) { return tokens(pairs[i], limit); });
}

std::string TextClassifier::label(int64_t index) const { return detail::label_name(labels_, index); }

Tensor TextClassifier::scores(const Tensor& logits) const {
  return label_probabilities(logits, problem_type_);
}

Tensor label_probabilities(const Tensor& logits, models::ProblemType problem_type) {
  using enum models::ProblemType;
  if (problem_type == regression) return logits;
  if (problem_type != multi_label && logits.size(-1) != 1) return softmax(logits);
  Tensor out = Tensor::empty(logits.shape(), Dtype::f32);
  for (int64_t i = 0; i < logits.numel(); ++i) {
    out.data<float>()[i] = 1 / (1 + std::exp(-logits.data<float>()[i]));
  }
  return out;
}

std::vector<std::vector<MaskGuess>> fill_mask(const models::Encoder& encoder,
                                              const text::Tokenizer& tokenizer, const std::string& text,
                                              int64_t count) {
  const models::EncoderConfig& config = encoder.config();
  MH_CHECK(config.head == models::EncoderHead::masked_lm, ValueError,
           "fill_mask: expected a masked_lm head (...ForMaskedLM), got ", word_of(config.head));
  MH_CHECK(count > 0, ValueError, "fill_mask: count must be positive, got ", count);
  std::optional<int32_t> mask = tokenizer.id("[MASK]");
  if (!mask) mask = tokenizer.id("<mask>");
  MH_CHECK(mask.has_value(), ValueError, "fill_mask: the tokenizer has no token [MASK] or <mask>");
  std::vector<int32_t> ids = tokenizer.encode(text, {.parse_special = true});
  MH_CHECK(std::find(ids.begin(), ids.end(), *mask) != ids.end(), ValueError, "fill_mask: the text has no ",
           tokenizer.token(*mask));
  const NoTape silent;
  const Tensor logits = encoder.logits(models::TokenRows::of({&ids, 1}));
  std::vector<std::vector<MaskGuess>> found;
  for (int64_t at = 0; at < std::ssize(ids); ++at) {
    int32_t& place = ids[static_cast<size_t>(at)];
    if (place != *mask) continue;
    const Tensor row = softmax(slice(logits, 0, at, at + 1));
    const float* p = row.data<float>();
    std::vector<int32_t> order(static_cast<size_t>(row.numel()));
    std::iota(order.begin(), order.end(), 0);
    const auto kept = order.begin() + std::min(count, std::ssize(order));
    std::partial_sort(order.begin(), kept, order.end(),
                      [&](int32_t a, int32_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
    std::vector<MaskGuess>& guesses = found.emplace_back();
    for (auto token = order.begin(); token != kept; ++token) {
      place = *token;
      guesses.push_back(
          {*token, p[*token], tokenizer.decode({&*token, 1}), tokenizer.decode(ids, {.skip_special = true})});
    }
    place = *mask;
  }
  return found;
}

}  // namespace multihead::embed
