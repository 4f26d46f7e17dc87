// How the functions of c.h fail: no exception leaves them.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "multihead/c.h"
#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"

namespace multihead::c {

/// Runs a function's body, without memory of its own. Exceptions become a status and the text of mh_last_error().
mh_status guarded(FunctionRef<void()> body) noexcept;

/// Throws ValueError naming the argument.
template <class T>
T& checked(T* pointer, std::string_view name) {
  MH_CHECK(pointer != nullptr, ValueError, name, " is NULL");
  return *pointer;
}

/// The same of a text, which must be UTF-8.
inline std::string checked_text(const char* text, std::string_view name) {
  std::string copy = &checked(text, name);
  const size_t wrong = find_invalid_utf8(copy);
  MH_CHECK(wrong == std::string::npos, ValueError, name, " is not valid UTF-8 at byte ", wrong);
  return copy;
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
  MH_CHECK(
      given->size >= sizeof(size_t) && given->size <= sizeof(Options) && given->size % sizeof(void*) == 0,
      ValueError, "options: their size is ", given->size, ", this library knows ", sizeof(Options),
      "; begin with the header's initialiser, and link a library that is not older than the header");
  std::memcpy(&defaults, given, given->size);
  defaults.size = sizeof(Options);
  return defaults;
}

}  // namespace multihead::c
