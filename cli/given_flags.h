// Flags whose defaults come from the model folder, which is read later.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/verb.h"

namespace multihead::cli {

/// Records the given flags, to apply them again on top of the folder's defaults.
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
