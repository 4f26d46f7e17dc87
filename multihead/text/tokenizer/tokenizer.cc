#include "multihead/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdio>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

int32_t checked_id(const Model& model, int32_t id, const char* who) {
  MH_CHECK(id >= 0 && id < std::ssize(model.tokens), ValueError, who, ": id must be in [0, ",
           model.tokens.size(), "), got ", id);
  return id;
}

uint64_t hash_bytes(uint64_t hash, std::string_view bytes) {  // FNV-1a
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}
uint64_t hash_number(uint64_t hash, int64_t x) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ (static_cast<uint64_t>(x) >> 8 * i & 0xFF)) * 0x100000001B3u;
  return hash;
}

uint64_t hash_cuts_and_merges(uint64_t hash, const Model& m) {
  const auto is_plain = [](const CutStep& step) {
    return step.kind == CutStep::Kind::prefix_space ||
           (step.kind == CutStep::Kind::split && step.rule == SplitRule());
  };
  const bool cuts_once = std::count_if(m.cuts.begin(), m.cuts.end(), [](const CutStep& step) {
                           return step.kind != CutStep::Kind::prefix_space;
                         }) == 1;
  if (!cuts_once || !std::all_of(m.cuts.begin(), m.cuts.end(), is_plain)) {
    hash = hash_number(hash, std::ssize(m.cuts));
    for (const CutStep& step : m.cuts) {
      const SplitRule& rule = step.rule;
      for (const int64_t x : {static_cast<int64_t>(step.kind), static_cast<int64_t>(rule.kind),
                              int64_t{rule.max_digits}, static_cast<int64_t>(rule.behavior),
                              int64_t{rule.is_inverted}, static_cast<int64_t>(step.prepend)})
        hash = hash_number(hash, x);
      hash = hash_bytes(hash_bytes(hash, rule.text), step.mark);
    }
  }
  const std::vector<Merge>& merges = m.merges.merges();
  const bool in_order = std::is_sorted(merges.begin(), merges.end(),
                                       [](const Merge& a, const Merge& b) { return a.result < b.result; });
  for (const Merge& merge : merges) {
    if (!in_order) hash = hash_number(hash_number(hash, merge.left), merge.right);
  }
  return hash;
}

}  // namespace

std::string symbols_to_bytes(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Char c = decode_utf8(token, at);
    const int32_t byte = symbol_to_byte(c.code_point);
    if (byte < 0) return std::string(token);
    bytes += static_cast<char>(byte);
    at += c.length;
  }
  return bytes;
}

std::string bytes_to_symbols(std::string_view bytes) {
  std::string token;
  for (char c : bytes) append_utf8(byte_to_symbol(static_cast<uint8_t>(c)), token);
  return token;
}

std::vector<std::string> all_tokens(const SpecialTokens& special) {
  std::vector<std::string> all;
  const auto add = [&](const std::string& token) {
    if (!token.empty() && std::find(all.begin(), all.end(), token) == all.end()) all.push_back(token);
  };
  for (const auto& [name, role] : kRoles) add(special.*role);
  for (const std::string& token : special.others) add(token);
  return all;
}

