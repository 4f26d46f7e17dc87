#include "multihead/c/status-inl.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "multihead/core/version.h"

namespace multihead::c {
namespace {

// Fixed in size: an error of too little memory must find room, too.
constexpr size_t kLongest = 2000;
thread_local char last_error[kLongest + 1] = "";

mh_status fail(mh_status status, const char* what) {
  std::strncpy(last_error, what, kLongest);
  last_error[kLongest] = '\0';
  return status;
}

mh_status current_exception_status() {
  try {
    throw;
  } catch (const std::bad_alloc& error) {
    return fail(MH_MEMORY, error.what());
  } catch (const IoError& error) {
    return fail(MH_INPUT, error.what());
  } catch (const FormatError& error) {
    return fail(MH_INPUT, error.what());
  } catch (const std::invalid_argument& error) {
    return fail(MH_INVALID, error.what());
  } catch (const std::exception& error) {
    return fail(MH_FAILED, error.what());
  } catch (...) {
    return fail(MH_FAILED, "an exception that is no std::exception");
  }
}

}  // namespace

mh_status guarded(FunctionRef<void()> body) noexcept {
  last_error[0] = '\0';
  try {
    body();
    last_error[0] = '\0';  // of calls within it, as from on_text
    return MH_OK;
  } catch (...) {
    return current_exception_status();
  }
}

}  // namespace multihead::c

const char* mh_version(void) {
  static const std::string version(multihead::version());
  return version.c_str();
}

const char* mh_last_error(void) { return multihead::c::last_error; }

mh_status mh_set_num_threads(int threads) {
  return multihead::c::guarded([&] { multihead::set_num_threads(threads); });
}
