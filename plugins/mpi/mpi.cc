// The only file that includes mpi.h: multihead/distributed/mpi_functions.h over any MPI library.
#include <mpi.h>

#include <cstring>

#include "multihead/distributed/mpi_functions.h"

namespace {

using multihead::distributed::MpiFunctions;

MPI_Comm channels[MpiFunctions::kChannels];
char library[MPI_MAX_LIBRARY_VERSION_STRING];
bool is_ours = false;  // a host program, such as mpi4py, finalises what it has initialised
MpiFunctions functions;

// MPI_Request is a pointer here and an integer there.
template <class Start>
void* started(Start&& start) {
  MPI_Request request = MPI_REQUEST_NULL;
  return start(&request) == MPI_SUCCESS ? new MPI_Request(request) : nullptr;
}

void* start_send(const void* data, int bytes, int to, int tag, int channel) {
  return started([&](MPI_Request* request) {
    return MPI_Isend(data, bytes, MPI_BYTE, to, tag, channels[channel], request);
  });
}

void* start_recv(void* data, int bytes, int from, int tag, int channel) {
  return started([&](MPI_Request* request) {
    return MPI_Irecv(data, bytes, MPI_BYTE, from, tag, channels[channel], request);
  });
}

int test(void* request) {
  auto* const own = static_cast<MPI_Request*>(request);
  int done = 0;
  const bool failed = MPI_Test(own, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS;
  if (failed || done != 0) delete own;
  return failed ? -1 : done;
}

void cancel(void* request) {
  auto* const own = static_cast<MPI_Request*>(request);
  MPI_Cancel(own);
  MPI_Request_free(own);
  delete own;
}

void abort_job(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

void finalize() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) return;
  for (MPI_Comm& channel : channels) MPI_Comm_free(&channel);
  if (is_ours) MPI_Finalize();
}

const char* open() {
  int started = 0, ended = 0, threads = MPI_THREAD_SINGLE;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (ended != 0) return "MPI has been finalised";
  if (started == 0) {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads) != MPI_SUCCESS) {
      return "MPI_Init_thread failed";
    }
    is_ours = true;
  } else {
    MPI_Query_thread(&threads);
  }
  for (MPI_Comm& channel : channels) {
    if (MPI_Comm_dup(MPI_COMM_WORLD, &channel) != MPI_SUCCESS) return "MPI_Comm_dup failed";
    MPI_Comm_set_errhandler(channel, MPI_ERRORS_RETURN);
  }
  int length = 0;
  MPI_Get_library_version(library, &length);
  library[std::strcspn(library, "\n")] = '\0';
  functions = {.layout = MpiFunctions::kLayout,
               .rank = 0,
               .size = 0,
               .any_thread = threads == MPI_THREAD_MULTIPLE,
               .library = library,
               .isend = start_send,
               .irecv = start_recv,
               .test = test,
               .cancel = cancel,
               .abort = abort_job,
               .finalize = finalize};
  MPI_Comm_rank(MPI_COMM_WORLD, &functions.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &functions.size);
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const MpiFunctions* multihead_open_mpi(const char** error) {
  *error = open();
  return *error == nullptr ? &functions : nullptr;
}
