// Texts at which generate() ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead {

/// The texts of rows, token by token, up to the first of several stop strings: for GenerateOptions::on_token.
///
///   StopStrings stop(tokenizer, {"\n\n", "User:"});
///   options.on_token = [&](int64_t row, int32_t token) { return stop.add(row, token); };
///   generate(model, prompts, options);  // stop.text(row): what comes before the stop string
///
/// A stop string may begin and end within tokens, or be a special token that `decode` skips. Those of the prompt do not
/// count.
class StopStrings {
 public:
  /// Empty strings are left out. `decode`: how tokens become text; `continued` counts from the second on,
  /// unless it is set.
  StopStrings(text::Tokenizer tokenizer, std::vector<std::string> strings, text::DecodeOptions decode = {});

  /// Adds a token to a row; false once the row's text holds a stop string.
  bool add(int64_t row, int32_t token);
  /// The text of a row before its stop string.
  const std::string& text(int64_t row) const;
  /// Bytes of it that no stop string can take back any more: what may be shown.
  size_t certain(int64_t row) const;

 private:
  text::Tokenizer tokenizer_;
  std::vector<std::string> strings_;
  text::DecodeOptions decode_;
  struct Row {
    std::string text;
    bool begun = false, stopped = false;
  };
  std::map<int64_t, Row> rows_;
};

}  // namespace multihead
