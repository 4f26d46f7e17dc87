// What became of the threads that were asked for.
#pragma once

namespace multihead {

/// Threads that num_threads() counts and the system would not start when they were first needed (a limit on
/// processes or on address space): the others do their work, with the same results. set_num_threads() tries
/// them again. 0 before the first parallel_for.
int missing_threads();

}  // namespace multihead
