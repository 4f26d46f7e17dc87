// multihead tokenizer train | encode | decode | list | verify
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <sstream>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/distributed/world.h"
#include "multihead/io/file_set.h"
#include "multihead/io/json.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/data/encode_file.h"

namespace multihead::cli {
namespace {

// The ranks of the job, and threads for each.
std::shared_ptr<distributed::Group> join(const CommonOptions& common) {
  std::shared_ptr<distributed::Group> group = distributed::world();
  if (group->size() > 1 && common.threads == 0) set_num_threads(distributed::threads_per_rank());
  return group;
}

class TokenizerTrain : public Verb {
 public:
  TokenizerTrain()
      : Verb("tokenizer train", "train a tokenizer on text files",
             {{"multihead tokenizer train austen.txt --out tok --vocab-size 4096",
               "byte-level BPE, as in GPT-2"},
              {"multihead tokenizer train austen.txt --out tok --kind wordpiece --vocab-size 8000",
               "as in BERT"},
              {"multihead tokenizer train austen.txt --out tok --kind unigram", "as in T5 and XLM-R"},
              {"multihead tokenizer train austen.txt --out tok --kind char", "one token per character"}}) {}

  void declare(Flags& flags) override {
    flags.positionals("FILE", files_, "text files, UTF-8");
    flags.output("out", "DIR", out_, "folder for tokenizer.json (required)");
    flags.flag("overwrite", overwrite_, "replace an existing tokenizer in --out");
    flags.choice("kind", kind_, {"bpe", "wordpiece", "unigram", "char"}, "tokenizer type");
    flags.integer("vocab-size", vocab_size_, "vocabulary size (not of char)", {.least = 1});
    flags.integer("min-frequency", min_frequency_, "smallest frequency of a merged pair (bpe, wordpiece)");
    flags.flag("cased", cased_, "keep capitals and accents (wordpiece)");
  }

  int run(const CommonOptions& common) override {
    if (files_.empty()) throw UsageError("no FILE given; see multihead tokenizer train --help");
    if (out_.empty()) throw UsageError("--out DIR is required; see multihead tokenizer train --help");
    const std::string kind = "with --kind " + kind_;
    if (kind_ == "char") refuse_given(kind, {"vocab-size"});
    if (kind_ == "char" || kind_ == "unigram") refuse_given(kind, {"min-frequency"});
    if (kind_ != "wordpiece") refuse_given(kind, {"cased"});
    check_folder();
    std::vector<std::string> texts;
    for (const std::string& file : files_) texts.push_back(reading([&] { return text::read_corpus(file); }));
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    const text::Tokenizer tokenizer = trained(views);
    tokenizer.save(out_);
    if (common.json) {
      put_json(Json::object({{"folder", io::path_to_json(out_)}, {"vocab_size", tokenizer.vocab_size()}}));
    } else {
      fmt::print("{} tokens in {}/tokenizer.json\n", tokenizer.vocab_size(), printable(out_));
    }
    return kDone;
  }

 private:
  text::Tokenizer trained(std::span<const std::string_view> texts) const {
    using text::Tokenizer;
    if (kind_ == "char") return Tokenizer::train_characters(texts);
    if (kind_ == "unigram") return Tokenizer::train_unigram(texts, {.vocab_size = vocab_size_});
    if (kind_ == "wordpiece") {
      return Tokenizer::train_wordpiece(
          texts, {.vocab_size = vocab_size_, .min_frequency = min_frequency_, .lowercase = !cased_});
    }
    return Tokenizer::train_bpe(texts, {.vocab_size = vocab_size_, .min_frequency = min_frequency_});
  }

  // A model and its tokenizer are replaced together.
  void check_folder() const {
    const auto holds = [&](const char* name) { return node_at(out_ + "/" + name) != Node::absent; };
    if (holds("config.json") || holds(io::kRunFile)) {
      throw UsageError(concat("folder ", quote(out_),
                              " holds a model, whose tokenizer must not be replaced; choose another folder"));
    }
    if (!overwrite_ && holds("tokenizer.json")) {
      throw UsageError(
          concat("folder ", quote(out_), " holds a tokenizer; overwrite it or choose another folder"));
    }
  }

