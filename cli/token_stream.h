// Text token by token, never half a character, with U+FFFD for invalid bytes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/streams.h"
#include "multihead/generate/stop_strings.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::cli {

/// Nothing of a stop string is shown.
class TokenStream {
 public:
  explicit TokenStream(const text::Tokenizer& tokenizer, text::DecodeOptions options = {},
                       std::vector<std::string> stops = {})
      : said_(tokenizer, std::move(stops), options) {}
  /// False once a stop string has come.
  bool write(int32_t token) {
    const bool more = said_.add(0, token);
    const std::string_view fresh = rest(said_.certain(0));
    put(fresh.substr(0, complete_utf8(fresh)));
    return more;
  }
  void finish() { put(rest(text().size())); }
  const std::string& text() const { return said_.text(0); }

 private:
  std::string_view rest(size_t end) const { return std::string_view(text()).substr(shown_, end - shown_); }
  void put(std::string_view fresh) {
    put_output(valid_utf8(std::string(fresh)));
    shown_ += fresh.size();
  }
  StopStrings said_;
  size_t shown_ = 0;
};

}  // namespace multihead::cli
