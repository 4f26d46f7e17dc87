// Processes (or threads) that work on one job and send each other messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/error.h"

namespace multihead {

/// A member of a group has died, is silent, or has failed.
struct GroupError : detail::ErrorAs<std::runtime_error> {
  using ErrorAs::ErrorAs;
};

namespace distributed {

/// A message on its way. Its memory must stay as it is until wait() or a true test(); destroy it only then.
class Message {
 public:
  virtual ~Message() = default;
  /// True once the message has been sent or received; never blocks.
  virtual bool test() = 0;
  /// Blocks until then. Throws GroupError if the other side is lost.
  virtual void wait() = 0;
};
using MessagePtr = std::unique_ptr<Message>;

/// The ranks 0 … size-1 of a job, seen from one of them. One thread of a rank uses it at a time.
///
/// Messages from one rank to another with one tag arrive in the order they were sent; the receiver knows
/// their size. Sends need not wait for the receiver, but may: use isend() and irecv(), or sendrecv(), where
/// ranks send to each other. Throws GroupError if a peer is lost, ValueError for a rank outside the group.
class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Bytes that this rank has sent to others.
  int64_t bytes_sent() const { return bytes_sent_; }

  MessagePtr isend(int to, std::span<const std::byte> data, int tag = 0);
  MessagePtr irecv(int from, std::span<std::byte> data, int tag = 0);
  void send(int to, std::span<const std::byte> data, int tag = 0) { isend(to, data, tag)->wait(); }
  void recv(int from, std::span<std::byte> data, int tag = 0) { irecv(from, data, tag)->wait(); }
  /// Both at once, as in a ring: never blocks on itself.
  void sendrecv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in, int tag = 0);

  /// Every rank's `data` becomes the root's.
  void broadcast(int root, std::span<std::byte> data);
  /// The root's text, of any length, on every rank.
  std::string broadcast_text(int root, std::string text);
  /// One text per rank, of any length, at the root; elsewhere nothing.
  std::vector<std::string> gather(int root, std::string_view text);
  /// Returns once every rank has called it.
  void barrier();

 protected:
  Group(int rank, int size) : rank_(rank), size_(size) {}

  virtual MessagePtr start_send(int to, std::span<const std::byte> data, int tag) = 0;
  virtual MessagePtr start_recv(int from, std::span<std::byte> data, int tag) = 0;

 private:
  void check_peer(int peer) const;

  int rank_, size_;
  int64_t bytes_sent_ = 0;
};

/// A group of one, whose messages have nowhere to go.
std::unique_ptr<Group> single();

}  // namespace distributed
}  // namespace multihead
