// Which of the names that are there may be meant by one that is not. Shared by the library and the command line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace multihead {

/// Steps to one from the other: a character put in, taken out or replaced (Levenshtein 1966).
size_t edit_distance(std::string_view a, std::string_view b);

/// Hints for messages about missing names. Time is bounded: later questions and names, and long ones, get
/// none.
class NearNames {
 public:
  explicit NearNames(std::vector<std::string> names);
  /// "; the nearest is NAME", or nothing if none has half its characters in common.
  std::string operator()(std::string_view missing);

 private:
  std::vector<std::string> names_;
  int asked_ = 0;
};

}  // namespace multihead
