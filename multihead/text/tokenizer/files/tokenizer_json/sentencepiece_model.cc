// SentencePiece's own files (protocol buffers, sentencepiece_model.proto) as the tokenizer.json that says the
// same.
#include "multihead/text/tokenizer/files/tokenizer_json/sentencepiece_model-inl.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

using Type = SentencePiece::Type;

// A message of protocol buffers, field by field.
class Message {
 public:
  Message(std::string_view bytes, const std::string& file) : rest_(bytes), file_(file) {}

  struct Field {
    uint64_t number = 0;
    uint64_t value = 0;      // of integers, and the bits of floats
    std::string_view bytes;  // of texts and messages
  };
  /// False: there are no more.
  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field = {.number = key >> 3};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        field.value = fixed<uint64_t>();
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.value = fixed<uint32_t>();
        break;
      default:
        damaged("a field of kind ", key & 7);
    }
    return true;
  }
  template <class... Parts>
  [[noreturn]] void damaged(const Parts&... parts) const {
    throw FormatError(concat(file_, ": this is no SentencePiece model, or it is damaged: ", parts...));
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    damaged("a number of more than 64 bits");
  }
  template <class T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) damaged(size, " bytes are needed, but ", rest_.size(), " are left");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  const std::string& file_;
};

SentencePiece piece_of(Message message) {
  SentencePiece piece;
  for (Message::Field field; message.next(field);) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) piece.type = static_cast<Type>(std::min<uint64_t>(field.value, 7));
  }
  if (piece.text.empty() || find_invalid_utf8(piece.text) != std::string::npos)
    message.damaged("the piece ", quote(piece.text, 40));
  if (piece.type < Type::normal || piece.type > Type::byte)
    message.damaged("the type of ", quote(piece.text));
  if (!(std::abs(piece.score) < 1e30)) message.damaged("the score of ", quote(piece.text));
  return piece;
}

void read_trainer(Message message, SentencePieceModel& model) {
  for (Message::Field field; message.next(field);) {
    if (field.number == 3) {
      if (field.value != 1 && field.value != 2 && field.value != 4)
        message.damaged("model_type must be 1 (unigram), 2 (BPE) or 4 (characters), got ", field.value);
      model.is_unigram = field.value == 1;
      model.is_characters = field.value == 4;
    }
    if (field.number == 24 && field.value != 0) message.damaged("spaces as suffixes are not supported");
    if (field.number == 35) model.byte_fallback = field.value != 0;
  }
}

void read_normalizer(Message message, SentencePieceModel& model) {
  for (Message::Field field; message.next(field);) {
    if (field.number == 2) model.charsmap = field.bytes;
    if (field.number == 3) model.begins_with_space = field.value != 0;
    if (field.number == 4) model.squeezes_spaces = field.value != 0;
    if (field.number == 5 && field.value == 0) message.damaged("spaces that stay spaces are not supported");
  }
}

void check_denormalizer(Message message) {
  for (Message::Field field; message.next(field);) {
    if (field.number == 2 && !field.bytes.empty()) message.damaged("denormalizer_spec is not supported");
  }
}

std::string to_base64(std::string_view bytes) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const auto byte = [&](size_t i) {
      return i < bytes.size() ? uint32_t{static_cast<unsigned char>(bytes[i])} : 0;
    };
    const uint32_t bits = byte(at) << 16 | byte(at + 1) << 8 | byte(at + 2);
    for (size_t i = 0; i < 4; ++i) out += at + i > bytes.size() ? '=' : kAlphabet[bits >> (18 - 6 * i) & 63];
  }
  return out;
}

constexpr char kMark[] = "\xE2\x96\x81";  // stands for a space

// Added tokens would stand before the dummy prefix, or have one of their own.
bool cuts_out_symbols(const SentencePieceModel& m) {
  return m.is_bare && !m.is_unigram && m.begins_with_space &&
         std::any_of(m.pieces.begin(), m.pieces.end(),
                     [](const SentencePiece& piece) { return piece.type == Type::user_defined; });
}

// Tokens that are taken out of a text before it is cut. Marks are not in texts as given, so there runs of
// them are merged.
bool is_added(const SentencePieceModel& m, const SentencePiece& piece) {
  const bool defined =
      piece.type == Type::user_defined &&
      (m.is_bare ? !m.is_unigram && !cuts_out_symbols(m) : piece.text.find(kMark) == std::string::npos);
  return piece.type == Type::control || piece.type == Type::unknown || defined;
}

