// Text of ids.
#include "multihead/core/error.h"
#include "multihead/text/model-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

// As WordPiece joins its tokens in Hugging Face's tokenizers.
void append_word(const Model& model, std::string token, bool is_first, std::string& out) {
  const bool goes_on = token.starts_with(model.continuing);
  if (!is_first) token = goes_on ? token.substr(model.continuing.size()) : " " + token;
  if (!model.cleanup) {
    out += token;
    return;
  }
  constexpr std::pair<std::string_view, std::string_view> kTidied[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [spaced, tidy] : kTidied) {
    for (size_t at = token.find(spaced); at != token.npos; at = token.find(spaced, at + tidy.size())) {
      token.replace(at, spaced.size(), tidy);
    }
  }
  out += token;
}

// A token's text as SentencePiece's decoders give it, but for what they do to the first one.
std::string decoded_token(const Model& model, std::string_view token) {
  std::string text(token);
  for (const DecodeStep& step : model.decode_steps) {
    const bool is_mark = step.kind == DecodeStep::Kind::replace || step.kind == DecodeStep::Kind::metaspace;
    if (const int byte = byte_of_token(text); step.kind == DecodeStep::Kind::byte_fallback && byte >= 0) {
      return {static_cast<char>(byte)};
    }
    for (size_t at = is_mark ? text.find(step.text) : text.npos; at != text.npos;
         at = text.find(step.text, at + step.with.size())) {
      text.replace(at, step.text.size(), step.with);
    }
  }
  return text;
}

// The first token loses the marks in front of words.
std::string first_token(const Model& model, int32_t id) {
  for (const DecodeStep& step : model.decode_steps) {
    if (step.kind != DecodeStep::Kind::metaspace || step.count == 0) continue;
    std::string text = model.tokens[id];
    for (size_t at = text.find(step.text); at != text.npos; at = text.find(step.text))
      text.erase(at, step.text.size());
    return text;
  }
  return model.bytes[id];
}

void strip_front(const Model& model, std::string& text) {
  for (const DecodeStep& step : model.decode_steps) {
    if (step.kind != DecodeStep::Kind::strip) continue;
    for (int64_t i = 0; i < step.count && text.starts_with(step.text); ++i) text.erase(0, step.text.size());
  }
}

}  // namespace

std::string Model::bytes_of(std::string_view token) const {
  if (is_sentencepiece()) return decoded_token(*this, token);
  return kind == Kind::bpe ? symbols_to_bytes(token) : std::string(token);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string out;
  bool is_first = !options.continued;
  for (int32_t id : ids) {
    if (id >= vocab_size()) continue;
    MH_CHECK(id >= 0, ValueError, "tokenizer: decode: id must be in [0, ", vocab_size(), "), got ", id);
    if (options.skip_special && model_->is_special[id]) continue;
    if (kind() == Kind::wordpiece) {
      append_word(*model_, model_->bytes[id], is_first, out);
    } else {
      out += is_first ? first_token(*model_, id) : model_->bytes[id];
    }
    is_first = false;
  }
  if (!options.continued) strip_front(*model_, out);
  return out;
}

}  // namespace multihead::text