  std::vector<std::string> files_;
  bool overwrite_ = false, cased_ = false;
  std::string out_, kind_ = "bpe";
  int64_t vocab_size_ = 4096, min_frequency_ = 2;
};

class TokenizerEncode : public Verb {
 public:
  TokenizerEncode()
      : Verb(
            "tokenizer encode", "convert text to token ids",
            {{"multihead tokenizer encode model \"It is a truth\"", "ids on one line"},
             {"multihead tokenizer encode model - < text.txt", "text from stdin"},
             {"multihead tokenizer encode model \"It is\" --offsets", "the position of each token, in bytes"},
             {"multihead tokenizer encode tok --data big.txt --out big.tokens",
              "for train lm --data big.tokens"},
             {"mpirun -n 4 multihead tokenizer encode tok --data big.txt --out big.tokens",
              "the same file, with four processes"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "folder with a tokenizer.json, or the file");
    flags.positional("TEXT", text_, "text to encode; - or none: stdin", false).takes_empty = true;
    flags.text("data", "FILE", data_, "encode a text file; needs --out; not with --offsets, --as-file");
    flags.output("out", "FILE", out_, "token file to write, for train lm");
    flags.flag("special", special_, "recognise special tokens in the text");
    flags.flag("as-file", as_file_, "truncate and pad as set in tokenizer.json");
    flags.flag("offsets", offsets_, "print a line per token: id, byte range [first, end) in the text, token");
  }

  int run(const CommonOptions& common) override {
    const text::Tokenizer tokenizer = reading([&] { return text::Tokenizer::load(folder_); });
    if (!data_.empty() || !out_.empty()) return write_file(common, tokenizer);
    const std::string text = text_or_stdin(text_);
    if (offsets_) return show_offsets(common, tokenizer, text);
    const std::vector<int32_t> ids = tokenizer.encode(text, {.parse_special = special_, .as_file = as_file_});
    if (!common.json) {
      fmt::print("{}\n", fmt::join(ids, " "));
      return kDone;
    }
    Json tokens = Json::array();
    for (const int32_t id : ids) tokens.push_back(tokenizer.token(id));
    put_json(Json::object({{"ids", std::vector<Json>(ids.begin(), ids.end())}, {"tokens", tokens}}), -1);
    return kDone;
  }

 private:
  int show_offsets(const CommonOptions& common, const text::Tokenizer& tokenizer,
                   const std::string& text) const {
    const text::Encoding encoding =
        tokenizer.encoding(text, {.parse_special = special_, .as_file = as_file_});
    const std::vector<std::string> texts = tokenizer.tokens(encoding);
    Json tokens = Json::array(), offsets = Json::array();
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      const auto [begin, end] = encoding.offsets[i];
      if (!common.json) fmt::print("{}\t{}\t{}\t{}\n", encoding.ids[i], begin, end, printable(texts[i]));
      tokens.push_back(texts[i]);
      offsets.push_back(std::vector<Json>{begin, end});
    }
    if (common.json) {
      const std::vector<Json> ids(encoding.ids.begin(), encoding.ids.end());
      put_json(Json::object({{"ids", ids}, {"tokens", tokens}, {"offsets", offsets}}), -1);
    }
    return kDone;
  }

  int write_file(const CommonOptions& common, const text::Tokenizer& tokenizer) const {
    if (data_.empty() || out_.empty()) throw UsageError("--data FILE and --out FILE must be given together");
    if (offsets_ || as_file_) {
      throw UsageError(concat("--", offsets_ ? "offsets" : "as-file", " is for a TEXT or stdin, not --data"));
    }
    if (text_ != "-") throw UsageError(concat("give TEXT or --data, not both; got ", quote(text_, 80)));
    const std::shared_ptr<distributed::Group> group = join(common);
    reading([&] { return FileReader(data_).size(); });
    const int64_t count = encoded(*group, tokenizer);
    if (group->rank() > 0) return kDone;
    if (common.json) {
      put_json(Json::object({{"file", io::path_to_json(out_)}, {"tokens", count}}), -1);
    } else {
      fmt::print("{} tokens in {}\n", count, printable(out_));
    }
    return kDone;
  }

  // Bad text is bad input; failing to write is not.
  int64_t encoded(distributed::Group& group, const text::Tokenizer& tokenizer) const {
    try {
      return train::encode_file(group, data_, out_, tokenizer, uint64_t{1} << 22, special_);
    } catch (const FormatError& error) {
      throw InputError(error.what());
    } catch (const ValueError& error) {
      throw InputError(error.what());
    }
  }

