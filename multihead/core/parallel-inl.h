// Thread creation of the pool, behind a pointer so that tests can make the n-th one fail.
#pragma once

#include <functional>
#include <thread>

namespace multihead {

/// Throws what std::thread throws: std::system_error at a limit of the system, std::bad_alloc.
using StartThread = std::thread (*)(std::function<void()> body);
StartThread& start_thread();

}  // namespace multihead