// Bounds the cost of merges: pieces of a hostile file, each the beginning of the next, would have as many merges
// as characters. Real vocabularies have some two merges a piece.
class MergeBudget {
 public:
  explicit MergeBudget(const SentencePieceModel& m) : file_(m.file) {
    for (const SentencePiece& piece : m.pieces) bytes_ += piece.text.size();
    bytes_ = 64 * bytes_ + (1 << 20);
  }
  void charge(size_t bytes) {
    MH_CHECK(
        bytes <= bytes_, FormatError, file_,
        ": its pieces can be merged in too many ways; shorter pieces, or fewer of them that begin alike, "
        "are supported");
    bytes_ -= bytes;
  }

 private:
  const std::string& file_;
  size_t bytes_ = 0;
};

// Every pair of pieces that makes a piece; the piece with the highest score first.
Json merges_of(const SentencePieceModel& m) {
  const std::vector<SentencePiece>& pieces = m.pieces;
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) ids.emplace(pieces[id].text, id);
  MergeBudget looked_up(m), found_bytes(m);
  struct Found {
    double score;
    size_t left, right;
  };
  std::vector<Found> found;
  for (const SentencePiece& piece : pieces) {
    if (is_added(m, piece) || piece.type == Type::byte || piece.type == Type::unused) continue;
    const std::string_view text = piece.text;
    for (size_t at = 1; at < text.size(); ++at) {
      if ((text[at] & 0xC0) == 0x80) continue;
      looked_up.charge(text.size());
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      found_bytes.charge(text.size() + sizeof(Found));
      found.push_back({piece.score, left->second, right->second});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tuple(-a.score, a.left, a.right) < std::tuple(-b.score, b.left, b.right);
  });
  Json merges = Json::array();
  for (const Found& merge : found) {
    merges.push_back(Json(std::vector<Json>{pieces[merge.left].text, pieces[merge.right].text}));
  }
  return merges;
}

Json typed(const char* type, const std::vector<std::pair<std::string, Json>>& members = {}) {
  Json json = Json::object({{"type", type}});
  for (const auto& [key, value] : members) json[key] = value;
  return json;
}

Json normalizer_of(const SentencePieceModel& m) {
  std::vector<Json> steps;
  if (!m.charsmap.empty())
    steps.push_back(typed(
        "Precompiled", {{"precompiled_charsmap", to_base64(m.charsmap)}, {"longest", m.replaces_longest}}));
  const auto replace = [&](const char* kind, const char* pattern, const char* with) {
    steps.push_back(typed("Replace", {{"pattern", Json::object({{kind, pattern}})}, {"content", with}}));
  };
  if (m.squeezes_spaces) {
    if (m.is_bare) {
      replace("Regex", R"(\A +| +\z)", "");
    } else {
      steps.push_back(typed("Strip", {{"strip_left", true}, {"strip_right", true}}));
    }
    replace("Regex", " {2,}", " ");
  }
  if (m.begins_with_space) steps.push_back(typed("Prepend", {{"prepend", kMark}}));
  replace("String", " ", kMark);
  return typed("Sequence", {{"normalizers", Json(std::move(steps))}});
}

Json decoder_of(const SentencePieceModel& m) {
  std::vector<Json> steps = {
      typed("Replace", {{"pattern", Json::object({{"String", kMark}})}, {"content", " "}}),
      typed("ByteFallback"), typed("Fuse")};
  if (m.begins_with_space || (m.is_bare && m.squeezes_spaces)) {
    steps.push_back(typed("Strip", {{"content", " "}, {"start", int64_t{1}}, {"stop", int64_t{0}}}));
  }
  return typed("Sequence", {{"decoders", Json(std::move(steps))}});
}