void Model::finish() {
  is_special.assign(tokens.size(), false);
  added_at.assign(tokens.size(), -1);
  bytes.clear();
  bytes.reserve(tokens.size());
  ids.clear(), added_ids.clear();
  for (size_t i = 0; i < added.size(); ++i) {
    AddedToken& token = added[i];
    is_special[static_cast<size_t>(token.id)] = token.special;
    added_at[static_cast<size_t>(token.id)] = static_cast<int32_t>(i);
    token.found = token.content;
    if (token.normalized) {
      if (const std::optional<Rewritten> form = normal(token.content)) token.found = form->text;
    }
    TokenFinder& finder = token.normalized ? normalized_tokens : given_tokens;
    finder.add(token.found, static_cast<int32_t>(i), !token.special);
  }
  for (const std::string& token : tokens) {
    const auto id = static_cast<int32_t>(bytes.size());
    const int32_t place = added_at[static_cast<size_t>(id)];
    TokenIndex& index = place >= 0 && !added[static_cast<size_t>(place)].in_vocab ? added_ids : ids;
    MH_CHECK(index.insert(token, id), FormatError, "tokenizer: token ", quote(token), " is listed twice");
    if (kind == Kind::wordpiece && token.starts_with(continuing)) {
      word_parts.insert(std::string_view(token).substr(continuing.size()), id);
    }
    longest_token = std::max(longest_token, token.size());
    bytes.push_back(decoded(id, false, false));
  }
  given_tokens.finish(), normalized_tokens.finish();
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    char spelled[8];
    std::snprintf(spelled, sizeof spelled, "<0x%02X>", b);
    const int32_t found = ids.find(byte_fallback ? std::string(spelled) : bytes_to_symbols({&byte, 1}));
    const bool is_byte = found >= 0 && (byte_fallback || (kind == Kind::bpe && !is_special[found]));
    byte_token[b] = is_byte ? found : -1;
    last_byte_token[b] = ids.find(bytes_to_symbols({&byte, 1}) + word_end);
  }
  if (kind != Kind::characters) return;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const Utf8Char c = decode_utf8(tokens[id], 0);
    if (!is_special[id] && c.code_point >= 0 && static_cast<size_t>(c.length) == tokens[id].size())
      characters.emplace(c.code_point, static_cast<int32_t>(id));
  }
}

int32_t Model::find(std::string_view token) const {
  const int32_t id = ids.find(token);
  return id >= 0 ? id : added_ids.find(token);
}

Normalizer Model::only_form() const {
  const bool is_form = steps.size() == 1 && steps[0].kind == NormalStep::Kind::unicode;
  return is_form ? steps[0].form : Normalizer::none;
}

const BertCleaning* Model::only_cleaning() const {
  return steps.size() == 1 && steps[0].kind == NormalStep::Kind::bert ? &steps[0].cleaning : nullptr;
}

size_t Tokenizer::safe_cut(std::string_view text, size_t at) const {
  const Model& model = *model_;
  for (const AddedToken& token : model.added)  // they are found first, wherever they lie
    if (!token.special) return text.size();
  if (kind() == Kind::characters) {
    while (at < text.size() && (text[at] & 0xC0) == 0x80) ++at;
    return std::min(at, text.size());
  }
  // No piece of these rules reaches across a space that follows something visible.
  const auto cuts_there = [](const CutStep& step) {
    using Kind = SplitRule::Kind;
    const Kind kind = step.rule.kind;
    const bool keeps_spaces_in_front = kind == Kind::gpt2 || kind == Kind::llama3;
    const bool drops_spaces = kind == Kind::bert || kind == Kind::white_space;
    const bool at_marks = kind == Kind::text && step.rule.text == CutStep().mark &&
                          step.rule.behavior == SplitRule::Behavior::merged_with_next;
    const SplitRule::Behavior behavior = step.rule.behavior;
    const bool removes = behavior == SplitRule::Behavior::removed,
               isolates = removes || behavior == SplitRule::Behavior::isolated;  // the others join pieces
    return step.kind == CutStep::Kind::split &&
           ((keeps_spaces_in_front && isolates) || at_marks || (drops_spaces && removes));
  };
  const bool looks_no_further =
      model.steps.empty() || model.only_form() != Normalizer::none || model.only_cleaning() != nullptr;
  const bool cuts_at_spaces =
      looks_no_further && std::any_of(model.cuts.begin(), model.cuts.end(), cuts_there);
  for (; cuts_at_spaces && at < text.size(); ++at) {
    const auto before = static_cast<unsigned char>(text[at - 1]);
    if (text[at] == ' ' && before > ' ' && before < 0x7F) return at;
  }
  return text.size();
}

