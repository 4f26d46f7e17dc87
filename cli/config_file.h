// Settings of a file in TOML or INI, without sections.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace multihead::cli {

struct Setting {
  std::string name;
  std::vector<std::string> values;  ///< of a list, all of them; of a name alone "true"
  int64_t line = 0;
};

/// The lines of `text`: name = value, name = [value, …], or a name alone. Values are words, 'texts as they are'
/// or "texts with TOML's escapes"; # begins a remark, as ; does at the beginning of a line. Throws UsageError
/// naming the line.
std::vector<Setting> parse_settings(std::string_view text);

/// "--config: line 3: wrong setting "lr = 1 2": <why>"
[[noreturn]] void refuse_setting(int64_t line, std::string_view content, const std::string& why);

}  // namespace multihead::cli