Json model_of(const SentencePieceModel& m) {
  Json model = typed(m.is_unigram ? "Unigram" : "BPE", {{"byte_fallback", m.byte_fallback}});
  Json vocab = m.is_unigram ? Json::array() : Json::object();
  for (size_t id = 0; id < m.pieces.size(); ++id) {
    const SentencePiece& piece = m.pieces[id];
    const bool is_unknown = piece.type == Type::unknown;
    if (m.is_unigram) {
      const bool is_cut = !m.is_bare || (piece.type != Type::byte && piece.type != Type::unused);
      vocab.push_back(Json(std::vector<Json>{piece.text, is_cut ? piece.score : kNeverCut}));
      if (is_unknown) model["unk_id"] = static_cast<int64_t>(id);
    } else {
      vocab[piece.text] = static_cast<int64_t>(id);
      if (is_unknown) model["unk_token"] = piece.text;
    }
  }
  model["vocab"] = std::move(vocab);
  for (const SentencePiece& piece : m.without_id)
    model["without_id"].push_back(Json(std::vector<Json>{piece.text, piece.score}));
  if (!m.is_unigram) {
    model["fuse_unk"] = true;
    model["dropout"] = nullptr;
    model["continuing_subword_prefix"] = nullptr;
    model["end_of_word_suffix"] = nullptr;
    model["ignore_merges"] = cuts_out_symbols(m);
    model["merges"] = m.is_characters ? Json::array() : merges_of(m);
  }
  return model;
}

Json added_tokens(const SentencePieceModel& m) {
  Json added = Json::array();
  const auto add = [&](size_t id, const std::string& text, bool special) {
    Json token = json_of_special(static_cast<int64_t>(id), text);
    token["special"] = special;
    token["normalized"] = m.is_bare && !special;
    added.push_back(std::move(token));
  };
  for (size_t id = 0; id < m.pieces.size(); ++id) {
    const SentencePiece& piece = m.pieces[id];
    if (is_added(m, piece)) add(id, piece.text, piece.type != Type::user_defined);
  }
  for (size_t i = 0; i < m.more_tokens.size(); ++i) add(m.pieces.size() + i, m.more_tokens[i], true);
  return added;
}

Json template_of(const SentencePieceModel& m) {
  Json specials = Json::object();
  std::vector<Json> single, pair;
  const auto put = [&](const std::string& token, int type, std::vector<Json>& items) {
    if (token.empty()) return;
    items.push_back(Json::object({{"SpecialToken", Json::object({{"id", token}, {"type_id", type}})}}));
    const auto found = std::find_if(m.pieces.begin(), m.pieces.end(),
                                    [&](const SentencePiece& piece) { return piece.text == token; });
    MH_CHECK(found != m.pieces.end(), FormatError, m.file, ": has no piece ", quote(token));
    specials[token] =
        Json::object({{"id", token},
                      {"ids", Json(std::vector<Json>{static_cast<int64_t>(found - m.pieces.begin())})},
                      {"tokens", Json(std::vector<Json>{token})}});
  };
  const auto place = [&](const std::string& before, const char* which, int type, std::vector<Json>& items) {
    put(before, type, items);
    items.push_back(Json::object({{"Sequence", Json::object({{"id", which}, {"type_id", type}})}}));
    put(m.last, type, items);
  };
  place(m.first, "A", 0, single);
  pair = single;
  place(m.second, "B", m.second_type, pair);
  return typed("TemplateProcessing",
               {{"single", Json(single)}, {"pair", Json(pair)}, {"special_tokens", specials}});
}

// Symbols that users defined are not normalised, nor is white space among them; here that must be no
// difference.
void check_defined(const SentencePieceModel& m) {
  for (const SentencePiece& piece : m.pieces) {
    if (!m.is_bare || piece.type != Type::user_defined) continue;
    MH_CHECK(piece.text.find(' ') == std::string::npos, FormatError, m.file, ": the user-defined symbol ",
             quote(piece.text), " with a space is not supported");
    MH_CHECK(m.charsmap.empty() || CharsMap(m.charsmap, true).keeps(piece.text), FormatError, m.file,
             ": the user-defined symbol ", quote(piece.text), " that normalisation changes is not supported");
  }
}

