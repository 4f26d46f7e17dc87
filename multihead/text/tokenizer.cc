#include "multihead/text/tokenizer.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "multihead/core/error.h"
#include "multihead/text/model-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

class Encoder {
 public:
  Encoder(const Model& model, std::vector<int32_t>& out) : model_(model), out_(out) {}

  /// Text without added tokens that begins `offset` bytes into the caller's.
  void text(std::string_view text, size_t offset) {
    if (text.empty()) return;
    if (model_.kind == Tokenizer::Kind::characters) return characters(text, offset);
    if (model_.kind == Tokenizer::Kind::wordpiece) {
      return bert_words(text, [&](std::string_view word) { this->piece(word); });
    }
    if (model_.is_sentencepiece()) return marked_pieces(text, offset == 0);
    if (model_.add_prefix_space && text[0] != ' ') return passing_text(' ' + std::string(text));
    byte_pairs(text);
  }

  /// For the cache, whose keys point into the texts: those before and those to come live no longer.
  void forget() { cache_.clear(); }

 private:
  struct Span {
    size_t begin, size;
  };
  static constexpr size_t kCachedPieces = 1 << 16, kCachedBytes = 64;

  void characters(std::string_view text, size_t offset) {
    out_.reserve(out_.size() + text.size());
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = decode_utf8(text, at);
      MH_CHECK(c.code_point >= 0, ValueError, "tokenizer: a character tokenizer takes UTF-8 only, got byte ",
               quote(text.substr(at, 1)), " at offset ", offset + at);
      const auto found = model_.characters.find(c.code_point);
      if (found == model_.characters.end()) check_unk(text.substr(at, c.length), offset + at);
      out_.push_back(found == model_.characters.end() ? model_.unk : found->second);
      at += c.length;
    }
  }

  void check_unk(std::string_view character, size_t offset) const {
    if (model_.unk >= 0) return;
    char code[16];
    std::snprintf(code, sizeof code, "U+%04X", static_cast<unsigned>(decode_utf8(character, 0).code_point));
    throw ValueError(concat("tokenizer: character ", quote(character), " (", code, ") at offset ", offset,
                            " is not among the ", model_.characters.size(),
                            " it knows, and it has no token for unknown ones"));
  }

  void marked_pieces(std::string_view text, bool is_first) {
    const auto use = [&](std::string_view piece) {
      model_.kind == Tokenizer::Kind::unigram ? likeliest(piece) : merge_characters(piece);
    };
    model_.metaspace ? model_.metaspace->each_piece(text, is_first, use) : use(text);
  }

  void likeliest(std::string_view piece) {
    model_.unigram.cut(piece, [&](std::string_view part, int32_t id) {
      const auto known = id >= 0 ? model_.ids.end() : model_.ids.find(part);
      if (id >= 0) {
        out_.push_back(id);
      } else if (known != model_.ids.end()) {
        out_.push_back(known->second);
      } else if (!put_bytes(part)) {
        put_unknown(part);
      }
    });
  }

  void merge_characters(std::string_view piece) {
    const size_t begin = out_.size();
    for (size_t at = 0; at < piece.size();) {
      const std::string_view character = piece.substr(at, static_cast<size_t>(decode_utf8(piece, at).length));
      at += character.size();
      const auto found = model_.ids.find(character);
      if (found != model_.ids.end()) {
        out_.push_back(found->second);
      } else if (!put_bytes(character)) {
        const bool is_fused = model_.fuse_unk && out_.size() > begin && out_.back() == model_.unk;
        if (!is_fused) put_unknown(character);
      }
    }
    model_.merges.apply(out_, begin);
  }

  // The tokens of the bytes, if there are all of them.
  bool put_bytes(std::string_view text) {
    if (!model_.byte_fallback) return false;
    const auto token = [&](char c) { return model_.byte_token[static_cast<unsigned char>(c)]; };
    if (std::any_of(text.begin(), text.end(), [&](char c) { return token(c) < 0; })) return false;
    for (const char c : text) out_.push_back(token(c));
    return true;
  }

  void put_unknown(std::string_view text) {
    MH_CHECK(model_.unk >= 0, ValueError, "tokenizer: ", quote(text, 40),
             " has no token, and there is none for unknown characters");
    out_.push_back(model_.unk);
  }

  void passing_text(const std::string& text) {
    forget();
    byte_pairs(text);
    forget();
  }

  void byte_pairs(std::string_view text) {
    split_text(text, model_.rules, [&](std::string_view piece) { this->piece(piece); });
  }

  // Words repeat: the ids of a piece seen before are copied from where they stand in the output.
  void piece(std::string_view piece) {
    const bool cached = piece.size() <= kCachedBytes;
    if (cached) {
      if (const auto seen = cache_.find(piece); seen != cache_.end()) {
        out_.resize(out_.size() + seen->second.size);
        std::copy_n(out_.begin() + seen->second.begin, seen->second.size, out_.end() - seen->second.size);
        return;
      }
    }
    const size_t begin = out_.size();
    model_.kind == Tokenizer::Kind::wordpiece ? word(piece) : merge_piece(piece);
    if (!cached) return;
    if (cache_.size() == kCachedPieces) cache_.clear();
    cache_.emplace(piece, Span{begin, out_.size() - begin});
  }

  // The longest token that the rest of the word begins with, again and again (Schuster & Nakajima 2012).
  void word(std::string_view word) {
    const size_t begin = out_.size();
    size_t at = 0;
    bool known = is_short(word);
    while (known && at < word.size()) {
      const auto& tokens = at == 0 ? model_.ids : model_.word_parts;
      size_t length = std::min(word.size() - at, model_.longest_token);
      auto found = tokens.find(word.substr(at, length));
      while (found == tokens.end() && --length > 0) found = tokens.find(word.substr(at, length));
      known = found != tokens.end();
      if (known) out_.push_back(found->second);
      at += length;
    }
    if (known) return;
    out_.resize(begin);
    out_.push_back(model_.unk);
  }

  bool is_short(std::string_view word) const {
    const auto is_first = [](char c) { return (c & 0xC0) != 0x80; };
    return static_cast<int64_t>(word.size()) <= model_.longest_word ||
           std::count_if(word.begin(), word.end(), is_first) <= model_.longest_word;
  }

  void merge_piece(std::string_view piece) {
    if (model_.ignore_merges) {
      const auto whole = model_.ids.find(bytes_to_symbols(piece));
      if (whole != model_.ids.end() && !model_.is_special[whole->second]) {
        out_.push_back(whole->second);
        return;
      }
    }
    const size_t begin = out_.size();
    for (char c : piece) {
      const int32_t id = model_.byte_token[static_cast<unsigned char>(c)];
      if (id >= 0) {
        out_.push_back(id);
        continue;
      }
      MH_CHECK(model_.unk >= 0, ValueError, "tokenizer: byte ", quote({&c, 1}),
               " has no token, and there is none for unknown bytes");
      if (!(model_.fuse_unk && out_.size() > begin && out_.back() == model_.unk)) out_.push_back(model_.unk);
    }
    model_.merges.apply(out_, begin);
  }

  const Model& model_;
  std::vector<int32_t>& out_;
  std::unordered_map<std::string_view, Span> cache_;
};

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

