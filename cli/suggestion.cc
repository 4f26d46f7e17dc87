#include "cli/suggestion.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "multihead/core/utf8.h"

namespace multihead::cli {
namespace {

// Levenshtein's distance, one row of his table at a time.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({replaced, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

// Are all words of `typed` (max-tokens) among those of `name` (max-new-tokens), in order?
bool holds_words(std::string_view name, std::string_view typed) {
  size_t from = 0;
  while (!typed.empty()) {
    const size_t end = std::min(typed.find('-'), typed.size());
    const size_t found = name.find(typed.substr(0, end), from);
    if (found == std::string_view::npos) return false;
    from = found + end;
    typed.remove_prefix(std::min(end + 1, typed.size()));
  }
  return true;
}

}  // namespace

std::string suggestion(std::string_view typed, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64;  // bounds the table
  if (typed.size() < 2 || typed.size() > kLongest) return "";
  const std::string* best = nullptr;
  size_t fewest = 1 + std::max<size_t>(2, typed.size() / 3);
  for (const std::string& name : names) {
    const size_t distance = edits(typed, name);
    if (distance < fewest) {
      fewest = distance;
      best = &name;
    }
  }
  for (size_t i = 0; best == nullptr && i < names.size(); ++i) {
    if (holds_words(names[i], typed)) best = &names[i];
  }
  return best == nullptr ? "" : " (did you mean " + quote(*best) + "?)";
}

}  // namespace multihead::cli
