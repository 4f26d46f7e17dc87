// multihead embed, multihead search
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <variant>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verb.h"
#include "cli/verbs/index_record.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/multi_vector_encoder.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/embed/sparse_encoder.h"
#include "multihead/embed/vector_index.h"
#include "multihead/io/json.h"
#include "multihead/io/npy.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/settings.h"

namespace multihead::cli {
namespace {

using embed::EncodeTextOptions;
using embed::MultiVectorEncoder;
using embed::SentenceEncoder;
using embed::Similarity;
using embed::SparseEncoder;
using embed::TextTask;
/// One of them for each embed::VectorKind, in its order.
using AnyEncoder = std::variant<SentenceEncoder, SparseEncoder, MultiVectorEncoder>;
using AnyVectors = std::variant<Tensor, embed::SparseRows, embed::MultiVectors>;

std::vector<std::string> kinds() {
  std::vector<std::string> words = word_list<embed::VectorKind>();
  words.insert(words.begin(), "folder");
  return words;
}

std::vector<std::string> poolings() {
  std::vector<std::string> words = word_list<embed::Pooling>();
  words.insert(words.begin(), "folder");
  return words;
}

struct EmbedFlags {
  std::string folder, prompt;
  EncodeTextOptions options;
  bool normalize = false;
  std::string weights = "stored", pooling = "folder", precision = "f32", kind = "folder";
  int64_t max_active = 0;

