// What a message enumerates.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>

#include "multihead/core/error.h"

namespace multihead {

/// "a, b, c" of items that come one by one; of more than `most` items "a, b and 5 more".
class Enumeration {
 public:
  explicit Enumeration(size_t most = static_cast<size_t>(-1)) : most_(most) {}

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

}  // namespace multihead