// Steps that cut a text at the symbols that users defined, the longest first.
std::vector<Json> cuts_at_defined(const SentencePieceModel& m) {
  std::vector<std::string> symbols;
  for (const SentencePiece& piece : m.pieces) {
    if (piece.type == Type::user_defined) symbols.push_back(piece.text);
  }
  std::stable_sort(symbols.begin(), symbols.end(),
                   [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  MH_CHECK(symbols.size() <= 1000, FormatError, m.file, ": more than 1000 user-defined symbols beside ",
           "add_dummy_prefix are not supported");
  std::vector<Json> steps;
  for (const std::string& symbol : symbols) {
    steps.push_back(typed(
        "Split",
        {{"pattern", Json::object({{"String", symbol}})}, {"behavior", "Isolated"}, {"invert", false}}));
    // SentencePiece takes the first that a text has, and here the longest comes first.
    for (const std::string& other : symbols) {
      const bool is_run = other.find_first_not_of(kMark) == std::string::npos;
      for (size_t n = 1; n < std::min(other.size(), symbol.size()) && !is_run; ++n) {
        MH_CHECK(other == symbol || !other.ends_with(symbol.substr(0, n)), FormatError, m.file,
                 ": user-defined symbols that may overlap, as ", quote(other), " and ", quote(symbol),
                 ", are not supported beside add_dummy_prefix");
      }
    }
  }
  return steps;
}

// Whether SentencePiece's merges make the piece of its characters.
bool is_merged(std::string_view text, const std::unordered_map<std::string_view, double>& scores) {
  std::vector<size_t> bounds;
  for (size_t at = 0; at < text.size(); ++at) {
    if ((text[at] & 0xC0) != 0x80) bounds.push_back(at);
  }
  bounds.push_back(text.size());
  while (bounds.size() > 2) {
    size_t best = 0;
    double score = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i + 2 < bounds.size(); ++i) {
      const auto found = scores.find(text.substr(bounds[i], bounds[i + 2] - bounds[i]));
      if (found != scores.end() && found->second > score) score = found->second, best = i + 1;
    }
    if (best == 0) return false;
    bounds.erase(bounds.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return true;
}

// Symbols become tokens by being whole pieces of text, so other pieces must not become other tokens by that.
void check_whole_pieces(const SentencePieceModel& m) {
  std::unordered_map<std::string_view, double> scores;
  for (const SentencePiece& piece : m.pieces) {
    if (piece.type == Type::normal) scores.emplace(piece.text, piece.score);
  }
  MergeBudget budget(m);
  for (const auto& [text, score] : scores) {
    budget.charge(text.size() * std::max<size_t>(text.size() / 4, 1));
    MH_CHECK(is_merged(text, scores), FormatError, m.file,
             ": user-defined symbols beside add_dummy_prefix are not supported with the piece ", quote(text),
             ", which merges do not make");
  }
}

}  // namespace

SentencePieceModel read_sentencepiece(const std::string& path) {
  const std::string bytes = read_file(path);
  SentencePieceModel model;
  model.file = path;
  Message message(bytes, path);
  for (Message::Field field; message.next(field);) {
    const Message part(field.bytes, path);
    if (field.number == 1) model.pieces.push_back(piece_of(part));
    if (field.number == 2) read_trainer(part, model);
    if (field.number == 3) read_normalizer(part, model);
    if (field.number == 5) check_denormalizer(part);
  }
  if (model.pieces.empty()) message.damaged("it has no pieces");
  return model;
}

std::string tokenizer_json_of(const SentencePieceModel& m) {
  check_defined(m);
  // Pieces with a mark inside lie across words.
  const bool cuts = std::none_of(m.pieces.begin(), m.pieces.end(), [](const SentencePiece& piece) {
    return piece.type != Type::control && piece.text.find(kMark, 1) != std::string::npos;
  });
  Json marks = typed("Metaspace", {{"replacement", kMark}, {"prepend_scheme", "never"}, {"split", true}});
  if (cuts_out_symbols(m)) {
    check_whole_pieces(m);
    std::vector<Json> steps = cuts_at_defined(m);
    if (cuts) steps.push_back(std::move(marks));
    marks = typed("Sequence", {{"pretokenizers", Json(std::move(steps))}});
  }
  return Json::object({{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", added_tokens(m)},
                       {"normalizer", normalizer_of(m)},
                       {"pre_tokenizer", cuts || cuts_out_symbols(m) ? marks : Json()},
                       {"post_processor", template_of(m)},
                       {"decoder", decoder_of(m)},
                       {"model", model_of(m)}})
      .dump();
}

}  // namespace multihead::text
