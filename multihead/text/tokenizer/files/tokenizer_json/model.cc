// The vocabulary and the rules by which text becomes tokens.
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

void read_characters(Reader& in, const Json& model) {
  in.model.kind = Tokenizer::Kind::characters;
  if (!in.model.steps.empty()) in.unsupported("normalizer", "one with single characters");
  read_tokens(in, in.object(model, "vocab", "model.vocab"));
  const Json& decoder = Reader::member(in.root, "decoder");
  if (!Reader::is_type(decoder, "Fuse")) in.unsupported("decoder", decoder.dump());
  in.model.finish();
  if (in.model.characters.size() + in.model.added.size() < in.model.tokens.size())
    in.fail("model.vocab of a character tokenizer must hold single characters and added tokens only");
  in.model.unk = in.id_of(in.string(model, "unk_token", "model.unk_token"));
}

void read_words(Reader& in, const Json& model) {
  if (Reader::find(in.root, "pre_tokenizer") && cuts_characters(in)) return read_characters(in, model);
  in.model.kind = Tokenizer::Kind::words;
  if (read_pre_tokenizer(in)) in.unsupported("pre_tokenizer", "\"ByteLevel\" with model.type \"WordLevel\"");
  read_decoder(in);
  read_tokens(in, in.object(model, "vocab", "model.vocab"));
  in.model.finish();
  in.model.unk = in.id_of(in.string(model, "unk_token", "model.unk_token"));
}

void read_wordpiece(Reader& in, const Json& model) {
  in.model.kind = Tokenizer::Kind::wordpiece;
  if (read_pre_tokenizer(in)) in.unsupported("pre_tokenizer", "\"ByteLevel\" with model.type \"WordPiece\"");
  read_decoder(in);
  in.model.continuing = in.string(model, "continuing_subword_prefix", "model.continuing_subword_prefix");
  if (const Json* longest = Reader::find(model, "max_input_chars_per_word")) {
    if (!longest->is_integer() || longest->as_int() < 0)
      in.wrong("model.max_input_chars_per_word", "an integer of at least 0", *longest);
    in.model.longest_word = longest->as_int();
  }
  read_tokens(in, in.object(model, "vocab", "model.vocab"));
  in.model.finish();
  const std::string unk = in.string(model, "unk_token", "model.unk_token");
  in.model.unk = in.id_of(unk);
  if (in.model.unk < 0) in.fail("model.unk_token ", quote(unk), " is not in the vocabulary");
}

// "left right"; empty: not that.
std::pair<std::string_view, std::string_view> parts_of(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == line.npos || line.find(' ', space + 1) != line.npos || space == 0 || space + 1 == line.size())
    return {};
  return {line.substr(0, space), line.substr(space + 1)};
}

// `part(i)` of merge i: left and right.
template <class PartsOf>
void read_merges(Reader& in, size_t count, const PartsOf& parts) {
  std::vector<Merge> merges;
  merges.reserve(count);
  std::string both;
  for (size_t i = 0; i < count; ++i) {
    const auto& [left, right] = parts(i);
    const auto known = [&](std::string_view piece) {
      const int32_t id = in.id_of(piece);
      if (id < 0) in.fail("model.merges[", i, "]: ", quote(piece), " is not in the vocabulary");
      return id;
    };
    both.assign(left).append(right);
    merges.push_back({known(left), known(right), known(both)});
  }
  in.model.merges = MergeTable(std::move(merges));
}

void read_merges(Reader& in, const Json& list) {
  const auto fail = [&](size_t i, const std::string& got) {
    in.fail("model.merges[", i, "] must be two pieces, as [\"a\", \"b\"] or \"a b\", got ", got);
  };
  read_merges(in, list.size(), [&](size_t i) {
    const Json& merge = list.at(i);
    if (merge.is_array() && merge.size() == 2 && merge.at(size_t{0}).is_string() && merge.at(1).is_string())
      return std::pair(merge.at(size_t{0}).as_string(), merge.at(1).as_string());
    if (!merge.is_string()) fail(i, std::string(name(merge.kind())));
    const std::string line = merge.as_string();
    const auto [left, right] = parts_of(line);
    if (left.empty()) fail(i, quote(line));
    return std::pair(std::string(left), std::string(right));
  });
}

void take_merges(Reader& in) {
  const std::vector<std::string>& lines = in.pairs->merges;
  read_merges(in, lines.size(), [&](size_t i) {
    const auto parts = parts_of(lines[i]);
    if (parts.first.empty()) in.fail("merge ", i, " must be two pieces, as \"a b\", got ", quote(lines[i]));
    return parts;
  });
}

