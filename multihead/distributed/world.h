// The processes that mpirun or srun has started together.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "multihead/distributed/group.h"

namespace multihead::distributed {

/// Settings that the launcher passes to a process in its environment.
struct Launch {
  std::string launcher;   ///< the variable that says so
  int rank = 0;           ///< of this process
  int size = 1;           ///< processes in the job; 0: not said
  int local_size = 1;     ///< of them on this machine
  bool uses_pmi = false;  ///< MPICH's way of finding each other
};
/// None: nothing has launched this process as one of several.
std::optional<Launch> launch();

/// All processes of the job; a group of one without a launcher. The first call loads MPI's plugin, if there
/// is more than one process, and joins the job: every process has to call it. Later calls return the same
/// group.
///
/// A thread of each rank tells the others that it is alive. A rank that has died or been silent for
/// MULTIHEAD_SILENCE seconds (default 7) is named on stderr by all others, and the job ends. So is one whose
/// main thread has neither sent nor received for MULTIHEAD_STALL seconds (default: any time), longer than
/// whatever a rank does alone.
///
/// Environment  MULTIHEAD_MPI_PLUGIN: the plugin, if it is not beside the program or library
/// Throws       ValueError (no plugin, or one for another MPI), GroupError (MPI failed)
std::shared_ptr<Group> world();

/// Leaves the job, once all ranks do. Called at process exit unless called before.
void leave_world();
/// An error has kept this rank from what the others do (true), or they are together again: while it stands,
/// leaving ends the job instead of waiting for the others.
void set_world_failed(bool failed);
/// After an error: ends all processes of the job; mpirun exits with `code`. Returns if there is no job.
void abort_world(int code);
/// Default number of threads of this rank: the machine's CPUs divided by its ranks, unless the launcher
/// has bound each to CPUs of its own.
int threads_per_rank();

}  // namespace multihead::distributed
