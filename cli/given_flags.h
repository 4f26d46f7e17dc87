// Flags whose defaults come from the model folder, which is read after them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/verb.h"

namespace multihead::cli {

/// Remembers which flags were given, to set them once more when the defaults have changed.
class GivenFlags {
 public:
  void declare(Flags& flags, const std::function<void(Flags&)>& declare) {
    Flags own;
    declare(own);
    for (Flag flag : own.list()) {
      flag.set = [this, set = flag.set](std::string_view value) {
        set(value);
        given_.emplace_back([set, text = std::string(value)] { set(text); });
      };
      flags.add(std::move(flag));
    }
  }
  void set_again() const {
    for (const auto& set : given_) set();
  }

 private:
  std::vector<std::function<void()>> given_;
};

}  // namespace multihead::cli