// Byte-level, or SentencePiece's: of characters, with bytes for unknown ones.
void read_bpe(Reader& in, const Json& model) {
  if (const Json* text = Reader::find(model, "continuing_subword_prefix"); text && *text != "")
    in.unsupported("model.continuing_subword_prefix", text->dump());
  if (Reader::find(model, "end_of_word_suffix"))
    in.model.word_end = in.string(model, "end_of_word_suffix", "model.end_of_word_suffix");
  if (const Json* dropout = Reader::find(model, "dropout");
      dropout && !(dropout->is_number() && dropout->as_double() == 0))
    in.unsupported("model.dropout", dropout->dump());
  in.model.byte_fallback = in.flag(model, "byte_fallback", "model");
  if (in.model.byte_fallback && !in.model.word_end.empty())  // whose bytes would follow a character's
    in.unsupported("model.byte_fallback", "true with end_of_word_suffix");
  in.model.ignore_merges = in.flag(model, "ignore_merges", "model");
  in.model.fuse_unk = in.flag(model, "fuse_unk", "model");
  if (read_pre_tokenizer(in)) {
    if (in.model.byte_fallback) in.unsupported("model.byte_fallback", "true with ByteLevel");
  } else {
    in.model.kind = Tokenizer::Kind::character_bpe;
  }
  read_decoder(in);
  in.pairs != nullptr ? take_tokens(in) : read_tokens(in, in.object(model, "vocab", "model.vocab"));
  in.model.finish();
  in.pairs != nullptr ? take_merges(in) : read_merges(in, in.array(model, "merges", "model.merges"));
  if (const Json* unk = Reader::find(model, "unk_token"); unk && *unk != "") {
    in.model.unk = in.id_of(in.string(model, "unk_token", "model.unk_token"));
    if (in.model.unk < 0) in.fail("model.unk_token ", unk->dump(), " is not in the vocabulary");
  }
}

// [token, logarithm of its probability].
std::pair<std::string, double> scored(const Reader& in, const Json& entry, const std::string& where) {
  const bool is_pair =
      entry.is_array() && entry.size() == 2 && entry.at(size_t{0}).is_string() && entry.at(1).is_number();
  if (!is_pair) in.fail(where, " must be [token, score]");
  return {entry.at(size_t{0}).as_string(), entry.at(1).as_double()};
}

// The tokens by id.
void read_unigram(Reader& in, const Json& model) {
  in.model.kind = Tokenizer::Kind::unigram;
  if (read_pre_tokenizer(in)) in.unsupported("pre_tokenizer", "\"ByteLevel\" with model.type \"Unigram\"");
  read_decoder(in);
  in.model.byte_fallback = in.flag(model, "byte_fallback", "model");
  const Json& list = in.array(model, "vocab", "model.vocab");
  Json vocab = Json::object();
  std::vector<double> scores;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto [token, score] = scored(in, list.at(i), concat("model.vocab[", i, "]"));
    if (vocab.contains(token)) in.fail("model.vocab: token ", quote(token), " is listed twice");
    vocab[token] = static_cast<int64_t>(i);
    scores.push_back(score);
  }
  read_tokens(in, vocab);
  in.model.finish();
  if (const Json* unk = Reader::find(model, "unk_id")) in.model.unk = in.known_id(*unk, "model.unk_id");
  in.model.unigram = UnigramTable(in.model.tokens, scores, in.model.unk, in.model.is_special);
  if (Reader::find(model, "without_id") == nullptr) return;
  for (const Json& entry : in.array(model, "without_id", "model.without_id").items()) {
    const auto [piece, score] = scored(in, entry, "model.without_id");
    in.model.unigram.add_without_id(piece, score);
  }
}

}  // namespace

void read_model(Reader& in) {
  const Json& model = in.object(in.root, "model", "model");
  const std::string type = model.contains("type") ? in.string(model, "type", "model.type") : "BPE";
  constexpr std::pair<const char*, void (*)(Reader&, const Json&)> kTypes[] = {
      {"BPE", read_bpe}, {"WordPiece", read_wordpiece}, {"Unigram", read_unigram}, {"WordLevel", read_words}};
  for (const auto& [name, read] : kTypes) {
    if (type == name) return read(in, model);
  }
  in.unsupported("model.type", quote(type));
}

}  // namespace multihead::text::tokenizer_json