  void declare(Flags& flags) {
    flags.positional("DIR", folder, "model folder: sentence-transformers', an encoder's or a decoder's");
    flags.choice(
        "kind", kind, kinds(),
        "of vectors: one, one weight for each token of the vocabulary (SPLADE), or one for each token of "
        "the text (ColBERT); folder: the folder's");
    flags.integer("max-active", max_active,
                  "keep the N largest weights of sparse vectors (0: as the folder says)");
    flags.choice("pooling", pooling, poolings(),
                 "pooling of token vectors (folder: the folder's, else mean)");
    flags.text("prompt-name", "NAME", options.prompt_name, "prepend this prompt of the folder to every text");
    flags.text("prompt", "TEXT", prompt, "prepend this prompt to every text");
    flags.integer("truncate-dim", options.truncate_dim, "keep only the first N dimensions (0: all)");
    flags.integer("batch-tokens", options.batch_tokens, "tokens per batch; affects memory, not results",
                  {.least = 1});
    declare_weights(flags, weights);
    flags.choice("precision", precision, word_list<train::Precision>(),
                 "of products and attention; bf16: of the weights too, unless --weights says otherwise");
  }
  SentenceEncoder pooled_as_asked(SentenceEncoder encoder) const {
    if (const auto pools = value_of<embed::Pooling>(pooling)) encoder.set_pooling(*pools);
    return encoder;
  }
  // Flags that mean something for one kind of vectors only.
  void check_flags_of(embed::VectorKind made) const {
    const bool is_dense = made == embed::VectorKind::dense;
    if (max_active != 0 && made != embed::VectorKind::sparse)
      throw UsageError(
          concat("--max-active is for sparse vectors; those of ", quote(folder), " are ", word_of(made)));
    for (const auto& [is_given, flag] :
         {std::pair(pooling != "folder", "--pooling"), std::pair(normalize, "--normalize"),
          std::pair(options.truncate_dim != 0, "--truncate-dim")}) {
      if (is_given && !is_dense)
        throw UsageError(
            concat(flag, " is for dense vectors; those of ", quote(folder), " are ", word_of(made)));
    }
  }
  AnyEncoder load(const std::string& task) {
    if (normalize) options.normalize = true;
    if (!prompt.empty()) options.prompt = prompt;
    options.precision = train::dtype_of_products(*value_of<train::Precision>(precision));
    if (weights == "stored" && precision != "f32") weights = precision;
    std::optional<nn::WeightDtype> dtype;
    if (weights != "stored") dtype = kernels::parse_weight_dtype(weights);
    const nn::WeightDtype dense = dtype.value_or(nn::WeightDtype::f32);  // of folders
    const auto how = value_of<embed::VectorKind>(kind);
    const embed::VectorKind made = how ? *how : reading([&] { return embed::vector_kind(folder); });
    check_flags_of(made);
    return reading([&]() -> AnyEncoder {
      if (made == embed::VectorKind::sparse) return SparseEncoder::load(folder, dense);
      if (made == embed::VectorKind::multi_vector) return MultiVectorEncoder::load(folder, dense);
      return pooled_as_asked(SentenceEncoder::load(folder, dtype, task));
    });
  }
  /// The encoder of queries, where they have their own.
  std::optional<AnyEncoder> route_of_queries(const AnyEncoder& of_documents) const {
    const auto* dense = std::get_if<SentenceEncoder>(&of_documents);
    if (dense == nullptr || !embed::has_routes(folder)) return {};
    return reading([&] { return pooled_as_asked(dense->route("query")); });
  }
  // Besides the model, what dense vectors depend on.
  IndexRecord record_of(std::span<const std::string> texts) const {
    return {texts, Json::object({{"pooling", pooling},
                                 {"prompt", valid_utf8(prompt)},
                                 {"prompt-name", valid_utf8(options.prompt_name)},
                                 {"truncate-dim", options.truncate_dim},
                                 {"weights", weights},
                                 {"precision", precision}})};
  }
  using Progress = std::function<void(int64_t done, int64_t total)>;
  AnyVectors encode(const AnyEncoder& any, std::span<const std::string> texts, TextTask task,
                    const Progress& progress = {}) const {
    EncodeTextOptions given = options;
    if (!std::holds_alternative<SentenceEncoder>(any)) given.normalize.reset();
    given.progress = progress;
    const auto own = [&](const auto& encoder) -> AnyVectors {
      using Encoder = std::decay_t<decltype(encoder)>;
      if constexpr (std::is_same_v<Encoder, SparseEncoder>) return encoder.encode(texts, given, max_active);
      if constexpr (std::is_same_v<Encoder, MultiVectorEncoder>) return encoder.encode(texts, task, given);
      if constexpr (std::is_same_v<Encoder, SentenceEncoder>) return encoder.encode(texts, given);
    };
    return std::visit(own, any);
  }
};

// A text's vector as JSON: numbers, weights by token, or a list for each token.
Json to_json(const AnyEncoder& encoder, const AnyVectors& vectors, int64_t text) {
  const auto numbers = [](const Tensor& x, int64_t row) {
    Json list = Json::array();
    for (int64_t k = 0; k < x.size(1); ++k) list.push_back(x.data<float>()[row * x.size(1) + k]);
    return list;
  };
  if (const auto* dense = std::get_if<Tensor>(&vectors)) return numbers(*dense, text);
  if (const auto* sparse = std::get_if<embed::SparseRows>(&vectors)) {
    const text::Tokenizer& tokenizer = std::get<SparseEncoder>(encoder).tokenizer();
    const int64_t* ends = sparse->ends.data<int64_t>();
    Json weights = Json::object();
    for (int64_t i = ends[text]; i < ends[text + 1]; ++i) {
      const auto token = static_cast<int32_t>(sparse->columns.data<int64_t>()[i]);
      weights[token < tokenizer.vocab_size() ? valid_utf8(tokenizer.token(token)) : concat("#", token)] =
          sparse->values.data<float>()[i];
    }
    return weights;
  }
  const auto& multi = std::get<embed::MultiVectors>(vectors);
  const int64_t* ends = multi.ends.data<int64_t>();
  Json list = Json::array();
  for (int64_t row = ends[text]; row < ends[text + 1]; ++row) list.push_back(numbers(multi.vectors, row));
  return list;
}

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
    flags.text("task", "NAME", task_,
               "what multi-vector models, and folders with a Router or adapters, encode texts for: query, "
               "document, or a task of the folder's own");
    flags.text("data", "FILE", data_, "texts: one per line, or a column of a table; -: stdin (required)");
    declare_format(flags, format_);
    flags.output("out", "FILE", out_,
                 "FILE.npy, or FILE.jsonl with texts and vectors; -: the same to stdout (required)");
    flags.text("part", "I/N", part_,
               "only the I-th of N parts of the texts; the .jsonl files of all parts, one after another, are "
               "that of "
               "the whole");
    flags.flag("skip-existing", skips_existing_,
               "do nothing if FILE exists: it is complete, or would not be there");
  }

