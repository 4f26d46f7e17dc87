// What a message enumerates.
#pragma once

#include <cstddef>
#include <ostream>
#include <ranges>
#include <string>
#include <vector>

#include "multihead/core/error.h"

namespace multihead {

/// "a, b, c" of items that come one by one; of more than `most` items "a, b and 5 more".
class Enumeration {
 public:
  static constexpr size_t kAll = static_cast<size_t>(-1);

  explicit Enumeration(size_t most = kAll) : most_(most) {}
  template <std::ranges::range Items>
  explicit Enumeration(const Items& items, size_t most = kAll) : most_(most) {
    for (const auto& item : items) add(item);
  }

  template <class... Parts>
  void add(const Parts&... item) {
    if (count_++ < most_) text_ += concat(count_ == 1 ? "" : ", ", item...);
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    return count_ > most_ ? concat(text_, " and ", count_ - most_, " more") : text_;
  }

 private:
  size_t most_, count_ = 0;
  std::string text_;
};

inline std::ostream& operator<<(std::ostream& out, const Enumeration& list) { return out << list.text(); }

/// "a, b or c".
inline std::string one_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

}  // namespace multihead
