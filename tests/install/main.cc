#include <cstdio>
#include <string>

#include "multihead/multihead.h"

namespace mh = multihead;

int main() {
  static_assert(MULTIHEAD_VERSION_MAJOR == 0);
  const std::string version(mh::version());
  std::printf("multihead %s ok\n", version.c_str());
}
