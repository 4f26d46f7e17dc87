// A locale whose numbers have a comma, made for a test.
#pragma once

#include <clocale>
#include <cstdlib>
#include <string>

#include "multihead/testing/files.h"

namespace multihead::testing {

/// While it is alive, the C library spells one half "0,5". Whether it does: the tool or its sources may be missing.
class CommaLocale {
 public:
  CommaLocale() {
    const std::string make = "localedef -c -i de_DE -f UTF-8 '" + (folder_ / "de_DE.UTF-8") + "' 2>/dev/null";
    static_cast<void>(std::system(make.c_str()));
    setenv("LOCPATH", folder_.path().c_str(), 1);
    is_there_ = std::setlocale(LC_NUMERIC, "de_DE.UTF-8") != nullptr;
    unsetenv("LOCPATH");
  }
  ~CommaLocale() { std::setlocale(LC_NUMERIC, "C"); }
  CommaLocale(const CommaLocale&) = delete;
  CommaLocale& operator=(const CommaLocale&) = delete;
  explicit operator bool() const { return is_there_; }

 private:
  TemporaryFolder folder_;
  bool is_there_ = false;
};

}  // namespace multihead::testing