// Calls `on_text(begin, end)` for what is between added tokens, which `on_token(id)` gets.
template <class OnText, class OnToken>
void split_at_tokens(const Model& model, const TokenFinder& finder, std::string_view text, bool parse_special,
                     OnText&& on_text, OnToken&& on_token) {
  size_t begin = 0;
  TokenScan scan(finder, text, !parse_special);
  for (TokenScan::Found found = scan.next(0); found.token >= 0; found = scan.next(begin)) {
    const AddedToken& token = model.added[found.token];
    on_text(begin, token.lstrip ? space_begin(text, begin, found.begin) : found.begin);
    on_token(token.id);
    begin = found.begin + token.found.size();
    if (token.rstrip) begin = space_end(text, begin);
  }
  on_text(begin, text.size());
}

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
  bytes.clear();
  ids.clear();
  for (const std::string& token : tokens) {
    const auto id = static_cast<int32_t>(bytes.size());
    ids.emplace(token, id);
    if (kind == Kind::wordpiece && token.starts_with(continuing)) {
      word_parts.emplace(std::string_view(token).substr(continuing.size()), id);
    }
    longest_token = std::max(longest_token, token.size());
    bytes.push_back(bytes_of(token));
  }
  for (size_t i = 0; i < added.size(); ++i) {
    AddedToken& token = added[i];
    is_special[token.id] = token.special;
    bytes[token.id] = token.content;
    token.found = token.normalized ? normal(token.content).value_or(token.content) : token.content;
    TokenFinder& finder = token.normalized ? normalized_tokens : given_tokens;
    finder.add(token.found, static_cast<int32_t>(i), !token.special);
  }
  given_tokens.finish(), normalized_tokens.finish();
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    char spelled[8];
    std::snprintf(spelled, sizeof spelled, "<0x%02X>", b);
    const auto found = ids.find(byte_fallback ? std::string(spelled) : bytes_to_symbols({&byte, 1}));
    const bool is_byte =
        found != ids.end() && (byte_fallback || (kind == Kind::bpe && !is_special[found->second]));
    byte_token[b] = is_byte ? found->second : -1;
  }
  if (kind != Kind::characters) return;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const Utf8Char c = decode_utf8(tokens[id], 0);
    if (!is_special[id] && c.code_point >= 0 && static_cast<size_t>(c.length) == tokens[id].size())
      characters.emplace(c.code_point, static_cast<int32_t>(id));
  }
}

