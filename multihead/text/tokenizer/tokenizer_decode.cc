// Text of ids.
#include "multihead/core/error.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

void replace_each(std::string& text, std::string_view from, std::string_view to) {
  Rewritten out(false);
  replace_all(text, from, to, out);
  text = std::move(out.text);
}

// As Hugging Face's tokenizers do it; transformers' cleaning up leaves "do not" as it is.
void tidy(std::string& text, bool contracts_not = true) {
  constexpr std::pair<std::string_view, std::string_view> kTidied[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [spaced, with] : kTidied)
    if (contracts_not || spaced != " do not") replace_each(text, spaced, with);
}

void strip(const DecodeStep& step, std::string& text) {
  size_t begin = 0, end = text.size();
  const size_t size = step.text.size();
  for (int64_t i = 0; i < step.count && text.compare(begin, size, step.text) == 0; ++i) begin += size;
  for (int64_t i = 0; i < step.last_count && end >= begin + size; ++i) {
    if (text.compare(end - size, size, step.text) != 0) break;
    end -= size;
  }
  text = text.substr(begin, end - begin);
}

// False: the text is final.
bool apply(const DecodeStep& step, bool is_first, bool is_last, std::string& text) {
  using Kind = DecodeStep::Kind;
  switch (step.kind) {
    case Kind::replace:
      replace_each(text, step.text, step.with);
      break;
    case Kind::byte_fallback:
      if (const int byte = byte_of_token(text); byte >= 0) {
        text.assign(1, static_cast<char>(byte));
        return false;
      }
      break;
    case Kind::byte_level:
      text = symbols_to_bytes(text);
      return false;
    case Kind::strip:
      strip(step, text);
      break;
    case Kind::metaspace:
      replace_each(text, step.text, is_first && step.count > 0 ? "" : " ");
      break;
    case Kind::word_pieces:
      if (is_first) break;
      text.starts_with(step.text) ? text.erase(0, step.text.size()) : text.insert(0, 1, ' ');
      break;
    case Kind::tidy:
      tidy(text);
      break;
    case Kind::word_end:
      replace_each(text, step.text, is_last ? "" : " ");
      break;
  }
  return true;
}

}  // namespace

std::string Model::decoded(int32_t id, bool is_first, bool is_last) const {
  std::string text = tokens[static_cast<size_t>(id)];
  const int32_t place = added_at[static_cast<size_t>(id)];
  if (place >= 0) text = added[static_cast<size_t>(place)].found;
  for (const DecodeStep& step : token_steps) {
    if (!apply(step, is_first, is_last, text)) break;
  }
  return text;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  const Model& model = *model_;
  std::vector<int32_t> shown;
  for (const int32_t id : ids) {
    MH_CHECK(id >= 0, ValueError, "tokenizer: decode: id must be in [0, ", vocab_size(), "), got ", id);
    const bool is_shown =
        id < vocab_size() && !(options.skip_special && model.is_special[static_cast<size_t>(id)]);
    if (is_shown) shown.push_back(id);
  }
  std::string out;
  for (size_t i = 0; i < shown.size(); ++i) {
    const bool is_first = i == 0 && !options.continued, is_last = i + 1 == shown.size();
    if (!is_first && model.joins_with_spaces) out += ' ';
    out += is_first || is_last ? model.decoded(shown[i], is_first, is_last)
                               : model.bytes[static_cast<size_t>(shown[i])];
  }
  for (const DecodeStep& step : model.text_steps) {
    const bool is_at_front = step.kind == DecodeStep::Kind::strip && options.continued;
    if (!is_at_front) apply(step, true, true, out);
  }
  if (model.cleans_up) tidy(out, false);
  return out;
}

}  // namespace multihead::text
