// Text token by token, never half a character, with U+FFFD for invalid bytes.
#pragma once

#include <string>

#include "cli/streams.h"
#include "multihead/text/tokenizer.h"

namespace multihead::cli {

class TokenStream {
 public:
  explicit TokenStream(const text::Tokenizer& tokenizer, text::DecodeOptions options = {})
      : tokenizer_(tokenizer), options_(options) {}
  void write(int32_t token) {
    pending_ += tokenizer_.decode(std::span(&token, 1), options_);
    options_.continued = true;
    put(complete_utf8(pending_));
  }
  void finish() { put(pending_.size()); }

 private:
  void put(size_t bytes) {
    put_output(valid_utf8(pending_.substr(0, bytes)));
    pending_.erase(0, bytes);
  }
  const text::Tokenizer& tokenizer_;
  text::DecodeOptions options_;
  std::string pending_;
};

}  // namespace multihead::cli
