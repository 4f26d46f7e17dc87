// multihead embed
#include <fmt/format.h>

#include <charconv>
#include <filesystem>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "cli/texts.h"
#include "cli/verb.h"
#include "cli/verbs/embed_flags.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/json.h"
#include "multihead/io/npy.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::cli {
namespace {

using embed::MultiVectorEncoder;
using embed::SentenceEncoder;
using embed::SparseEncoder;
using embed::TextTask;

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
    if (skips_existing_ && std::filesystem::is_regular_file(out_, ignored)) {
      if (common.json) put_json(Json::object({{"out", io::path_to_json(out_)}, {"skipped", true}}));
      return kDone;
    }
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
    const std::vector<std::string> all = single_texts_of(data_, format_).texts;
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
    const auto* dense = std::get_if<SentenceEncoder>(&encoder);
    const int64_t dim = dense != nullptr ? dense->width(flags_.options)
                                         : std::visit([](const auto& of) { return of.dim(); }, encoder);
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
    IndexRecord::check_vacant(out_);
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

}  // namespace

std::unique_ptr<Verb> make_embed() { return std::make_unique<Embed>(); }

}  // namespace multihead::cli
