#include "multihead/text/tokenizer/encoder-inl.h"

#include <algorithm>
#include <cstdio>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

size_t space_begin(std::string_view text, size_t floor, size_t at) {
  while (at > floor) {
    size_t before = at - 1;
    while (before > floor && (text[before] & 0xC0) == 0x80) --before;
    if (char_class(decode_utf8(text, before).code_point) != CharClass::space) break;
    at = before;
  }
  return at;
}

size_t space_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char c = decode_utf8(text, at);
    if (char_class(c.code_point) != CharClass::space) break;
    at += c.length;
  }
  return at;
}

bool is_word_at(std::string_view text, size_t at) {
  const int32_t c = decode_utf8(text, at).code_point;
  return c >= 0 && is_word_character(c);
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  size_t before = begin;
  while (before > 0 && begin - before < 4 && (before == begin || (text[before] & 0xC0) == 0x80)) --before;
  return !(begin > 0 && is_word_at(text, before)) && !(end < text.size() && is_word_at(text, end));
}

// Calls `on_text(begin, end)` for what is between added tokens, which `on_token(id, begin, end)` gets.
template <class OnText, class OnToken>
void split_at_tokens(const Model& model, const TokenFinder& finder, std::string_view text, bool parse_special,
                     OnText&& on_text, OnToken&& on_token) {
  size_t done = 0, from = 0, spaces_end = 0;
  TokenScan scan(finder, text, !parse_special);
  for (TokenScan::Found found = scan.next(0); found.token >= 0; found = scan.next(from)) {
    const AddedToken& token = model.added[static_cast<size_t>(found.token)];
    size_t begin = found.begin, end = found.begin + token.found.size();
    from = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(done, space_begin(text, done, begin));
    if (token.rstrip) end = spaces_end = end < spaces_end ? spaces_end : space_end(text, end);
    on_text(done, begin);
    // Tokens of white space that another one has swallowed are found all the same.
    if (begin < end) on_token(token.id, begin, end);
    done = end;
  }
  on_text(done, text.size());
}

bool needs_place(const CutStep& step) {
  return step.kind == CutStep::Kind::marks && step.prepend == CutStep::Prepend::first;
}

}  // namespace

void Encoder::text(std::string_view text, bool parse_special) {
  given_ = text;
  base_ = text.data();
  parse_special = parse_special && !model_.splits_special;
  split_at_tokens(
      model_, model_.given_tokens, text, parse_special,
      [&](size_t begin, size_t end) {
        if (end > begin) given_text(text.substr(begin, end - begin), begin, parse_special);
      },
      [&](int32_t id, size_t begin, size_t end) { put(id, text.substr(begin, end - begin), true); });
}

void Encoder::given_text(std::string_view text, size_t begin, bool parse_special) {
  const bool is_placed = begin == 0 && std::any_of(model_.cuts.begin(), model_.cuts.end(), needs_place);
  const std::optional<Rewritten> normal = model_.normal(text, spans_ != nullptr || is_placed);
  if (!normal) return normal_text(text, parse_special, begin == 0);
  const bool is_first = is_placed && !normal->text.empty() && normal->from[0] == 0;
  inside(*normal, text.data(), [&] { normal_text(normal->text, parse_special, is_first); });
}

void Encoder::normal_text(std::string_view text, bool parse_special, bool is_first) {
  split_at_tokens(
      model_, model_.normalized_tokens, text, parse_special,
      [&](size_t begin, size_t end) {
        if (end > begin) cut(text.substr(begin, end - begin), model_.cuts, is_first && begin == 0);
      },
      [&](int32_t id, size_t begin, size_t end) { put(id, text.substr(begin, end - begin), true); });
}

void Encoder::cut(std::string_view text, std::span<const CutStep> steps, bool is_first) {
  if (steps.empty()) return piece(text);
  const auto rest = steps.subspan(1);
  if (steps[0].kind == CutStep::Kind::split) {
    return split_text(text, steps[0].rule, [&](std::string_view part) {
      rest.empty() ? piece(part) : cut(part, rest, is_first && part.data() == text.data());
    });
  }
  const Rewritten changed = steps[0].changed(text, is_first, spans_ != nullptr);
  inside(changed, text.data(), [&] { cut(changed.text, rest, is_first); });
}

