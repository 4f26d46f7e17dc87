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

struct Request {
  MPI_Request handle;  // a pointer here and an integer there
  int wanted;          // bytes; -1: it sends
};

template <class Start>
void* started(int wanted, Start&& start) {
  MPI_Request handle = MPI_REQUEST_NULL;
  return start(&handle) == MPI_SUCCESS ? new Request{handle, wanted} : nullptr;
}

void* start_send(const void* data, int bytes, int to, int tag, int channel) {
  return started(-1, [&](MPI_Request* request) {
    return MPI_Isend(data, bytes, MPI_BYTE, to, tag, channels[channel], request);
  });
}

void* start_recv(void* data, int bytes, int from, int tag, int channel) {
  return started(bytes, [&](MPI_Request* request) {
    return MPI_Irecv(data, bytes, MPI_BYTE, from, tag, channels[channel], request);
  });
}

bool is_too_long(int error) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(error, &kind);
  return kind == MPI_ERR_TRUNCATE;
}

bool is_too_short(const MPI_Status& status, int wanted) {
  int got = 0;
  return wanted >= 0 && MPI_Get_count(&status, MPI_BYTE, &got) == MPI_SUCCESS && got != wanted;
}

int test(void* request) {
  auto* const own = static_cast<Request*>(request);
  const int wanted = own->wanted;
  int done = 0;
  MPI_Status status;
  const int error = MPI_Test(&own->handle, &done, &status);
  if (error != MPI_SUCCESS || done != 0) delete own;
  if (error != MPI_SUCCESS) return is_too_long(error) ? -2 : -1;
  return done != 0 && is_too_short(status, wanted) ? -2 : done;
}

void cancel(void* request) {
  auto* const own = static_cast<Request*>(request);
  MPI_Cancel(&own->handle);
  MPI_Request_free(&own->handle);
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
