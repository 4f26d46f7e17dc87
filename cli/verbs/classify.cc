// multihead classify, multihead rerank, multihead fill-mask
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/image_classifier.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/embed/token_classifier.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/shape.h"

namespace multihead::cli {
namespace {

using embed::TextClassifier;

// The places of the largest values, largest first, of equal ones the first.
std::vector<int64_t> best_of(std::span<const float> values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int64_t i) { return values[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return at(a) > at(b); });
  order.resize(static_cast<size_t>(std::min(count, std::ssize(order))));
  return order;
}

// The base of classify and rerank.
struct ClassifyFlags {
  std::string folder, data;
  text::TableFormat format = text::TableFormat::by_name;
  embed::ClassifyOptions options;
  std::string weights = "f32";

  void declare(Flags& flags) {
    flags.positional("DIR", folder, "encoder's folder with a head");
    flags.text("data", "FILE", data, "texts: one per line, or columns of a table; -: stdin (required)");
    declare_format(flags, format);
    flags.integer("max-length", options.max_length,
                  "truncate texts to this many tokens (0: the folder's limit)");
    flags.integer("batch-tokens", options.batch_tokens, "tokens per batch; affects memory, not results",
                  {.least = 1});
    declare_weights(flags, weights, false);
  }
  TextClassifier load() const {
    return reading([&] { return TextClassifier::load(folder, kernels::parse_weight_dtype(weights)); });
  }
  template <class Texts>
  Tensor logits(const TextClassifier& classifier, const Texts& texts, bool is_quiet) {
    TextMeter meter(is_quiet);
    options.progress = [&](int64_t done, int64_t total) { meter(done, total); };
    const Tensor logits = classifier.logits(texts, options);
    for (const float logit : logits.to_vector<float>()) check_number(folder, "a logit", logit);
    return logits;
  }
};

class Classify : public Verb {
 public:
  Classify()
      : Verb("classify", "classify texts or images, or find the entities in texts",
             {{"multihead classify model --data texts.txt",
               "a label, its probability and the text on each line"},
              {"echo \"I like it\" | multihead classify model --data - --top 3 --json",
               "the three best, as JSON"},
              {"multihead classify tagger --data texts.txt --json",
               "a token classification model: names, places ... and their positions"},
              {"multihead classify vit --image cat.png dog.ppm", "images (ViT)"}}) {}

  void declare(Flags& flags) override {
    flags_.declare(flags);
    flags.texts("image", "FILE", images_, "PNG or binary PPM files, for image models");
    flags.integer("top", top_, "labels to show for each text or image", {.least = 1});
    flags.choice("aggregate", aggregate_, word_list<embed::Aggregation>(),
                 "token classification: how tokens are grouped into entities, as in transformers");
    flags.integer(
        "stride", stride_,
        "token classification: read long texts in windows with this many tokens in common (0: cut)");
  }

  int run(const CommonOptions& common) override {
    if (flags_.data.empty() == images_.empty())
      throw UsageError("--data FILE or --image FILE is required; see multihead classify --help");
    if (stride_ > 0 && aggregate_ == "none") throw UsageError("--stride needs --aggregate, which is none");
    if (!images_.empty()) {
      use_only("images", {"image", "top", "weights"});
      return classify_images(common);
    }
    const models::EncoderHead head = reading([&] { return models::encoder_head(flags_.folder); });
    const bool reads_tokens = head == models::EncoderHead::tokens;
    if (!reads_tokens && !embed::is_text_classifier(flags_.folder)) {
      throw InputError(concat(printable(flags_.folder),
                              ": expected a sequence or token classification head, got ", word_of(head)));
    }
    if (!reads_tokens) {
      use_only("a classifier of texts", {"data", "format", "max-length", "batch-tokens", "weights", "top"});
      return classify_texts(flags_.load(), common);
    }
    use_only("a tagger", {"data", "format", "max-length", "batch-tokens", "weights", "aggregate", "stride"});
    const auto weights = kernels::parse_weight_dtype(flags_.weights);
    return find_entities(reading([&] { return embed::TokenClassifier::load(flags_.folder, weights); }),
                         common);
  }

