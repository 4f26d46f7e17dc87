// multihead search
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verb.h"
#include "cli/verbs/embed_flags.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/vector_index.h"
#include "multihead/io/json.h"
#include "multihead/io/npy.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::cli {
namespace {

using embed::MultiVectorEncoder;
using embed::SentenceEncoder;
using embed::Similarity;
using embed::TextTask;

class Search : public Verb {
 public:
  Search()
      : Verb("search", "find the lines of a file nearest in meaning to a query",
             {{"multihead search model --data texts.txt --query \"a question\"", "the five nearest lines"},
              {"multihead search model --data texts.txt --index texts.npy",
               "saves the vectors of the lines; reads queries from stdin, one per line"}}) {}

  void declare(Flags& flags) override {
    flags_.declare(flags);
    flags.text("data", "FILE", data_, "texts: one per line, or a column of a table (required)");
    declare_format(flags, format_);
    flags.text(
        "index", "FILE", index_,
        "FILE.npy with their vectors, beside FILE.npy.json, what they were made from; created if missing");
    flags.text("query", "TEXT", query_, "query (default: each line of stdin)");
    flags.choice("compress", compress_, words_after<embed::IndexKind>("none"),
                 "search 8 bits or the signs of each number of dense vectors first, and rank by 8 bits");
    flags.integer("top", top_, "lines to show", {.least = 1});
  }

  int run(const CommonOptions& common) override {
    if (data_.empty()) throw UsageError("--data FILE is required; see multihead search --help");
    if (!index_.empty() && !index_.ends_with(".npy"))
      throw UsageError(concat("--index must end in .npy, got ", quote(index_)));
    const AnyEncoder loaded = flags_.load("document");
    const std::optional<AnyEncoder> of_documents = flags_.encoder_of_documents(loaded);
    const std::optional<AnyEncoder> of_queries = flags_.encoder_of_queries(loaded);
    const AnyEncoder &encoder = of_documents ? *of_documents : loaded,
                     &asking = of_queries ? *of_queries : loaded;
    const auto* dense = std::get_if<SentenceEncoder>(&encoder);
    if (dense == nullptr && (!index_.empty() || compress_ != "none"))
      throw UsageError("--index and --compress are for dense vectors");
    similarity_ = reading([&] { return similarity_of(encoder); });
    if (similarity_ == Similarity::cosine && dense != nullptr) flags_.options.normalize = true;
    if (compress_ != "none" && similarity_ == Similarity::manhattan)
      throw UsageError("--compress cannot find by manhattan distances, by which the folder compares vectors");
    const text::LabelledTexts data = single_texts_of(data_, format_);
    if (data.texts.empty()) throw InputError(concat(data_, ": there are no lines to search"));
    const AnyVectors corpus = vectors_of(encoder, data, common.quiet);
    if (const auto kind = value_of<embed::IndexKind>(compress_))
      compressed_.emplace(std::get<Tensor>(corpus), *kind);
    if (!query_.empty()) {
      show(asking, corpus, data, query_, common.json);
    } else {
      for (std::string line; read_line(line);) show(asking, corpus, data, line, common.json);
    }
    return kDone;
  }

 private:
  static Similarity similarity_of(const AnyEncoder& any) {
    const auto own = [](const auto& encoder) {
      if constexpr (std::is_same_v<std::decay_t<decltype(encoder)>, MultiVectorEncoder>) {
        return Similarity::dot;  // of MaxSim
      } else {
        return encoder.similarity();
      }
    };
    return std::visit(own, any);
  }

  AnyVectors vectors_of(const AnyEncoder& any, const text::LabelledTexts& data, bool is_quiet) {
    const std::vector<std::string>& texts = data.texts;
    const auto* encoder = std::get_if<SentenceEncoder>(&any);
    if (!index_.empty() && std::filesystem::exists(index_)) return held_vectors(*encoder, data, is_quiet);
    if (!index_.empty()) IndexRecord::check_vacant(index_);
    std::optional<io::NpyWriter> file;  // before the work: where it cannot be written, none is done
    if (!index_.empty()) file.emplace(index_, std::ssize(texts), encoder->width(flags_.options));
    TextMeter meter(is_quiet);
    AnyVectors made = flags_.encode(any, texts, TextTask::document, std::ref(meter));
    if (!file) return made;
    IndexRecord record = flags_.record_of(texts);
    record.add(std::get<Tensor>(made)), record.save(index_);
    file->add(std::get<Tensor>(made)), file->commit();
    return made;
  }