  int run(const CommonOptions& common) override {
    if (data_.empty() || out_.empty())
      throw UsageError("--data FILE and --out FILE are required; see multihead embed --help");
    const bool is_matrix = out_.ends_with(".npy");
    if (!is_matrix && out_ != "-" && !out_.ends_with(".jsonl")) {
      throw UsageError(concat("--out must end in .npy or .jsonl, or be -; got ", quote(out_)));
    }
    const auto [index, parts] = numbers_of_part();
    if (skips_existing_ && out_ == "-") throw UsageError("--skip-existing needs --out FILE, not -");
    std::error_code ignored;
    if (skips_existing_ && std::filesystem::exists(out_, ignored)) return kDone;
    const AnyEncoder encoder = flags_.load(task_);
    const bool is_multi_vector = std::holds_alternative<MultiVectorEncoder>(encoder);
    if (!task_.empty() && !is_multi_vector && !embed::has_routes(flags_.folder)) {
      throw UsageError(
          "--task is for multi-vector models and folders with a Router or adapters; texts of others have "
          "prompts: --prompt-name");
    }
    const auto task = task_.empty() ? TextTask::none : value_of<TextTask>(task_);
    if (is_multi_vector && !task) {
      throw UsageError(concat("--task of a multi-vector model is query or document, got ", quote(task_)));
    }
    if (is_matrix && !std::holds_alternative<SentenceEncoder>(encoder)) {
      throw UsageError(
          "--out FILE.npy is for dense vectors; write sparse and multi-vector ones to FILE.jsonl");
    }
    const std::vector<std::string> all = single_texts_of(data_, format_);
    const int64_t begin = std::ssize(all) * (index - 1) / parts, end = std::ssize(all) * index / parts;
    const std::span<const std::string> texts(all.begin() + begin, all.begin() + end);
    int64_t vectors = 0;
    double seconds = 0;
    {
      TextMeter meter(common.quiet);
      const Parts parts_of = {encoder, texts, task.value_or(TextTask::none), meter};
      vectors = is_matrix ? write_matrix(parts_of) : write_lines(parts_of);
      seconds = meter.seconds();
    }
    if (out_ != "-")
      report(common, encoder, vectors, static_cast<double>(texts.size()) / std::max(seconds, 1e-9));
    return kDone;
  }

 private:
  void report(const CommonOptions& common, const AnyEncoder& encoder, int64_t vectors,
              double texts_per_second) const {
    const int64_t dim = std::visit([](const auto& of) { return of.dim(); }, encoder);
    if (common.json) {
      put_json(Json::object({{"out", io::path_to_json(out_)},
                             {"vectors", vectors},
                             {"dimensions", dim},
                             {"texts_per_second", texts_per_second}}));
    } else if (!common.quiet) {
      fmt::print("{}: {} vectors of {} dimensions, {:.0f} texts/s\n", printable(out_), vectors, dim,
                 texts_per_second);
    }
  }

  // --part I/N as numbers; without it, the whole is the first of one.
  std::pair<int64_t, int64_t> numbers_of_part() const {
    if (part_.empty()) return {1, 1};
    constexpr int64_t kMost = 1000000;
    int64_t index = 0, parts = 0;
    const char *first = part_.data(), *last = first + part_.size();
    const auto [slash, bad_index] = std::from_chars(first, last, index);
    const bool has_slash = bad_index == std::errc() && slash != last && *slash == '/';
    const auto [rest, bad_parts] = std::from_chars(has_slash ? slash + 1 : last, last, parts);
    if (!has_slash || bad_parts != std::errc() || rest != last || index < 1 || index > parts ||
        parts > kMost) {
      throw UsageError(concat("--part must be I/N with 1 <= I <= N <= ", kMost, ", got ", quote(part_)));
    }
    return {index, parts};
  }