// The cache's keys point into the texts: those of the changed one live no longer.
template <class Use>
void Encoder::inside(const Rewritten& changed, const char* place, Use&& use) {
  const char* const outer = std::exchange(base_, changed.text.data());
  const size_t first = ids_.size();
  cache_ = {};
  use();
  cache_ = {};
  base_ = outer;
  if (spans_ == nullptr) return;
  const auto at = static_cast<size_t>(place - outer);
  for (size_t i = first; i < spans_->size(); ++i) {
    TokenSpan& span = (*spans_)[i];
    span.first = at + changed.from[span.first];
    span.last = at + changed.from[span.last];
  }
}

void Encoder::put(int32_t id, std::string_view text, bool is_added) {
  ids_.push_back(id);
  if (spans_ == nullptr) return;
  const auto begin = static_cast<size_t>(text.data() - base_);
  spans_->push_back({begin, begin + text.size() - 1});
  if (is_added) spell(text);
}

void Encoder::spell(std::string_view text) {
  if (spans_ == nullptr || text == model_.tokens[static_cast<size_t>(ids_.back())]) return;
  spans_->back().spelling = static_cast<int32_t>(spellings_->size());
  spellings_->push_back(valid_utf8(text));
}

void Encoder::extend(std::string_view text) {
  if (spans_ != nullptr) spans_->back().last = static_cast<size_t>(text.data() - base_) + text.size() - 1;
}

void Encoder::piece(std::string_view piece) {
  const bool is_cached = piece.size() <= kCachedBytes &&
                         (model_.kind == Tokenizer::Kind::bpe || model_.kind == Tokenizer::Kind::wordpiece);
  if (!is_cached) return make_tokens(piece);
  if (const auto seen = cache_.find(piece); seen != cache_.end()) {
    const auto [begin, size] = seen->second;
    ids_.resize(ids_.size() + size);
    std::copy_n(ids_.begin() + static_cast<std::ptrdiff_t>(begin), size,
                ids_.end() - static_cast<std::ptrdiff_t>(size));
    if (spans_ == nullptr) return;
    const std::ptrdiff_t shift = piece.data() - seen->first.data();
    for (size_t i = begin; i < begin + size; ++i) {
      const TokenSpan span = (*spans_)[i];
      spans_->push_back({span.first + static_cast<size_t>(shift), span.last + static_cast<size_t>(shift)});
    }
    return;
  }
  const size_t begin = ids_.size();
  make_tokens(piece);
  if (cache_.size() == kCachedPieces) cache_.clear();
  cache_.emplace(piece, Cached{begin, ids_.size() - begin});
}

void Encoder::make_tokens(std::string_view piece) {
  switch (model_.kind) {
    case Tokenizer::Kind::characters:
      return characters(piece);
    case Tokenizer::Kind::bpe:
      return merge_bytes(piece);
    case Tokenizer::Kind::wordpiece:
      return word(piece);
    case Tokenizer::Kind::unigram:
      return most_probable(piece);
    case Tokenizer::Kind::character_bpe:
      return merge_characters(piece);
    case Tokenizer::Kind::words:
      return whole(piece);
  }
}

void Encoder::characters(std::string_view text) {
  ids_.reserve(ids_.size() + text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    const std::string_view character = text.substr(at, static_cast<size_t>(c.length));
    at += character.size();
    const auto offset = [&] { return character.data() - given_.data(); };
    MH_CHECK(c.code_point >= 0, ValueError, "tokenizer: a character tokenizer takes UTF-8 only, got byte ",
             quote(character), " at offset ", offset());
    const auto found = model_.characters.find(c.code_point);
    if (found == model_.characters.end() && model_.unk < 0) {
      char code[16];
      std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(c.code_point));
      throw ValueError(concat("tokenizer: character ", quote(character), " (", code, ") at offset ", offset(),
                              " is not among the ", model_.characters.size(),
                              " it knows, and it has no unknown token"));
    }
    put(found == model_.characters.end() ? model_.unk : found->second, character);
  }
}