const std::optional<Truncation>& Tokenizer::truncation() const { return model_->truncation; }
const std::optional<Padding>& Tokenizer::padding() const { return model_->padding; }
Tokenizer::Kind Tokenizer::kind() const { return model_->kind; }
int64_t Tokenizer::vocab_size() const { return std::ssize(model_->tokens); }
int64_t Tokenizer::plain_vocab_size() const {
  size_t size = model_->tokens.size();
  while (size > 0 && model_->added_at[size - 1] >= 0) --size;
  return static_cast<int64_t>(size);
}
const std::string& Tokenizer::token(int32_t id) const {
  return model_->tokens[checked_id(*model_, id, "tokenizer: token")];
}
bool Tokenizer::is_special(int32_t id) const {
  return model_->is_special[checked_id(*model_, id, "tokenizer: is_special")];
}
std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  const int32_t id = model_->find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<int32_t> Tokenizer::bos_id() const { return id(model_->special.bos); }
std::optional<int32_t> Tokenizer::eos_id() const { return id(model_->special.eos); }
std::optional<int32_t> Tokenizer::pad_id() const { return id(model_->special.pad); }
std::optional<int32_t> Tokenizer::unk_id() const { return id(model_->special.unk); }
const SpecialTokens& Tokenizer::special() const { return model_->special; }
const std::string& Tokenizer::source_language() const { return model_->source_language; }
const std::string& Tokenizer::target_language() const { return model_->target_language; }

uint64_t Tokenizer::fingerprint() const {
  const Model& m = *model_;
  uint64_t hash = 0xCBF29CE484222325u;
  const bool adds_space = std::any_of(m.cuts.begin(), m.cuts.end(), [](const CutStep& step) {
    return step.kind == CutStep::Kind::prefix_space;
  });
  for (int64_t x : {static_cast<int64_t>(m.kind), int64_t{adds_space}, int64_t{m.ignore_merges},
                    int64_t{m.fuse_unk}, int64_t{m.unk}, int64_t{std::ssize(m.tokens)}})
    hash = hash_number(hash, x);
  for (const std::string& token : m.tokens) hash = hash_bytes(hash_number(hash, std::ssize(token)), token);
  for (const AddedToken& a : m.added)
    hash = hash_number(hash, a.id << 3 | a.special << 2 | a.lstrip << 1 | int{a.rstrip});
  if (m.splits_special) hash = hash_number(hash, 1);
  if (m.cuts_left) hash = hash_number(hash, 2);
  if (m.lacks_types) hash = hash_number(hash, 3);
  for (const std::string* language : {&m.source_language, &m.target_language})
    if (!language->empty()) hash = hash_bytes(hash_number(hash, 4), *language);
  // Later options count only where they are used, so that older fingerprints hold: those of GPT-2's splitting, and
  // of merges in the order of the tokens that they make.
  if (m.kind == Kind::bpe) hash = hash_cuts_and_merges(hash, m);
  const BertCleaning* const c = m.only_cleaning();
  if (m.is_sentencepiece() || m.kind == Kind::words || m.has_new_parts()) hash = hash_bytes(hash, m.source);
  if (c != nullptr) {
    hash = hash_number(
        hash, c->clean_text << 3 | c->handle_chinese_chars << 2 | c->strip_accents << 1 | int{c->lowercase});
    hash = hash_number(hash_bytes(hash, m.continuing), m.longest_word);
  }
  if (m.only_form() == Normalizer::none) return hash;
  hash = hash_number(hash, static_cast<int>(m.only_form()));
  for (const AddedToken& a : m.added)
    if (a.normalized) hash = hash_number(hash, ~int64_t{a.id});
  for (const CutStep& step : m.cuts)
    if (step.kind == CutStep::Kind::split && step.rule.kind <= SplitRule::Kind::digit_runs)
      hash = hash_number(hash_number(hash, static_cast<int>(step.rule.kind)), step.rule.max_digits);
  for (const Merge& merge : m.merges.merges()) hash = hash_number(hash_number(hash, merge.left), merge.right);
  return hash;
}

bool Model::has_new_parts() const {
  const bool is_simple = steps.empty() || only_form() != Normalizer::none || only_cleaning() != nullptr;
  const auto is_new_cut = [](const CutStep& step) {
    const SplitRule& rule = step.rule;
    const bool is_old_rule = rule.kind <= SplitRule::Kind::digit_runs || rule.kind == SplitRule::Kind::bert;
    return step.kind == CutStep::Kind::split && !is_old_rule;
  };
  return !is_simple || !word_end.empty() || std::any_of(cuts.begin(), cuts.end(), is_new_cut) ||
         std::any_of(added.begin(), added.end(), [](const AddedToken& token) { return token.single_word; });
}

}  // namespace multihead::text
