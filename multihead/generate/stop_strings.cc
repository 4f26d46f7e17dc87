#include "multihead/generate/stop_strings.h"

#include <algorithm>
#include <utility>

namespace multihead {

StopStrings::StopStrings(text::Tokenizer tokenizer, std::vector<std::string> strings,
                         text::DecodeOptions decode)
    : tokenizer_(std::move(tokenizer)), strings_(std::move(strings)), decode_(decode) {
  std::erase(strings_, std::string());
}

bool StopStrings::add(int64_t row, int32_t token) {
  Row& own = rows_[row];
  if (own.stopped) return false;
  const std::span one(&token, 1);
  const bool is_known = token >= 0 && token < tokenizer_.vocab_size();  // models have more, for round sizes
  if (decode_.skip_special && is_known && tokenizer_.is_special(token)) {  // but it may be a stop string
    own.stopped = std::ranges::count(strings_, tokenizer_.decode(one, {.continued = true})) > 0;
    return !own.stopped;
  }
  text::DecodeOptions decode = decode_;
  decode.continued = decode.continued || std::exchange(own.begun, true);
  const size_t before = own.text.size();
  own.text += tokenizer_.decode(one, decode);
  size_t first = std::string::npos;
  for (const std::string& stop : strings_) {
    const size_t from = before < stop.size() ? 0 : before - stop.size() + 1;
    first = std::min(first, own.text.find(stop, from));
  }
  own.stopped = first != std::string::npos;
  if (own.stopped) own.text.resize(first);
  return !own.stopped;
}

const std::string& StopStrings::text(int64_t row) const {
  static const std::string none;
  const auto found = rows_.find(row);
  return found == rows_.end() ? none : found->second.text;
}

size_t StopStrings::certain(int64_t row) const {
  const std::string& said = text(row);
  const auto found = rows_.find(row);
  if (found == rows_.end() || found->second.stopped) return said.size();
  size_t open = 0;  // bytes at the end with which a stop string begins
  for (const std::string& stop : strings_) {
    for (size_t n = std::min(stop.size() - 1, said.size()); n > open; --n) {
      if (std::string_view(said).ends_with(std::string_view(stop).substr(0, n))) open = n;
    }
  }
  return said.size() - open;
}

}  // namespace multihead
