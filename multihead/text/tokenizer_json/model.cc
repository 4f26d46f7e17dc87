// The vocabulary and the rules by which text becomes tokens.
#include "multihead/text/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

void read_characters(Reader& in, const Json& model) {
  in.model.kind = Tokenizer::Kind::characters;
  if (in.model.normalizer != Normalizer::none || in.model.cleaning || !in.model.steps.empty())
    in.unsupported("normalizer", "one with single characters");
  if (!cuts_characters(in))
    in.unsupported("model.type \"WordLevel\" with pre_tokenizer",
                   Reader::member(in.root, "pre_tokenizer").dump());
  read_tokens(in, in.object(model, "vocab", "model.vocab"));
  const Json& decoder = Reader::member(in.root, "decoder");
  if (!Reader::is_type(decoder, "Fuse")) in.unsupported("decoder", decoder.dump());
  in.model.finish();
  if (in.model.characters.size() + in.model.added.size() < in.model.tokens.size())
    in.fail("model.vocab of a character tokenizer must hold single characters and added tokens only");
  in.model.unk = in.id_of(in.string(model, "unk_token", "model.unk_token"));
}

void read_wordpiece(Reader& in, const Json& model) {
  in.model.kind = Tokenizer::Kind::wordpiece;
  if (in.model.normalizer != Normalizer::none || !in.model.steps.empty())
    in.unsupported("normalizer", "another than BertNormalizer with WordPiece");
  const Json& pre = in.object(in.root, "pre_tokenizer", "pre_tokenizer");
  if (!Reader::is_type(pre, "BertPreTokenizer")) in.unsupported("pre_tokenizer", pre.dump());
  const Json& decoder = in.object(in.root, "decoder", "decoder");
  if (!Reader::is_type(decoder, "WordPiece")) in.unsupported("decoder", decoder.dump());
  in.model.cleanup = in.flag(decoder, "cleanup", "decoder", true);
  in.model.continuing = in.string(model, "continuing_subword_prefix", "model.continuing_subword_prefix");
  if (in.string(decoder, "prefix", "decoder.prefix") != in.model.continuing)
    in.unsupported("decoder.prefix", "another than model.continuing_subword_prefix");
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

std::pair<std::string, std::string> merge_parts(const Reader& in, const Json& merge,
                                                const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge.at(size_t{0}).is_string() && merge.at(1).is_string())
    return {merge.at(size_t{0}).as_string(), merge.at(1).as_string()};
  const bool text = merge.is_string();
  const std::string line = text ? merge.as_string() : "";
  const size_t space = line.find(' ');
  if (!text || space == line.npos || line.find(' ', space + 1) != line.npos || space == 0 ||
      space + 1 == line.size())
    in.fail(where, " must be two pieces, as [\"a\", \"b\"] or \"a b\", got ",
            text ? quote(line) : std::string(name(merge.kind())));
  return {line.substr(0, space), line.substr(space + 1)};
}

void read_merges(Reader& in, const Json& list) {
  std::vector<Merge> merges;
  merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = concat("model.merges[", i, "]");
    const auto [left, right] = merge_parts(in, list.at(i), where);
    const auto known = [&](const std::string& piece) {
      const int32_t id = in.id_of(piece);
      if (id < 0) in.fail(where, ": ", quote(piece), " is not in the vocabulary");
      return id;
    };
    merges.push_back({known(left), known(right), known(left + right)});
  }
  in.model.merges = MergeTable(std::move(merges));
}

// Byte-level, or SentencePiece's: of characters, with bytes for unknown ones.
void read_bpe(Reader& in, const Json& model) {
  if (in.model.cleaning) in.unsupported("normalizer", "\"BertNormalizer\" with model.type \"BPE\"");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const Json* text = Reader::find(model, key); text && *text != "")
      in.unsupported(concat("model.", key), text->dump());
  if (const Json* dropout = Reader::find(model, "dropout");
      dropout && !(dropout->is_number() && dropout->as_double() == 0))
    in.unsupported("model.dropout", dropout->dump());
  in.model.byte_fallback = in.flag(model, "byte_fallback", "model");
  in.model.ignore_merges = in.flag(model, "ignore_merges", "model");
  in.model.fuse_unk = in.flag(model, "fuse_unk", "model");
  if (read_byte_level(in)) {
    const Json& decoder = Reader::member(in.root, "decoder");
    if (!Reader::is_type(decoder, "ByteLevel")) in.unsupported("decoder", decoder.dump());
    if (in.model.byte_fallback) in.unsupported("model.byte_fallback", "true with ByteLevel");
  } else {
    in.model.kind = Tokenizer::Kind::character_bpe;
    read_metaspace(in);
    read_decoder(in);
    if (in.model.ignore_merges) in.unsupported("model.ignore_merges", "true without ByteLevel");
  }
  read_tokens(in, in.object(model, "vocab", "model.vocab"));
  in.model.finish();
  read_merges(in, in.array(model, "merges", "model.merges"));
  if (const Json* unk = Reader::find(model, "unk_token"); unk && *unk != "") {
    in.model.unk = in.id_of(in.string(model, "unk_token", "model.unk_token"));
    if (in.model.unk < 0) in.fail("model.unk_token ", unk->dump(), " is not in the vocabulary");
  }
}

// [token, logarithm of its probability] by id.
void read_unigram(Reader& in, const Json& model) {
  in.model.kind = Tokenizer::Kind::unigram;
  if (in.model.cleaning) in.unsupported("normalizer", "\"BertNormalizer\" with model.type \"Unigram\"");
  read_metaspace(in);
  read_decoder(in);
  in.model.byte_fallback = in.flag(model, "byte_fallback", "model");
  const Json& list = in.array(model, "vocab", "model.vocab");
  Json vocab = Json::object();
  std::vector<double> scores;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& entry = list.at(i);
    const bool is_pair =
        entry.is_array() && entry.size() == 2 && entry.at(size_t{0}).is_string() && entry.at(1).is_number();
    if (!is_pair) in.fail("model.vocab[", i, "] must be [token, score]");
    const std::string& token = entry.at(size_t{0}).as_string();
    if (vocab.contains(token)) in.fail("model.vocab: token ", quote(token), " is listed twice");
    vocab[token] = static_cast<int64_t>(i);
    scores.push_back(entry.at(1).as_double());
  }
  read_tokens(in, vocab);
  in.model.finish();
  if (const Json* unk = Reader::find(model, "unk_id")) in.model.unk = in.known_id(*unk, "model.unk_id");
  in.model.unigram = UnigramTable(in.model.tokens, scores, in.model.unk);
}

}  // namespace

void read_model(Reader& in) {
  const Json& model = in.object(in.root, "model", "model");
  const std::string type = model.contains("type") ? in.string(model, "type", "model.type") : "BPE";
  constexpr std::pair<const char*, void (*)(Reader&, const Json&)> kTypes[] = {
      {"BPE", read_bpe},
      {"WordPiece", read_wordpiece},
      {"Unigram", read_unigram},
      {"WordLevel", read_characters}};
  for (const auto& [name, read] : kTypes) {
    if (type == name) return read(in, model);
  }
  in.unsupported("model.type", quote(type));
}

}  // namespace multihead::text::tokenizer_json
