#include "multihead/core/version.h"

#define MH_TEXT_(x) #x
#define MH_TEXT(x) MH_TEXT_(x)

namespace multihead {

std::string_view version() {
  return MH_TEXT(MULTIHEAD_VERSION_MAJOR) "." MH_TEXT(MULTIHEAD_VERSION_MINOR) "." MH_TEXT(
      MULTIHEAD_VERSION_PATCH);
}

// The macro comes from CMake, for this file alone, so that a new commit recompiles nothing else.
std::string_view git_hash() { return MULTIHEAD_GIT_HASH; }

}  // namespace multihead