 private:
  int classify_texts(const TextClassifier& classifier, const CommonOptions& common) {
    const text::LabelledTexts texts = texts_of(flags_.data, flags_.format);
    if (texts.seconds.empty()) {
      show(classifier, flags_.logits(classifier, texts.texts, common.quiet), texts.texts, "text", common);
      return kDone;
    }
    std::vector<embed::TextPair> pairs;
    std::vector<std::string> shown;
    for (size_t i = 0; i < texts.texts.size(); ++i) {
      pairs.emplace_back(texts.texts[i], texts.seconds[i]);
      shown.push_back(texts.texts[i] + "\t" + texts.seconds[i]);
    }
    show(classifier, flags_.logits(classifier, pairs, common.quiet), shown, "text", common);
    return kDone;
  }

  int classify_images(const CommonOptions& common) const {
    const auto classifier = reading([&] {
      return embed::ImageClassifier::load(flags_.folder, kernels::parse_weight_dtype(flags_.weights));
    });
    std::vector<Tensor> rows;
    for (const std::string& path : images_) {
      reading([&] { return FileReader(path).size(); });
      rows.push_back(classifier.logits(classifier.read({path})));
    }
    show(classifier, concat(rows, 0), images_, "image", common);
    return kDone;
  }

  int find_entities(const embed::TokenClassifier& classifier, const CommonOptions& common) const {
    const text::LabelledTexts read = texts_of(flags_.data, flags_.format);
    if (!read.seconds.empty())
      throw InputError(concat(flags_.data, ": it holds pairs of texts, expected single texts"));
    const std::vector<std::string>& texts = read.texts;
    TextMeter meter(common.quiet);
    const embed::EntityOptions options = {
        .aggregation = *value_of<embed::Aggregation>(aggregate_),
        .max_length = flags_.options.max_length,
        .stride = stride_,
        .batch_tokens = flags_.options.batch_tokens,
        .progress = [&](int64_t done, int64_t total) { meter(done, total); }};
    const auto found = with_weights_of(flags_.folder, [&] { return classifier.entities(texts, options); });
    for (size_t i = 0; i < texts.size(); ++i) {
      common.json ? put_entities(texts[i], found[i]) : print_entities(read.lines[i], texts[i], found[i]);
    }
    return kDone;
  }

  template <class Classifier>
  void show(const Classifier& classifier, const Tensor& logits, const std::vector<std::string>& inputs,
            const char* kind, const CommonOptions& common) const {
    const Tensor scores = classifier.scores(logits);
    const auto labels = static_cast<size_t>(classifier.num_labels());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::span row(scores.data<float>() + i * labels, labels);
      Json list = Json::array();
      for (const int64_t label : best_of(row, top_)) {
        const float score = row[static_cast<size_t>(label)];
        list.push_back(Json::object({{"label", classifier.label(label)}, {"score", score}}));
        if (!common.json) fmt::print("{:.3f}  {}  ", score, printable(classifier.label(label)));
      }
      if (common.json) {
        put_json(Json::object({{kind, valid_utf8(inputs[i])}, {"labels", list}}), -1);
      } else {
        fmt::print("{}\n", printable(inputs[i]));
        flush_output();
      }
    }
  }

  static std::string word_at(const std::string& text, text::Offsets place) {
    return text.substr(place.begin, place.end - place.begin);
  }
  static void print_entities(int64_t line, const std::string& text,
                             const std::vector<embed::Entity>& entities) {
    for (const embed::Entity& entity : entities) {
      fmt::print("{:>6}  {:.3f}  {}  {}\n", line, entity.score, printable(entity.label),
                 printable(word_at(text, entity.place)));
    }
    flush_output();
  }
  static void put_entities(const std::string& text, const std::vector<embed::Entity>& entities) {
    Json list = Json::array();
    for (const embed::Entity& entity : entities) {
      list.push_back(Json::object({{"label", entity.label},
                                   {"score", entity.score},
                                   {"word", valid_utf8(word_at(text, entity.place))},
                                   {"begin", static_cast<int64_t>(entity.place.begin)},
                                   {"end", static_cast<int64_t>(entity.place.end)}}));
    }
    put_json(Json::object({{"text", valid_utf8(text)}, {"entities", list}}), -1);
  }

