// The text of a row while it is generated: whole characters, up to the first stop string.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/core/text/utf8.h"
#include "multihead/generate/stop_strings.h"

namespace multihead {

/// Turns tokens into pieces of text, never half a character, with U+FFFD for invalid bytes and nothing of a stop string.
class TextStream {
 public:
  TextStream(std::function<void(std::string_view piece)> show, const text::Tokenizer& tokenizer,
             text::DecodeOptions options = {}, std::vector<std::string> stops = {})
      : show_(std::move(show)), said_(tokenizer, std::move(stops), options) {}

  /// False once a stop string has come.
  bool write(int32_t token) {
    const bool more = said_.add(0, token);
    const std::string_view fresh = rest(said_.certain(0));
    put(fresh.substr(0, complete_utf8(fresh)));
    return more;
  }
  /// Shows what was held back.
  void finish() { put(rest(text().size())); }
  /// All of it, as it was decoded.
  const std::string& text() const { return said_.text(0); }

 private:
  std::string_view rest(size_t end) const { return std::string_view(text()).substr(shown_, end - shown_); }
  void put(std::string_view fresh) {
    if (!fresh.empty()) show_(valid_utf8(fresh));
    shown_ += fresh.size();
  }
  std::function<void(std::string_view)> show_;
  StopStrings said_;
  size_t shown_ = 0;
};

}  // namespace multihead
