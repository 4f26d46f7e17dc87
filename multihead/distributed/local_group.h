// A group of threads of this process: every distributed algorithm without MPI.
#pragma once

#include <functional>

#include "multihead/distributed/group.h"

namespace multihead::distributed {

/// Runs body(group) on `size` threads, as ranks 0 … size-1, and returns when all have ended. If one throws,
/// the others' waits throw GroupError and the first exception is rethrown here.
void run_local_group(int size, const std::function<void(Group& group)>& body);

}  // namespace multihead::distributed