  struct Parts {
    const AnyEncoder& encoder;
    std::span<const std::string> texts;
    TextTask task;
    TextMeter& meter;
  };
  using Use = FunctionRef<void(std::span<const std::string> texts, const AnyVectors& vectors)>;

  // What is written before more is computed takes no memory. Returns the number of vectors.
  int64_t each_part(const Parts& of, Use use) const {
    constexpr int64_t kTexts = 1024;
    const int64_t total = std::ssize(of.texts);
    int64_t vectors = 0;
    for (int64_t begin = 0; begin < total; begin += kTexts) {
      const int64_t size = std::min(kTexts, total - begin);
      const auto texts = of.texts.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
      const AnyVectors made = flags_.encode(of.encoder, texts, of.task,
                                            [&](int64_t done, int64_t) { of.meter(begin + done, total); });
      const auto* multi = std::get_if<embed::MultiVectors>(&made);
      vectors += multi != nullptr ? multi->vectors.size(0) : size;
      use(texts, made);
    }
    return vectors;
  }

  int64_t write_matrix(const Parts& of) const {
    const int64_t width = std::get<SentenceEncoder>(of.encoder).width(flags_.options);
    io::NpyWriter file(out_, std::ssize(of.texts), width);
    IndexRecord record = flags_.record_of(of.texts);
    const int64_t vectors = each_part(of, [&](auto, const AnyVectors& made) {
      file.add(std::get<Tensor>(made)), record.add(std::get<Tensor>(made));
    });
    record.save(out_);
    file.commit();
    return vectors;
  }

  int64_t write_lines(const Parts& of) const {
    const auto put_each = [&](const auto& put) {
      return each_part(of, [&](std::span<const std::string> texts, const AnyVectors& made) {
        for (size_t i = 0; i < texts.size(); ++i) {
          const Json vector = to_json(of.encoder, made, static_cast<int64_t>(i));
          put(Json::object({{"text", valid_utf8(texts[i])}, {"vector", vector}}).dump() + "\n");
        }
      });
    };
    if (out_ == "-") return put_each(put_output);
    int64_t vectors = 0;
    write_file_atomically(out_, [&](FileWriter& file) {
      vectors = put_each([&](const std::string& line) { file.write(line); });
    });
    return vectors;
  }

