// How the functions of c.h fail: no exception leaves them.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string_view>

#include "multihead/c.h"
#include "multihead/core/error.h"

namespace multihead::c {

/// Runs a function's body. Exceptions become a status and the text of mh_last_error().
mh_status guarded(const std::function<void()>& body) noexcept;

/// Throws ValueError naming the argument.
template <class T>
T& checked(T* pointer, std::string_view name) {
  MH_CHECK(pointer != nullptr, ValueError, name, " is NULL");
  return *pointer;
}

/// The caller's place for a result, NULL until there is one. Throws ValueError naming the argument.
template <class T>
T*& emptied(T** place, std::string_view name) {
  return checked(place, name) = nullptr;
}

/// The caller's options, whose header may be older than this library: fields it does not know keep their defaults.
/// Throws ValueError if it is newer.
template <class Options>
Options options_of(const Options* given, Options defaults) {
  if (given == nullptr) return defaults;
  MH_CHECK(given->size >= sizeof(size_t) && given->size <= sizeof(Options), ValueError,
           "options: their size is ", given->size, ", this library knows ", sizeof(Options),
           "; begin with the header's initialiser, and link a library that is not older than the header");
  std::memcpy(&defaults, given, given->size);
  defaults.size = sizeof(Options);
  return defaults;
}

}  // namespace multihead::c
