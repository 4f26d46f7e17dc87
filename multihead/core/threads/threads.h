// Threads that could not be started.
#pragma once

namespace multihead {

/// Threads counted by num_threads() that the system could not start when first needed (a limit on processes
/// or address space); the others do their work, with the same results. set_num_threads() retries. 0 before
/// the first parallel_for.
int missing_threads();

}  // namespace multihead