  EmbedFlags flags_;
  std::string data_, out_, part_, task_;
  bool skips_existing_ = false;
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
    flags.text(
        "index", "FILE", index_,
        "FILE.npy with their vectors, beside FILE.npy.json, what they were made from; created if missing");
    flags.text("query", "TEXT", query_, "query (default: each line of stdin)");
    flags.choice("compress", compress_, compressions(),
                 "search 8 bits or the signs of each number of dense vectors first, and rank by 8 bits");
    flags.integer("top", top_, "lines to show", {.least = 1});
  }

  int run(const CommonOptions& common) override {
    if (data_.empty()) throw UsageError("--data FILE is required; see multihead search --help");
    if (!index_.empty() && !index_.ends_with(".npy"))
      throw UsageError(concat("--index must end in .npy, got ", quote(index_)));
    const AnyEncoder encoder = flags_.load("document");
    const auto* dense = std::get_if<SentenceEncoder>(&encoder);
    if (dense == nullptr && (!index_.empty() || compress_ != "none"))
      throw UsageError("--index and --compress are for dense vectors");
    similarity_ = reading([&] { return similarity_of(encoder); });
    if (similarity_ == Similarity::cosine && dense != nullptr) flags_.options.normalize = true;
    if (compress_ != "none" && similarity_ == Similarity::manhattan)
      throw UsageError("--compress cannot find by manhattan distances, by which the folder compares vectors");
    const std::vector<std::string> texts = single_texts_of(data_, format_);
    const AnyVectors corpus = vectors_of(encoder, texts, common.quiet);
    if (const auto kind = value_of<embed::IndexKind>(compress_))
      compressed_.emplace(std::get<Tensor>(corpus), *kind);
    const std::optional<AnyEncoder> route = flags_.route_of_queries(encoder);
    const AnyEncoder& asking = route ? *route : encoder;
    if (!query_.empty()) {
      show(asking, corpus, texts, query_, common.json);
    } else {
      for (std::string line; read_line(line);) show(asking, corpus, texts, line, common.json);
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

  static std::vector<std::string> compressions() {
    std::vector<std::string> words = word_list<embed::IndexKind>();
    words.insert(words.begin(), "none");
    return words;
  }

  AnyVectors vectors_of(const AnyEncoder& any, const std::vector<std::string>& texts, bool is_quiet) {
    const auto* encoder = std::get_if<SentenceEncoder>(&any);
    if (!index_.empty() && std::filesystem::exists(index_)) return held_vectors(*encoder, texts, is_quiet);
    TextMeter meter(is_quiet);
    AnyVectors made = flags_.encode(any, texts, TextTask::document, std::ref(meter));
    if (index_.empty()) return made;
    IndexRecord record = flags_.record_of(texts);
    record.add(std::get<Tensor>(made)), record.save(index_);
    io::save_npy(index_, std::get<Tensor>(made));
    return made;
  }

  Tensor held_vectors(const SentenceEncoder& encoder, const std::vector<std::string>& texts,
                      bool is_quiet) const {
    const int64_t width = encoder.width(flags_.options);
    Tensor held = reading([&] { return io::load_npy(index_); });
    IndexRecord record = flags_.record_of(texts);
    record.add(held);
    if (!record.check(index_) && !is_quiet) {
      std::fputs(concat("note: ", printable(index_), " has no ", printable(index_),
                        ".json, what it was made from: only the first, middle and last line are compared\n")
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
    check_rows(encoder, texts, held);
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
  // less.
  void check_rows(const SentenceEncoder& encoder, const std::vector<std::string>& texts,
                  const Tensor& held) const {
    if (texts.empty()) return;
    for (const size_t line : {size_t{0}, texts.size() / 2, texts.size() - 1}) {
      const Tensor made = encoder.encode(std::span(&texts[line], 1), flags_.options);
      const float* row = held.data<float>() + static_cast<int64_t>(line) * held.size(1);
      const auto product = [&](const float* a, const float* b) {
        return std::inner_product(a, a + held.size(1), b, 0.0);
      };
      const double size = std::sqrt(product(row, row)),
                   expected = std::sqrt(product(made.data<float>(), made.data<float>())),
                   cosine = product(row, made.data<float>()) / (size * expected);
      if (!(cosine >= 0.999) || !(size >= 0.99 * expected && size <= 1.01 * expected)) {
        throw InputError(concat(index_, ": row ", line + 1, " is not the vector of line ", line + 1, " of ",
                                data_, " (cosine ", cosine, ", length ", size, ", not ", expected,
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

  void show(const AnyEncoder& encoder, const AnyVectors& corpus, const std::vector<std::string>& texts,
            const std::string& query, bool as_json) {
    const AnyVectors vector = flags_.encode(encoder, std::span(&query, 1), TextTask::query);
    Json matches = Json::array();
    for (embed::Match match : matches_of(vector, corpus)) {
      match.score /= scale_of(encoder, vector);
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
  std::string data_, index_, query_, compress_ = "none";
  Similarity similarity_ = Similarity::cosine;
  std::optional<embed::VectorIndex> compressed_;
  text::TableFormat format_ = text::TableFormat::by_name;
  int64_t top_ = 5;
};

}  // namespace

std::unique_ptr<Verb> make_embed() { return std::make_unique<Embed>(); }
std::unique_ptr<Verb> make_search() { return std::make_unique<Search>(); }

}  // namespace multihead::cli
