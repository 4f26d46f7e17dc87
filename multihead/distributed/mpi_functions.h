// Functions that a plugin for an MPI library provides: plain C, so that neither side needs the other's
// headers.
#pragma once

namespace multihead::distributed {

/// A table of the plugin's functions, valid until finalize(). Requests are the plugin's own objects.
struct MpiFunctions {
  static constexpr int kLayout = 1;
  /// Channel 0 carries the job's messages, channel 1 the heartbeats.
  static constexpr int kChannels = 2;

  int layout;           ///< kLayout of the plugin's build
  int rank, size;       ///< in the job
  int any_thread;       ///< several threads may call at once
  const char* library;  ///< "Open MPI v4.1.4, …"

  /// Null: failed.
  void* (*isend)(const void* data, int bytes, int to, int tag, int channel);
  void* (*irecv)(void* data, int bytes, int from, int tag, int channel);
  /// 1: done, and the request is gone. 0: under way. Also gone: -1 failed, -2 received another number of bytes.
  int (*test)(void* request);
  /// Gives up a request.
  void (*cancel)(void* request);
  /// Ends every process of the job; mpirun exits with this code.
  void (*abort)(int code);
  void (*finalize)();
};

/// The plugin's one function: joins the job. Null with an error text if that fails.
using OpenMpi = const MpiFunctions* (*)(const char** error);
inline constexpr const char* kOpenMpi = "multihead_open_mpi";

}  // namespace multihead::distributed