std::optional<std::string> Model::normal(std::string_view text) const {
  if (!steps.empty()) return apply_steps(steps, text);
  return cleaning ? std::optional(bert_cleaned(*cleaning, text)) : normalized(normalizer, text);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const Model& model = *model_;
  std::vector<int32_t> ids = encode_text(text, options.parse_special);
  const bool ends = options.add_template && options.end && std::ranges::count(model.suffix, *options.end) > 0;
  const size_t added = options.end && !ends ? 1 : 0;
  const size_t around = (options.add_template ? model.prefix.size() + model.suffix.size() : 0) + added;
  if (options.max_length > 0) {
    MH_CHECK(options.max_length >= around, ValueError, "tokenizer: max_length ", options.max_length,
             " is less than the ", around, " ids of the template");
    ids.resize(std::min(ids.size(), options.max_length - around));
  }
  if (options.add_template) {
    ids.insert(ids.begin(), model.prefix.begin(), model.prefix.end());
    ids.insert(ids.end(), model.suffix.begin(), model.suffix.end());
  }
  if (added > 0) ids.push_back(*options.end);
  return ids;
}

namespace {

// What is left of two texts of these sizes in `room` ids: the longer one is cut first.
std::pair<size_t, size_t> shortened(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const size_t less = std::min(first, second);
  if (2 * less > room) {
    const bool odd_goes_to_first = first > second;
    return {room / 2 + (odd_goes_to_first ? room % 2 : 0), room / 2 + (odd_goes_to_first ? 0 : room % 2)};
  }
  return first < second ? std::pair(first, room - first) : std::pair(room - second, second);
}

}  // namespace

PairEncoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                    const EncodeOptions& options) const {
  const std::vector<TemplateItem>& items = model_->pair;
  MH_CHECK(!items.empty(), ValueError, "tokenizer: it has no template for pairs of texts");
  std::vector<int32_t> texts[] = {encode_text(first, options.parse_special),
                                  encode_text(second, options.parse_special)};
  if (options.max_length > 0) {
    const auto around = static_cast<size_t>(
        std::count_if(items.begin(), items.end(), [](const TemplateItem& item) { return item.text < 0; }));
    MH_CHECK(options.max_length >= around, ValueError, "tokenizer: max_length ", options.max_length,
             " is less than the ", around, " ids of the template");
    const auto [a, b] = shortened(texts[0].size(), texts[1].size(), options.max_length - around);
    texts[0].resize(a), texts[1].resize(b);
  }
  PairEncoding out;
  for (const TemplateItem& item : items) {
    if (item.text < 0) {
      out.ids.push_back(item.id);
    } else {
      out.ids.insert(out.ids.end(), texts[item.text].begin(), texts[item.text].end());
    }
    out.type_ids.resize(out.ids.size(), item.type_id);
  }
  return out;
}