  Tensor held_vectors(const SentenceEncoder& encoder, const text::LabelledTexts& data, bool is_quiet) const {
    const std::vector<std::string>& texts = data.texts;
    const int64_t width = encoder.width(flags_.options);
    Tensor held = reading([&] { return io::load_npy(index_); });
    IndexRecord record = flags_.record_of(texts);
    record.add(held);
    if (!record.check(index_) && !is_quiet) {
      std::fputs(
          concat("note: ", printable(index_), " has no ", printable(index_),
                 ".json, what it was made from: only the first, middle, last and longest line are compared\n")
              .c_str(),
          stderr);
    }
    if (held.size(0) != std::ssize(texts) || held.size(1) != width) {
      throw InputError(concat(index_, ": holds ", held.size(0), " x ", held.size(1), ", expected ",
                              texts.size(), " x ", width,
                              " for this model and file; delete it to recreate it"));
    }
    check_finite(held);
    // `embed` may have written it without --normalize.
    if (similarity_ == Similarity::cosine) held = embed::normalized_rows(held);
    check_rows(encoder, data, held);
    return held;
  }

  void check_finite(const Tensor& held) const {
    const int64_t width = held.size(1);
    for (int64_t i = 0; i < held.numel(); ++i) {
      if (std::isfinite(held.data<float>()[i])) continue;
      throw InputError(
          concat(index_, ": row ", i / width + 1, " holds NaN or Inf; delete the file to recreate it"));
    }
  }

  // An index by another model, or without a record of other lines, finds nonsense. Instruction sets move vectors by
  // less, in f32 by much less.
  void check_rows(const SentenceEncoder& encoder, const text::LabelledTexts& data, const Tensor& held) const {
    const std::vector<std::string>& texts = data.texts;
    const double slack = flags_.precision == "f32" ? 1e-5 : 1e-3;
    // The longest line is cut where the model's length has changed.
    const auto longest = std::ranges::max_element(texts, {}, &std::string::size);
    for (const size_t at : std::set<size_t>{0, texts.size() / 2, texts.size() - 1,
                                            static_cast<size_t>(longest - texts.begin())}) {
      const Tensor made = encoder.encode(std::span(&texts[at], 1), flags_.options);
      const float* row = held.data<float>() + static_cast<int64_t>(at) * held.size(1);
      const auto product = [&](const float* a, const float* b) {
        return std::inner_product(a, a + held.size(1), b, 0.0);
      };
      const double size = std::sqrt(product(row, row)),
                   expected = std::sqrt(product(made.data<float>(), made.data<float>())),
                   cosine = product(row, made.data<float>()) / (size * expected);
      if (size == 0 && expected == 0) continue;  // a line without tokens
      if (!(cosine >= 1 - slack) || !(std::abs(size - expected) <= 10 * slack * expected)) {
        throw InputError(concat(index_, ": row ", at + 1, " is not the vector of line ", data.lines[at],
                                " of ", data_, " (cosine ", cosine, ", length ", size, ", not ", expected,
                                "); delete it to recreate it"));
      }
    }
  }

  std::vector<embed::Match> matches_of(const AnyVectors& query, const AnyVectors& corpus) const {
    if (compressed_) return compressed_->nearest(std::get<Tensor>(query), top_, similarity_).front();
    const auto among = [&](const auto& texts) {
      using Vectors = std::decay_t<decltype(texts)>;
      if constexpr (std::is_same_v<Vectors, embed::MultiVectors>) {
        return embed::nearest(std::get<Vectors>(query), texts, top_).front();
      } else {
        return embed::nearest(std::get<Vectors>(query), texts, top_, similarity_).front();
      }
    };
    return std::visit(among, corpus);
  }

  // What scores are divided by to be shown.
  static float scale_of(const AnyEncoder& encoder, const AnyVectors& query) {
    const auto* multi = std::get_if<MultiVectorEncoder>(&encoder);
    if (multi == nullptr || !multi->has_mean_max_sim()) return 1;
    return static_cast<float>(std::get<embed::MultiVectors>(query).vectors.size(0));
  }

  void show(const AnyEncoder& encoder, const AnyVectors& corpus, const text::LabelledTexts& data,
            const std::string& query, bool as_json) {
    const AnyVectors vector = flags_.encode(encoder, std::span(&query, 1), TextTask::query);
    Json matches = Json::array();
    for (embed::Match match : matches_of(vector, corpus)) {
      match.score /= scale_of(encoder, vector);
      const std::string& text = data.texts[static_cast<size_t>(match.row)];
      const int64_t line = data.lines[static_cast<size_t>(match.row)];
      if (as_json) {
        matches.push_back(Json::object({{"line", line}, {"score", match.score}, {"text", valid_utf8(text)}}));
      } else {
        fmt::print("{:.3f}  {:>6}  {}\n", match.score, line, printable(text));
      }
    }
    if (as_json) put_json(Json::object({{"query", valid_utf8(query)}, {"matches", matches}}), -1);
    flush_output();
  }

  EmbedFlags flags_;
  std::string data_, index_, query_, compress_ = "none";
  Similarity similarity_ = Similarity::cosine;
  std::optional<embed::VectorIndex> compressed_;
  text::TableFormat format_ = text::TableFormat::by_name;
  int64_t top_ = 5;
};

}  // namespace

std::unique_ptr<Verb> make_search() { return std::make_unique<Search>(); }

}  // namespace multihead::cli
