// Marian's folders: two SentencePiece models, source.spm and target.spm, that cut texts into pieces, and
// vocab.json, which gives the pieces of both their ids.
#include <algorithm>
#include <unordered_map>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/text/tokenizer/files/tokenizer_json/sentencepiece_model-inl.h"
#include "multihead/text/tokenizer/models/unigram-inl.h"

namespace multihead::text {
namespace {

using Type = SentencePiece::Type;

// A token by id: all of them, none left out.
std::vector<std::string> tokens_of(const std::string& file) {
  const Json vocab = Json::parse(read_file(file), file);
  MH_CHECK(vocab.is_object() && vocab.size() > 0, FormatError, file,
           ": must be an object of tokens and their ids");
  std::vector<std::string> tokens(vocab.size());
  for (const auto& [token, id] : vocab.members()) {
    const bool is_id = id.is_integer() && id.as_int() >= 0 && id.as_int() < std::ssize(tokens);
    MH_CHECK(is_id && !token.empty() && tokens[static_cast<size_t>(id.as_int())].empty(), FormatError, file,
             ": the ids must be 0 to ", tokens.size() - 1, ", each once, got ", id.dump(), " for ",
             quote(std::string(token)));
    tokens[static_cast<size_t>(id.as_int())] = token;
  }
  return tokens;
}

// ">>fr<<" names the language to translate to.
bool is_language(const std::string& token) { return token.starts_with(">>") && token.ends_with("<<"); }

}  // namespace

std::string json_of_marian(const std::filesystem::path& spm) {
  std::error_code ignored;
  const std::filesystem::path folder = spm.parent_path();
  const bool has_own_ids =
      spm.filename() == "target.spm" && std::filesystem::exists(folder / "target_vocab.json", ignored);
  const std::string vocab = (folder / (has_own_ids ? "target_vocab.json" : "vocab.json")).string();
  const std::vector<std::string> tokens = tokens_of(vocab);
  SentencePieceModel model = read_sentencepiece(spm.string());
  MH_CHECK(model.is_unigram, FormatError, model.file, ": must be a unigram model");
  std::unordered_map<std::string, double> scores;
  for (const SentencePiece& piece : model.pieces) {
    if (piece.type == Type::normal || piece.type == Type::user_defined)
      scores.emplace(piece.text, piece.score);
  }
  model.pieces.clear();
  for (const std::string& token : tokens) {
    const auto found = scores.find(token);
    const bool is_special = token == "</s>" || token == "<pad>" || token == "<s>";
    const Type type = token == "<unk>"     ? Type::unknown
                      : is_special         ? Type::control
                      : is_language(token) ? Type::user_defined
                                           : Type::normal;
    model.pieces.push_back({token, found != scores.end() ? found->second : kNeverCut, type});
    if (found != scores.end()) scores.erase(found);
  }
  for (const char* token : {"</s>", "<unk>", "<pad>"}) {
    const bool is_there = std::find(tokens.begin(), tokens.end(), token) != tokens.end();
    MH_CHECK(is_there, FormatError, vocab, ": has no token ", token);
  }
  for (auto& [text, score] : scores) model.without_id.push_back({text, score, Type::normal});
  std::sort(model.without_id.begin(), model.without_id.end(),
            [](const SentencePiece& a, const SentencePiece& b) { return a.text < b.text; });
  model.last = "</s>";
  model.replaces_longest = true;
  return tokenizer_json_of(model);
}

}  // namespace multihead::text