  std::string folder_, text_ = "-", data_, out_;
  bool special_ = false, offsets_ = false, as_file_ = false;
};

class TokenizerList : public Verb {
 public:
  TokenizerList()
      : Verb("tokenizer list", "combine token files into one corpus, with checksums",
             {{"multihead tokenizer list part-*.tokens --out corpus.list",
               "for train lm --data corpus.list"}}) {}

  void declare(Flags& flags) override {
    flags.positionals("FILE", files_, "token files, in this order");
    flags.output("out", "FILE", out_, "list to write (required); paths are relative to its folder");
  }

  int run(const CommonOptions& common) override {
    if (files_.empty()) throw UsageError("no FILE given; see multihead tokenizer list --help");
    if (out_.empty()) throw UsageError("--out FILE is required; see multihead tokenizer list --help");
    for (const std::string& file : files_) {
      reading([&] { return text::TokenFile::open(file, {.verify = false}).size(); });
    }
    text::TokenFiles::write_list(out_, files_);
    const text::TokenFiles all = reading([&] { return text::TokenFiles::open(out_); });
    report(common, all);
    return kDone;
  }

  static void report(const CommonOptions& common, const text::TokenFiles& all) {
    const int64_t tokens = all.tokens().size(), files = std::ssize(all.files());
    if (common.json) {
      put_json(
          Json::object({{"files", files}, {"tokens", tokens}, {"checksum", checksum_text(all.checksum())}}),
          -1);
    } else {
      fmt::print("{} tokens in {} {}, checksum {}\n", tokens, files, files == 1 ? "file" : "files",
                 checksum_text(all.checksum()));
    }
  }

 private:
  std::vector<std::string> files_;
  std::string out_;
};

class TokenizerVerify : public Verb {
 public:
  TokenizerVerify()
      : Verb("tokenizer verify", "verify the checksums of a token file or a list of token files",
             {{"multihead tokenizer verify corpus.list", "train lm also does this before its first step"},
              {"mpirun -n 4 multihead tokenizer verify corpus.list", "each process reads a quarter"}}) {}

  void declare(Flags& flags) override { flags.positional("FILE", file_, "a token file or a list"); }

  int run(const CommonOptions& common) override {
    const std::shared_ptr<distributed::Group> group = join(common);
    const text::TokenFiles all = reading([&] {
      text::TokenFiles files = text::TokenFiles::open(file_);
      files.verify(group->rank(), group->size());
      return files;
    });
    group->barrier();
    if (group->rank() == 0) TokenizerList::report(common, all);
    return kDone;
  }

 private:
  std::string file_;
};

class TokenizerDecode : public Verb {
 public:
  TokenizerDecode()
      : Verb("tokenizer decode", "convert token ids to text",
             {{"multihead tokenizer decode model 72 101 108", "text on stdout"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "folder with a tokenizer.json, or the file");
    flags.positionals("ID", ids_, "token ids; none: stdin");
    flags.flag("skip-special", skip_special_, "omit special tokens");
  }

  int run(const CommonOptions& common) override {
    const text::Tokenizer tokenizer = reading([&] { return text::Tokenizer::load(folder_); });
    std::vector<int32_t> ids;
    for (const std::string& word : words()) {
      const int64_t id = train::parse_integer("a token id", word);
      if (id < 0 || id >= tokenizer.vocab_size()) {
        throw UsageError(concat("token id ", id, " is outside [0, ", tokenizer.vocab_size(), ")"));
      }
      ids.push_back(static_cast<int32_t>(id));
    }
    const std::string text = tokenizer.decode(ids, {.skip_special = skip_special_});
    if (common.json) {
      put_json(Json::object({{"text", valid_utf8(text)}}), -1);
    } else {
      fmt::print("{}\n", text);
    }
    return kDone;
  }

 private:
  std::vector<std::string> words() const {
    if (!ids_.empty()) return ids_;
    std::istringstream text(text_or_stdin("-"));
    return {std::istream_iterator<std::string>(text), {}};
  }

  std::string folder_;
  std::vector<std::string> ids_;
  bool skip_special_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_tokenizer_train() { return std::make_unique<TokenizerTrain>(); }
std::unique_ptr<Verb> make_tokenizer_encode() { return std::make_unique<TokenizerEncode>(); }
std::unique_ptr<Verb> make_tokenizer_list() { return std::make_unique<TokenizerList>(); }
std::unique_ptr<Verb> make_tokenizer_verify() { return std::make_unique<TokenizerVerify>(); }
std::unique_ptr<Verb> make_tokenizer_decode() { return std::make_unique<TokenizerDecode>(); }

}  // namespace multihead::cli