void Encoder::most_probable(std::string_view piece) {
  model_.unigram.cut(piece, [&](std::string_view part, int32_t id) {
    const int32_t known = id >= 0 ? -1 : model_.ids.find(part);
    if (id >= 0) {
      put(id, part);
    } else if (known >= 0 && !model_.is_special[static_cast<size_t>(known)]) {
      put(known, part);
    } else if (!put_bytes(part, false)) {
      put_unknown(part);
      spell(part);
    }
  });
}

void Encoder::whole(std::string_view word) {
  if (!put_whole(word, word)) put_unknown(word);
}

// Special tokens are found before.
bool Encoder::put_whole(std::string_view token, std::string_view text) {
  const int32_t id = model_.ids.find(token);
  const bool is_plain = id >= 0 && !model_.is_special[static_cast<size_t>(id)];
  if (is_plain) put(id, text);
  return is_plain;
}

void Encoder::merge_characters(std::string_view piece) {
  if (model_.ignore_merges && put_whole(piece, piece)) return;
  const size_t begin = ids_.size();
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, static_cast<size_t>(decode_utf8(piece, at).length));
    at += character.size();
    const int32_t found = at == piece.size() && !model_.word_end.empty()
                              ? model_.ids.find(std::string(character) + model_.word_end)
                              : model_.ids.find(character);
    if (found >= 0) {
      put(found, character);
    } else if (!put_bytes(character, true)) {
      const bool is_fused = model_.fuse_unk && ids_.size() > begin && ids_.back() == model_.unk;
      is_fused ? extend(character) : put_unknown(character);
    }
  }
  model_.merges.apply(ids_, begin, spans_);
}

// The tokens of the bytes, if there are all of them.
bool Encoder::put_bytes(std::string_view text, bool each_its_own) {
  if (!model_.byte_fallback) return false;
  const auto token = [&](char c) { return model_.byte_token[static_cast<unsigned char>(c)]; };
  if (std::any_of(text.begin(), text.end(), [&](char c) { return token(c) < 0; })) return false;
  for (size_t i = 0; i < text.size(); ++i) put(token(text[i]), each_its_own ? text.substr(i, 1) : text);
  return true;
}

void Encoder::put_unknown(std::string_view text) {
  MH_CHECK(model_.unk >= 0, ValueError, "tokenizer: ", quote(text, 40),
           " has no token, and the tokenizer has no unknown token");
  put(model_.unk, text);
}

// The longest token that the rest of the word begins with, again and again (Schuster & Nakajima 2012).
void Encoder::word(std::string_view word) {
  const size_t begin = ids_.size();
  size_t at = 0;
  bool known =
      static_cast<int64_t>(word.size()) <= model_.longest_word || count_utf8(word) <= model_.longest_word;
  while (known && at < word.size()) {
    const TokenIndex& tokens = at == 0 ? model_.ids : model_.word_parts;
    size_t length = std::min(word.size() - at, model_.longest_token);
    int32_t found = tokens.find(word.substr(at, length));
    while (found < 0 && --length > 0) found = tokens.find(word.substr(at, length));
    known = found >= 0;
    if (known) put(found, word.substr(at, length));
    at += length;
  }
  if (known) return;
  ids_.resize(begin);
  if (spans_ != nullptr) spans_->resize(begin);
  put_unknown(word);
}

void Encoder::merge_bytes(std::string_view piece) {
  if (model_.ignore_merges && put_whole(bytes_to_symbols(piece), piece)) return;
  const size_t begin = ids_.size();
  for (size_t i = 0; i < piece.size(); ++i) {
    const std::string_view byte = piece.substr(i, 1);
    const bool ends = i + 1 == piece.size() && !model_.word_end.empty();
    const int32_t id =
        (ends ? model_.last_byte_token : model_.byte_token)[static_cast<unsigned char>(piece[i])];
    if (id >= 0) {
      put(id, byte);
    } else if (model_.fuse_unk && ids_.size() > begin && ids_.back() == model_.unk) {
      extend(byte);
    } else {
      put_unknown(byte);
    }
  }
  model_.merges.apply(ids_, begin, spans_);
}

}  // namespace multihead::text