  ClassifyFlags flags_;
  std::vector<std::string> images_;
  std::string aggregate_ = "simple";
  int64_t top_ = 1, stride_ = 0;
};

class Rerank : public Verb {
 public:
  Rerank()
      : Verb("rerank", "rank lines by how well they answer a query",
             {{"multihead rerank model --data found.txt --query \"a question\"",
               "the five best lines, scored together with the query (cross-encoder)"}}) {}

  void declare(Flags& flags) override {
    flags_.declare(flags);
    flags.text("query", "TEXT", query_, "query (required)");
    flags.integer("top", top_, "lines to show", {.least = 1});
  }

  int run(const CommonOptions& common) override {
    if (flags_.data.empty() || query_.empty())
      throw UsageError("--data FILE and --query TEXT are required; see multihead rerank --help");
    const TextClassifier classifier = flags_.load();
    if (classifier.num_labels() != 1) {
      throw UsageError(concat("rerank needs a model with one label, this one has ", classifier.num_labels(),
                              "; use multihead classify"));
    }
    const text::LabelledTexts data = single_texts_of(flags_.data, flags_.format);
    const std::vector<std::string>& texts = data.texts;
    std::vector<embed::TextPair> pairs;
    pairs.reserve(texts.size());
    for (const std::string& text : texts) pairs.emplace_back(query_, text);
    const Tensor logits = flags_.logits(classifier, pairs, common.quiet);
    const Tensor scores = classifier.has_sigmoid() ? embed::label_probabilities(logits) : logits;
    const std::span row(scores.data<float>(), texts.size());
    Json matches = Json::array();
    for (const int64_t best : best_of(row, top_)) {
      const auto at = static_cast<size_t>(best);
      if (common.json) {
        matches.push_back(
            Json::object({{"line", data.lines[at]}, {"score", row[at]}, {"text", valid_utf8(texts[at])}}));
      } else {
        fmt::print("{:.3f}  {:>6}  {}\n", row[at], data.lines[at], printable(texts[at]));
      }
    }
    if (common.json) put_json(Json::object({{"query", valid_utf8(query_)}, {"matches", matches}}), -1);
    flush_output();
    return kDone;
  }

 private:
  ClassifyFlags flags_;
  std::string query_;
  int64_t top_ = 5;
};

class FillMask : public Verb {
 public:
  FillMask()
      : Verb("fill-mask", "predict masked words",
             {{"multihead fill-mask model --text \"Paris is the [MASK] of France.\"",
               "the five most probable words for each mask"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "encoder's folder with a masked_lm head");
    flags.text("text", "TEXT", text_, "a text with [MASK] or <mask>; -: stdin (required)");
    flags.integer("top", top_, "words to show for each mask", {.least = 1});
  }

  int run(const CommonOptions& common) override {
    if (text_.empty()) throw UsageError("--text TEXT is required; see multihead fill-mask --help");
    const auto model = reading([&] { return models::load_encoder(folder_); });
    const auto tokenizer = reading([&] { return text::Tokenizer::load(models::tokenizer_folder(folder_)); });
    Json masks = Json::array();
    for (const auto& guesses : embed::fill_mask(model, tokenizer, text_or_stdin(text_), top_)) {
      Json list = Json::array();
      for (const embed::MaskGuess& guess : guesses) {
        if (common.json) {
          list.push_back(Json::object({{"score", guess.probability},
                                       {"token", guess.token},
                                       {"word", valid_utf8(guess.word)},
                                       {"text", valid_utf8(guess.text)}}));
        } else {
          fmt::print("{:.3f}  {:<14}  {}\n", guess.probability, printable(guess.word), printable(guess.text));
        }
      }
      masks.push_back(std::move(list));
    }
    if (common.json) put_json(Json::object({{"masks", masks}}), -1);
    flush_output();
    return kDone;
  }

 private:
  std::string folder_, text_;
  int64_t top_ = 5;
};

}  // namespace

std::unique_ptr<Verb> make_classify() { return std::make_unique<Classify>(); }
std::unique_ptr<Verb> make_rerank() { return std::make_unique<Rerank>(); }
std::unique_ptr<Verb> make_fill_mask() { return std::make_unique<FillMask>(); }

}  // namespace multihead::cli