std::vector<int32_t> Tokenizer::encode_text(std::string_view text, bool parse_special) const {
  const Model& model = *model_;
  std::vector<int32_t> out;
  Encoder encoder(model, out);
  const auto put = [&](int32_t id) { out.push_back(id); };
  const auto normal_text = [&](std::string_view piece, size_t offset) {
    split_at_tokens(
        model, model.normalized_tokens, piece, parse_special,
        [&](size_t begin, size_t end) { encoder.text(piece.substr(begin, end - begin), offset + begin); },
        put);
  };
  const auto given_text = [&](size_t begin, size_t end) {
    const std::string_view piece = text.substr(begin, end - begin);
    const std::optional<std::string> normal = model.normal(piece);
    if (!normal) return normal_text(piece, begin);
    encoder.forget();
    normal_text(*normal, begin);
    encoder.forget();
  };
  split_at_tokens(model, model.given_tokens, text, parse_special, given_text, put);
  return out;
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
  const auto keeps_spaces_in_front = [](const SplitRule& rule) {
    return rule.kind == SplitRule::Kind::gpt2 || rule.kind == SplitRule::Kind::llama3;
  };
  const bool cuts_at_marks = model.metaspace && model.metaspace->cuts && model.steps.empty();
  const bool cuts_at_spaces = kind() == Kind::wordpiece || cuts_at_marks ||
                              std::any_of(model.rules.begin(), model.rules.end(), keeps_spaces_in_front);
  for (; cuts_at_spaces && at < text.size(); ++at) {
    const auto before = static_cast<unsigned char>(text[at - 1]);
    if (text[at] == ' ' && before > ' ' && before < 0x7F) return at;
  }
  return text.size();
}

Tokenizer::Kind Tokenizer::kind() const { return model_->kind; }
int64_t Tokenizer::vocab_size() const { return std::ssize(model_->tokens); }
const std::string& Tokenizer::token(int32_t id) const {
  return model_->tokens[checked_id(*model_, id, "tokenizer: token")];
}
bool Tokenizer::is_special(int32_t id) const {
  return model_->is_special[checked_id(*model_, id, "tokenizer: is_special")];
}
std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  const auto found = model_->ids.find(token);
  return found == model_->ids.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int32_t> Tokenizer::bos_id() const { return id(model_->special.bos); }
std::optional<int32_t> Tokenizer::eos_id() const { return id(model_->special.eos); }
std::optional<int32_t> Tokenizer::pad_id() const { return id(model_->special.pad); }
std::optional<int32_t> Tokenizer::unk_id() const { return id(model_->special.unk); }
const SpecialTokens& Tokenizer::special() const { return model_->special; }

uint64_t Tokenizer::fingerprint() const {
  const Model& m = *model_;
  uint64_t hash = 0xCBF29CE484222325u;
  for (int64_t x : {static_cast<int64_t>(m.kind), int64_t{m.add_prefix_space}, int64_t{m.ignore_merges},
                    int64_t{m.fuse_unk}, int64_t{m.unk}, int64_t{std::ssize(m.tokens)}})
    hash = hash_number(hash, x);
  for (const std::string& token : m.tokens) hash = hash_bytes(hash_number(hash, std::ssize(token)), token);
  for (const AddedToken& a : m.added)
    hash = hash_number(hash, a.id << 3 | a.special << 2 | a.lstrip << 1 | int{a.rstrip});
  // What came later counts where it is used, so that older fingerprints hold.
  if (m.is_sentencepiece() || !m.steps.empty()) hash = hash_bytes(hash, m.source);
  if (m.cleaning) {
    const BertCleaning& c = *m.cleaning;
    hash = hash_number(
        hash, c.clean_text << 3 | c.handle_chinese_chars << 2 | c.strip_accents << 1 | int{c.lowercase});
    hash = hash_number(hash_bytes(hash, m.continuing), m.longest_word);
  }
  if (m.normalizer == Normalizer::none) return hash;
  hash = hash_number(hash, static_cast<int>(m.normalizer));
  for (const AddedToken& a : m.added)
    if (a.normalized) hash = hash_number(hash, ~int64_t{a.id});
  for (const SplitRule& rule : m.rules)
    hash = hash_number(hash_number(hash, static_cast<int>(rule.kind)), rule.max_digits);
  for (const Merge& merge : m.merges.merges()) hash = hash_number(hash_number(hash, merge.left), merge.right);
  return hash;
}

}  // namespace multihead::text
