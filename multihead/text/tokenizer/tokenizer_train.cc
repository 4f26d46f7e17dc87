#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

constexpr size_t kBertAlphabet = 1000;  // as in Hugging Face's trainer

void add_special(const SpecialTokens& special, Tokenizer::Model& model) {
  for (const std::string& token : all_tokens(special)) {
    MH_CHECK(find_invalid_utf8(token) == std::string_view::npos, ValueError, "tokenizer: special token ",
             quote(token), " must be UTF-8");
    model.added.push_back({.id = static_cast<int32_t>(model.tokens.size()), .content = token});
    model.tokens.push_back(token);
  }
  model.special = special;
}

void check_not_empty(std::span<const std::string_view> texts, const char* who) {
  MH_CHECK(std::any_of(texts.begin(), texts.end(), [](std::string_view t) { return !t.empty(); }), ValueError,
           who, ": text must not be empty");
}

Tokenizer with_template(const Tokenizer& tokenizer, const std::string& first, const std::string& end) {
  Json json = Json::parse(tokenizer.to_json()), tokens = Json::object();
  for (const std::string& token : {first, end}) {
    const std::optional<int32_t> id = tokenizer.id(token);
    MH_CHECK(id, ValueError, "train_bpe: the template's ", quote(token), " must be a special token");
    tokens[token] = template_token(token, *id);
  }
  json["post_processor"] = json_of_template(first, end, 1, tokens);
  return Tokenizer::from_contents(json.dump(), tokenizer.config_json());
}

}  // namespace

Tokenizer Tokenizer::train_characters(std::span<const std::string_view> texts,
                                      const CharacterOptions& options) {
  check_not_empty(texts, "train_characters");
  auto model = std::make_shared<Model>();
  model->kind = Kind::characters;
  add_special(options.special, *model);
  std::set<int32_t> characters;
  for (std::string_view text : texts) {
    std::array<bool, 128> ascii{};
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(text, at);
      MH_CHECK(c.code_point >= 0, ValueError, "train_characters: text must be UTF-8, got byte ",
               quote(text.substr(at, 1)), " at offset ", at);
      if (c.code_point < 128) {
        ascii[c.code_point] = true;
      } else {
        characters.insert(c.code_point);
      }
      at += c.length;
    }
    for (int32_t c = 0; c < 128; ++c)
      if (ascii[c]) characters.insert(c);
  }
  const size_t special_count = model->tokens.size();
  for (int32_t c : characters) {
    std::string token;
    append_utf8(c, token);
    const auto end = model->tokens.begin() + special_count;
    MH_CHECK(std::find(model->tokens.begin(), end, token) == end, ValueError,
             "train_characters: special token ", quote(token), " is a character of the text");
    model->tokens.push_back(token);
  }
  model->finish();
  if (!options.special.unk.empty()) model->unk = model->find(options.special.unk);
  return Tokenizer(std::move(model));
}

Tokenizer Tokenizer::train_bpe(std::span<const std::string_view> texts, const BpeOptions& options) {
  check_not_empty(texts, "train_bpe");
  auto model = std::make_shared<Model>();
  add_special(options.special, *model);
  const auto smallest = std::ssize(model->tokens) + 256;
  MH_CHECK(options.vocab_size >= smallest && options.vocab_size < INT32_MAX, ValueError,
           "train_bpe: vocab_size must be at least ", smallest, " (256 bytes and ", smallest - 256,
           " special tokens) and below 2^31 - 1, got ", options.vocab_size);

  BpeTraining training{.vocab_size = options.vocab_size, .min_frequency = options.min_frequency};
  for (const std::string& token : model->tokens) {
    const std::string spelt = symbols_to_bytes(token);
    MH_CHECK(spelt.size() > 1, ValueError, "train_bpe: special token ", quote(token),
             " must be longer than one character, since single characters are byte tokens");
    training.reserved.push_back(spelt);
  }
  training.tokens.resize(model->tokens.size());
  // The order of Hugging Face's trainer: bytes by the character that stands for them.
  std::array<int, 256> order;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [](int a, int b) { return byte_to_symbol(a) < byte_to_symbol(b); });
  for (int byte : order) {
    training.tokens.emplace_back(1, static_cast<char>(byte));
  }
  training.rules = {{.kind = SplitRule::Kind::gpt2}};
  training.progress = options.progress;
  model->cuts = {{.rule = training.rules[0]}};
  model->token_steps = {{.kind = DecodeStep::Kind::byte_level}};
  model->merges = MergeTable(learn_merges(count_pieces(texts, training.rules), training));
  for (size_t id = model->tokens.size(); id < training.tokens.size(); ++id)
    model->tokens.push_back(bytes_to_symbols(training.tokens[id]));
  model->finish();
  const Tokenizer trained(std::move(model));
  return options.first.empty() && options.end.empty() ? trained
                                                      : with_template(trained, options.first, options.end);
}

