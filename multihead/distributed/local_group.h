// Groups whose ranks are threads: every distributed algorithm without MPI, and more ranks than processes.
#pragma once

#include <functional>

#include "multihead/distributed/group.h"

namespace multihead::distributed {

/// Runs body(group) on `size` threads, as ranks 0 … size-1, and returns when all have ended. They take turns:
/// one computes, until it waits for a message of another. If one throws, the others' waits throw GroupError
/// and the first exception is rethrown here.
void run_local_group(int size, const std::function<void(Group& group)>& body);

/// The same for a group of `size` ranks whose threads are shared by the ranks of `hosts`, all of which call
/// it: host h of H runs the ranks [size h / H, size (h+1) / H). Throws as
/// check_hosted().
void run_hosted_group(Group& hosts, int size, const std::function<void(Group& group)>& body);

/// Throws ValueError unless every host has as many ranks, 4 at most if there are several hosts.
void check_hosted(int size, int hosts);

}  // namespace multihead::distributed
