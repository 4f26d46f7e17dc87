// multihead embed, multihead search
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/io/npy.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/settings.h"

namespace multihead::cli {
namespace {

using embed::EncodeTextOptions;
using embed::SentenceEncoder;

std::vector<std::string> poolings() {
  std::vector<std::string> words = word_list<embed::Pooling>();
  words.insert(words.begin(), "folder");
  return words;
}

struct EmbedFlags {
  std::string folder, prompt;
  EncodeTextOptions options;
  bool normalize = false;
  std::string weights = "f32", pooling = "folder", precision = "f32";

  void declare(Flags& flags) {
    flags.positional("DIR", folder, "model folder: sentence-transformers', an encoder's or a decoder's");
    flags.choice("pooling", pooling, poolings(),
                 "pooling of token vectors (folder: the folder's, else mean)");
    flags.text("prompt-name", "NAME", options.prompt_name, "prepend this prompt of the folder to every text");
    flags.text("prompt", "TEXT", prompt, "prepend this prompt to every text");
    flags.integer("truncate-dim", options.truncate_dim, "keep only the first N dimensions (0: all)");
    flags.integer("batch-tokens", options.batch_tokens, "tokens per batch; affects memory, not results",
                  {.least = 1});
    declare_weights(flags, weights, false);
    flags.choice("precision", precision, word_list<train::Precision>(),
                 "of products and attention; bf16: of the weights too, unless --weights says otherwise");
  }
  SentenceEncoder load() {
    if (normalize) options.normalize = true;
    if (!prompt.empty()) options.prompt = prompt;
    options.precision = train::dtype_of_products(*value_of<train::Precision>(precision));
    if (weights == "f32") weights = precision;
    SentenceEncoder encoder =
        reading([&] { return SentenceEncoder::load(folder, kernels::parse_weight_dtype(weights)); });
    if (const auto how = value_of<embed::Pooling>(pooling)) encoder.set_pooling(*how);
    return encoder;
  }
  Tensor encode(const SentenceEncoder& encoder, const std::vector<std::string>& texts, TextMeter& meter) {
    options.progress = [&](int64_t done, int64_t total) { meter(done, total); };
    return encoder.encode(texts, options);
  }
};

class Embed : public Verb {
 public:
  Embed()
      : Verb(
            "embed", "compute embeddings of texts",
            {{"multihead embed model --data texts.txt --out vectors.npy", "one row per line, for numpy.load"},
             {"echo hello | multihead embed model --data - --out -", "JSON lines with text and vector"}}) {}

  void declare(Flags& flags) override {
    flags_.declare(flags);
    flags.flag("normalize", flags_.normalize, "scale vectors to length 1 (default: as the folder says)");
    flags.text("data", "FILE", data_, "texts: one per line, or a column of a table; -: stdin (required)");
    declare_format(flags, format_);
    flags.text("out", "FILE", out_,
               "FILE.npy, or FILE.jsonl with texts and vectors; -: the same to stdout (required)");
  }

  int run(const CommonOptions& common) override {
    if (data_.empty() || out_.empty())
      throw UsageError("--data FILE and --out FILE are required; see multihead embed --help");
    const bool is_matrix = out_.ends_with(".npy");
    if (!is_matrix && out_ != "-" && !out_.ends_with(".jsonl")) {
      throw UsageError(concat("--out must end in .npy or .jsonl, or be -; got ", quote(out_)));
    }
    const SentenceEncoder encoder = flags_.load();
    const std::vector<std::string> texts = single_texts_of(data_, format_);
    double seconds = 0;
    Tensor vectors;
    {
      TextMeter meter(common.quiet);
      vectors = flags_.encode(encoder, texts, meter);
      seconds = meter.seconds();
    }
    if (is_matrix) {
      io::save_npy(out_, vectors);
    } else {
      put_lines(texts, vectors);
    }
    if (!common.quiet && out_ != "-") {
      fmt::print("{}: {} vectors of {} dimensions, {:.0f} texts/s\n", printable(out_), vectors.size(0),
                 vectors.size(1), static_cast<double>(texts.size()) / std::max(seconds, 1e-9));
    }
    return kDone;
  }

 private:
  void put_lines(const std::vector<std::string>& texts, const Tensor& vectors) const {
    std::string all;
    for (int64_t i = 0; i < vectors.size(0); ++i) {
      Json vector = Json::array();
      for (int64_t k = 0; k < vectors.size(1); ++k)
        vector.push_back(vectors.data<float>()[i * vectors.size(1) + k]);
      all += Json::object({{"text", valid_utf8(texts[static_cast<size_t>(i)])}, {"vector", vector}}).dump() +
             "\n";
    }
    out_ == "-" ? put_output(all) : write_file_atomically(out_, all);
  }

