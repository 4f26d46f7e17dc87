#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/quiet_thread-inl.h"
#include "multihead/distributed/watch-inl.h"

namespace multihead::distributed {
namespace {

constexpr int kBeatChannel = 1;
constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kBeat = std::chrono::milliseconds(500);
constexpr int64_t kAlive = -1;  // any other word is the number of a lost rank

}  // namespace

Place this_place() {
  Place place{.pid = getpid()};
  gethostname(place.host, sizeof(place.host) - 1);
  return place;
}

Watch::Watch(const MpiFunctions& mpi, std::vector<Place> places, double silence, double stall)
    : mpi_(mpi), places_(std::move(places)), silence_(silence), stall_(stall) {
  for (int rank = 0; rank < mpi_.size; ++rank) {
    if (rank != mpi_.rank && (rank == 0 || mpi_.rank == 0)) peers_.push_back({.rank = rank});
  }
  thread_ = quiet_thread([this] { run(); });
}

void Watch::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

std::string Watch::name_of(int rank) const {
  const Place& place = places_[static_cast<size_t>(rank)];
  return concat("rank ", rank, " (process ", place.pid, " on ", quote(place.host), ")");
}

void Watch::run() {
  for (Peer& peer : peers_) peer.heard = Clock::now();
  Clock::time_point next_beat = Clock::now();
  while (!stopping_) {
    const bool beats = Clock::now() >= next_beat;
    if (beats) next_beat = Clock::now() + kBeat;
    for (Peer& peer : peers_) {
      listen(peer);
      if (beats) tell(peer, kAlive);
    }
    for (int rank = 0; rank < mpi_.size; ++rank) {
      if (has_died(rank)) end_job(rank, "has died");
    }
    for (const Peer& peer : peers_) {
      if (Clock::now() - peer.heard > silence_) {
        end_job(peer.rank, concat("has been silent for ", silence_.count(), " seconds"));
      }
    }
    if (stall_.count() > 0 && Clock::now() - touched_.load() > stall_) {
      end_job(mpi_.rank, concat("has neither sent nor received for ", stall_.count(), " seconds"));
    }
    std::this_thread::sleep_for(kLook);
  }
  for (Peer& peer : peers_) {
    if (peer.receiving != nullptr) mpi_.cancel(peer.receiving);
    // Small messages leave at once; one that has not left is not sent.
    if (peer.sending != nullptr && mpi_.test(peer.sending) == 0) mpi_.cancel(peer.sending);
  }
}

void Watch::listen(Peer& peer) {
  while (true) {
    if (peer.receiving == nullptr) {
      peer.receiving = mpi_.irecv(&peer.in, sizeof(peer.in), peer.rank, 0, kBeatChannel);
    }
    const int state = peer.receiving != nullptr ? mpi_.test(peer.receiving) : -1;
    if (state == 0) return;
    peer.receiving = nullptr;
    if (state < 0) return;  // the connection is gone: silence says the rest
    peer.heard = Clock::now();
    if (peer.in != kAlive) end_job(static_cast<int>(peer.in), concat("is lost, says rank ", peer.rank));
  }
}

void Watch::tell(Peer& peer, int64_t word) {
  if (peer.sending != nullptr && mpi_.test(peer.sending) == 0) return;
  peer.out = word;
  peer.sending = mpi_.isend(&peer.out, sizeof(peer.out), peer.rank, 0, kBeatChannel);
}

bool Watch::has_died(int rank) const {
  const Place &place = places_[static_cast<size_t>(rank)], &here = places_[static_cast<size_t>(mpi_.rank)];
  if (rank == mpi_.rank || std::strcmp(place.host, here.host) != 0) return false;
  return kill(static_cast<pid_t>(place.pid), 0) != 0 && errno == ESRCH;
}

void Watch::end_job(int rank, const std::string& why) {
  lost_ = rank;
  // In one write: other ranks say the same at the same time.
  const std::string line = concat("multihead: rank ", mpi_.rank, ": ", name_of(rank), " ", why,
                                  "; the job ends; continue it with --resume\n");
  std::fputs(line.c_str(), stderr);
  for (Peer& peer : peers_) {
    if (peer.rank != rank) tell(peer, rank);
  }
  // Time for the word to reach the others, and for them to say it.
  const auto until = Clock::now() + std::chrono::seconds(2);
  while (Clock::now() < until) {
    for (Peer& peer : peers_) {
      if (peer.sending != nullptr && mpi_.test(peer.sending) != 0) peer.sending = nullptr;
    }
    std::this_thread::sleep_for(kLook);
  }
  mpi_.abort(1);
  _exit(1);
}

}  // namespace multihead::distributed
