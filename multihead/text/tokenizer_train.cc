#include <algorithm>
#include <numeric>
#include <set>

#include "multihead/core/error.h"
#include "multihead/text/model-inl.h"

namespace multihead::text {
namespace {

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
  if (!options.special.unk.empty()) model->unk = model->ids.at(options.special.unk);
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
             " must be longer than a character, else it is the token of a byte");
    training.reserved.push_back(spelt);
  }
  training.tokens.resize(model->tokens.size());
  // The order of Hugging Face's trainer: bytes by the character that stands for them.
  std::array<int, 256> order;
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [](int a, int b) { return byte_to_symbol(a) < byte_to_symbol(b); });
  for (int byte : order) {
    training.byte_token[byte] = static_cast<int32_t>(training.tokens.size());
    training.tokens.emplace_back(1, static_cast<char>(byte));
  }
  training.rules = {{.kind = SplitRule::Kind::gpt2}};
  training.progress = options.progress;
  model->rules = training.rules;
  model->merges = MergeTable(learn_merges(texts, training));
  for (size_t id = model->tokens.size(); id < training.tokens.size(); ++id)
    model->tokens.push_back(bytes_to_symbols(training.tokens[id]));
  model->finish();
  return Tokenizer(std::move(model));
}

Tokenizer Tokenizer::train_characters(std::string_view text, const CharacterOptions& options) {
  return train_characters({&text, 1}, options);
}
Tokenizer Tokenizer::train_bpe(std::string_view text, const BpeOptions& options) {
  return train_bpe({&text, 1}, options);
}

}  // namespace multihead::text
