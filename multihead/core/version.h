// The library version; CMake and the Python package read it from here.
#pragma once

#include <string_view>

#define MULTIHEAD_VERSION_MAJOR 0
#define MULTIHEAD_VERSION_MINOR 2
#define MULTIHEAD_VERSION_PATCH 0

namespace multihead {

/// Version of the linked library, "major.minor.patch". The macros are the version compiled against.
std::string_view version();

/// Short hash of the commit the library was configured from; empty outside a git checkout.
std::string_view git_hash();

}  // namespace multihead
