// Notices ranks that have died or are silent.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "multihead/distributed/mpi_functions.h"

namespace multihead::distributed {

/// Where a rank runs.
struct Place {
  char host[256] = {};
  int64_t pid = 0;
};
Place this_place();

/// A thread that tells the other ranks that this one lives, and listens to them: all tell rank 0, and rank 0
/// tells all, so a job of a thousand ranks sends two thousand small messages a beat. A rank that falls silent
/// is named on stderr, here and, told by rank 0, everywhere; then the job is aborted.
class Watch {
 public:
  /// `places` of all ranks; those on this machine are also looked up by their process number. A rank whose
  /// main thread does nothing with messages for `stall` seconds names itself; 0: off.
  Watch(const MpiFunctions& mpi, std::vector<Place> places, double silence, double stall);
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Ends the thread; no rank may expect beats any more.
  void stop();
  /// The lost rank; -1: all are there.
  int lost() const { return lost_; }
  std::string name_of(int rank) const;

  /// The main thread waits for a message, or has one.
  void touch() { touched_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int rank = 0;
    Clock::time_point heard;
    void *sending = nullptr, *receiving = nullptr;
    int64_t out = 0, in = 0;
  };

  void run();
  void listen(Peer& peer);
  void tell(Peer& peer, int64_t word);
  bool has_died(int rank) const;
  [[noreturn]] void end_job(int rank, const std::string& why);

  const MpiFunctions& mpi_;
  std::vector<Place> places_;
  std::chrono::duration<double> silence_, stall_;
  std::atomic<Clock::time_point> touched_{Clock::now()};
  std::vector<Peer> peers_;  // rank 0: all others; others: rank 0
  std::atomic<int> lost_{-1};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace multihead::distributed