namespace {

// The characters of the pieces, the most frequent first, as many as there may be; in order.
std::set<int32_t> alphabet_of(const Pieces& pieces, size_t limit) {
  std::map<int32_t, int64_t> counts;
  for (size_t i = 0; i < pieces.text.size(); ++i) {
    for (size_t at = 0; at < pieces.text[i].size();) {
      const Utf8Char c = decode_utf8(pieces.text[i], at);
      if (c.code_point >= 0) counts[c.code_point] += pieces.count[i];
      at += static_cast<size_t>(c.length);
    }
  }
  std::vector<std::pair<int64_t, int32_t>> ranked;
  for (const auto& [c, count] : counts) ranked.emplace_back(-count, c);
  std::sort(ranked.begin(), ranked.end());
  std::set<int32_t> kept;
  for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) kept.insert(ranked[i].second);
  return kept;
}

// The texts as BERT cleans them; those that stay as they are are not copied.
std::vector<std::string> cleaned(std::span<const std::string_view> texts, const BertCleaning& cleaning) {
  std::vector<std::string> out;
  for (const std::string_view text : texts) {
    Rewritten clean(false);
    bert_cleaned(cleaning, text, clean);
    out.push_back(std::move(clean.text));
  }
  return out;
}

}  // namespace

Tokenizer Tokenizer::train_wordpiece(std::span<const std::string_view> texts,
                                     const WordPieceOptions& options) {
  check_not_empty(texts, "train_wordpiece");
  const BertCleaning cleaning{.strip_accents = options.lowercase, .lowercase = options.lowercase};
  const std::vector<std::string> owned = cleaned(texts, cleaning);
  const std::vector<std::string_view> views(owned.begin(), owned.end());
  BpeTraining training{.vocab_size = options.vocab_size,
                       .min_frequency = options.min_frequency,
                       .of_characters = true,
                       .continuing = "##",
                       .rules = {{.kind = SplitRule::Kind::bert, .behavior = SplitRule::Behavior::removed}},
                       .progress = options.progress};
  const Pieces pieces = count_pieces(views, training.rules);
  std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  training.tokens.resize(tokens.size());
  const std::set<int32_t> alphabet = alphabet_of(pieces, kBertAlphabet);
  for (const char* prefix : {"", "##"}) {
    for (const int32_t c : alphabet) {
      std::string token = prefix;
      append_utf8(c, token);
      training.tokens.push_back(token);
    }
  }
  MH_CHECK(options.vocab_size >= std::ssize(training.tokens) && options.vocab_size < INT32_MAX, ValueError,
           "train_wordpiece: vocab_size must be at least ", training.tokens.size(),
           " (special tokens, and each character alone and within words) and below 2^31 - 1, got ",
           options.vocab_size);
  learn_merges(pieces, training);
  tokens.insert(tokens.end(), training.tokens.begin() + static_cast<std::ptrdiff_t>(tokens.size()),
                training.tokens.end());
  const Json normalizer = Json::object({{"type", "BertNormalizer"}, {"lowercase", options.lowercase}});
  return from_contents(
      json_of_words(tokens, normalizer),
      R"({"unk_token":"[UNK]","pad_token":"[PAD]","bos_token":"[CLS]","eos_token":"[SEP]"})");
}

Tokenizer Tokenizer::train_characters(std::string_view text, const CharacterOptions& options) {
  return train_characters({&text, 1}, options);
}
Tokenizer Tokenizer::train_bpe(std::string_view text, const BpeOptions& options) {
  return train_bpe({&text, 1}, options);
}
Tokenizer Tokenizer::train_wordpiece(std::string_view text, const WordPieceOptions& options) {
  return train_wordpiece({&text, 1}, options);
}
Tokenizer Tokenizer::train_unigram(std::string_view text, const UnigramOptions& options) {
  return train_unigram({&text, 1}, options);
}

}  // namespace multihead::text