  EmbedFlags flags_;
  std::string data_, out_;
  text::TableFormat format_ = text::TableFormat::by_name;
};

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
    flags.text("index", "FILE", index_, "FILE.npy with their vectors; created if missing");
    flags.text("query", "TEXT", query_, "query (default: each line of stdin)");
    flags.integer("top", top_, "lines to show", {.least = 1});
  }

  int run(const CommonOptions& common) override {
    if (data_.empty()) throw UsageError("--data FILE is required; see multihead search --help");
    if (!index_.empty() && !index_.ends_with(".npy"))
      throw UsageError(concat("--index must end in .npy, got ", quote(index_)));
    const SentenceEncoder encoder = flags_.load();
    flags_.options.normalize = true;
    const std::vector<std::string> texts = single_texts_of(data_, format_);
    const Tensor corpus = vectors_of(encoder, texts, common.quiet);
    if (!query_.empty()) {
      show(encoder, corpus, texts, query_, common.json);
    } else {
      for (std::string line; read_line(line);) show(encoder, corpus, texts, line, common.json);
    }
    return kDone;
  }

 private:
  Tensor vectors_of(const SentenceEncoder& encoder, const std::vector<std::string>& texts, bool is_quiet) {
    if (!index_.empty() && std::filesystem::exists(index_)) {
      Tensor held = reading([&] { return io::load_npy(index_); });
      const int64_t width = flags_.options.truncate_dim > 0
                                ? std::min(flags_.options.truncate_dim, encoder.dim())
                                : encoder.dim();
      if (held.size(0) != std::ssize(texts) || held.size(1) != width) {
        throw InputError(concat(index_, ": holds ", held.size(0), " x ", held.size(1), ", expected ",
                                texts.size(), " x ", width,
                                " for this model and file; delete it to recreate it"));
      }
      check_finite(held);
      held = embed::normalized_rows(held);  // `embed` may have written it without --normalize
      check_rows(encoder, texts, held);
      return held;
    }
    TextMeter meter(is_quiet);
    Tensor made = flags_.encode(encoder, texts, meter);
    if (!index_.empty()) io::save_npy(index_, made);
    return made;
  }

  void check_finite(const Tensor& held) const {
    const int64_t width = held.size(1);
    for (int64_t i = 0; i < held.numel(); ++i) {
      if (std::isfinite(held.data<float>()[i])) continue;
      throw InputError(
          concat(index_, ": row ", i / width + 1, " holds NaN or Inf; delete the file to recreate it"));
    }
  }

  // An index of other lines, or by another model, finds nonsense. Weights of 4 bits move vectors by less.
  void check_rows(const SentenceEncoder& encoder, const std::vector<std::string>& texts, const Tensor& held) {
    if (texts.empty()) return;
    for (const size_t line : {size_t{0}, texts.size() / 2, texts.size() - 1}) {
      const Tensor made = encoder.encode(std::span(&texts[line], 1), flags_.options);
      const float* row = held.data<float>() + static_cast<int64_t>(line) * held.size(1);
      const float cosine = std::inner_product(row, row + held.size(1), made.data<float>(), 0.0F);
      if (!(cosine >= 0.9F)) {
        throw InputError(concat(index_, ": row ", line + 1, " is not the vector of line ", line + 1, " of ",
                                data_, " (cosine ", cosine, "); delete it to recreate it"));
      }
    }
  }

  void show(const SentenceEncoder& encoder, const Tensor& corpus, const std::vector<std::string>& texts,
            const std::string& query, bool as_json) {
    EncodeTextOptions options = flags_.options;
    options.progress = {};
    const Tensor vector = encoder.encode(std::span(&query, 1), options);
    Json matches = Json::array();
    const auto best = embed::nearest(vector, corpus, top_);
    for (const embed::Match& match : best.front()) {
      const std::string& text = texts[static_cast<size_t>(match.row)];
      if (as_json) {
        matches.push_back(
            Json::object({{"line", match.row + 1}, {"score", match.score}, {"text", valid_utf8(text)}}));
      } else {
        fmt::print("{:.3f}  {:>6}  {}\n", match.score, match.row + 1, printable(text));
      }
    }
    if (as_json) put_json(Json::object({{"query", valid_utf8(query)}, {"matches", matches}}), -1);
    flush_output();
  }

  EmbedFlags flags_;
  std::string data_, index_, query_;
  text::TableFormat format_ = text::TableFormat::by_name;
  int64_t top_ = 5;
};

}  // namespace

std::unique_ptr<Verb> make_embed() { return std::make_unique<Embed>(); }
std::unique_ptr<Verb> make_search() { return std::make_unique<Search>(); }

}  // namespace multihead::cli
