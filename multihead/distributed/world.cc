#include "multihead/distributed/world.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "multihead/core/modules-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/distributed/mpi_group-inl.h"

namespace multihead::distributed {
namespace {

// 0: not set, or no number.
int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  int value = 0;
  if (text != nullptr) std::from_chars(text, text + std::char_traits<char>::length(text), value);
  return value;
}

int first_number(std::initializer_list<const char*> variables) {
  for (const char* variable : variables) {
    if (const int value = number_in(variable); value > 0) return value;
  }
  return 0;
}

std::vector<std::string> plugins(const Launch& launch) {
  if (const char* given = std::getenv("MULTIHEAD_MPI_PLUGIN"); given != nullptr && *given != '\0') {
    return {given};
  }
  std::array<const char*, 2> names = {"multihead_openmpi.so", "multihead_mpich.so"};
  if (launch.uses_pmi) std::swap(names[0], names[1]);
  std::vector<std::string> found;
  for (const char* name : names) {
    const auto paths = find_modules(name);
    if (!paths.empty()) found.push_back(paths.front());
  }
  return found;
}

const MpiFunctions& load(const Launch& launch) {
  const std::vector<std::string> paths = plugins(launch);
  MH_CHECK(!paths.empty(), ValueError, launch.launcher,
           " says that this is one of several processes, but found no multihead_openmpi.so or "
           "multihead_mpich.so beside the program or in lib/multihead; they are built if MPI is installed "
           "(Debian: libopenmpi-dev, libmpich-dev); MULTIHEAD_MPI_PLUGIN names one elsewhere");
  void* function = module_function(paths.front(), kOpenMpi);
  const char* error = nullptr;
  const MpiFunctions* functions =
      reinterpret_cast<OpenMpi>(function)(&error);  // NOLINT(*-reinterpret-cast): as dlsym is meant
  MH_CHECK(functions != nullptr, GroupError, "MPI: ", error != nullptr ? error : "no functions");
  MH_CHECK(functions->layout == MpiFunctions::kLayout, ValueError, quote(paths.front(), 400),
           " was built for another version of this library");
  MH_CHECK(launch.size == 0 || functions->size == launch.size, ValueError, launch.launcher, " says ",
           launch.size, " processes, ", functions->library, " sees ", functions->size,
           ": the launcher belongs to a different MPI; set MULTIHEAD_MPI_PLUGIN to the matching plugin");
  return *functions;
}

// Left when the process ends, unless it ends by an error: then the others must not wait for this rank.
class World {
 public:
  ~World() { leave(); }

  std::shared_ptr<Group> get() {
    if (group_ != nullptr) return group_;
    const std::optional<Launch> by = launch();
    if (!by || by->size == 1) return group_ = single();
    const MpiFunctions& functions = load(*by);
    return group_ = mpi_ = std::make_shared<MpiGroup>(functions);
  }

  void set_failed(bool failed) { failed_ = failed; }

  void leave() {
    if (mpi_ != nullptr) failed_ ? mpi_->abort(1) : mpi_->leave();
    mpi_.reset();
    group_.reset();
  }

  void abort(int code) {
    if (mpi_ != nullptr) mpi_->abort(code);
  }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<MpiGroup> mpi_;
  bool failed_ = false;
};

World& the_world() {
  static World world;
  return world;
}

}  // namespace

std::optional<Launch> launch() {
  Launch found;
  found.local_size = std::max(
      1, first_number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"}));
  found.rank = first_number({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"});
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (std::getenv(variable) == nullptr) continue;
    found.launcher = variable;
    found.size = number_in(variable);
    found.uses_pmi = variable[0] == 'P';
    return found;
  }
  // Slurm sets its number of tasks in a batch script, too, which is one process; in a step it sets this.
  if (const int tasks = number_in("SLURM_STEP_NUM_TASKS"); tasks > 1) {
    found.launcher = "SLURM_STEP_NUM_TASKS";
    found.size = tasks;
    found.uses_pmi = std::getenv("PMIX_RANK") == nullptr && std::getenv("PMI_RANK") != nullptr;
    return found;
  }
  if (std::getenv("PMIX_RANK") != nullptr) {
    found.launcher = "PMIX_RANK";
    found.size = 0;
    return found;
  }
  return std::nullopt;
}

std::shared_ptr<Group> world() { return the_world().get(); }
void set_world_failed(bool failed) { the_world().set_failed(failed); }
void leave_world() { the_world().leave(); }
void abort_world(int code) { the_world().abort(code); }

int threads_per_rank() {
  const std::optional<Launch> by = launch();
  const int allowed = num_threads();
  if (!by || by->local_size == 1 || std::getenv("MULTIHEAD_NUM_THREADS") || std::getenv("OMP_NUM_THREADS")) {
    return allowed;
  }
  const bool bound = allowed < sysconf(_SC_NPROCESSORS_ONLN);
  return bound ? allowed : std::max(1, allowed / by->local_size);
}

}  // namespace multihead::distributed
