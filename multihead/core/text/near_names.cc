#include "multihead/core/text/near_names.h"

#include <algorithm>
#include <numeric>

namespace multihead {
namespace {

constexpr int kQuestions = 24;
constexpr size_t kNames = 1024, kLength = 192;

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t k = 0; k < b.size(); ++k) {
      const size_t replaced = diagonal + (a[i] == b[k] ? 0 : 1);
      diagonal = row[k + 1];
      row[k + 1] = std::min({replaced, row[k] + 1, row[k + 1] + 1});
    }
  }
  return row.back();
}

NearNames::NearNames(std::vector<std::string> names) : names_(std::move(names)) {
  if (names_.size() > kNames) names_.resize(kNames);
}

std::string NearNames::operator()(std::string_view missing) {
  if (asked_++ >= kQuestions || missing.size() > kLength) return {};
  const std::string* best = nullptr;
  size_t least = 0;
  for (const std::string& name : names_) {
    if (name.size() > kLength) continue;
    const size_t distance = edit_distance(missing, name);
    if (2 * distance > std::max(missing.size(), name.size())) continue;
    if (best == nullptr || distance < least) best = &name, least = distance;
  }
  return best == nullptr ? std::string() : "; the nearest is " + *best;
}

}  // namespace multihead
