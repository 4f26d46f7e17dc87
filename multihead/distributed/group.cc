#include "multihead/distributed/group.h"

namespace multihead::distributed {
namespace {

// Tags from here on are the group's own; users have those below. MPI guarantees 32,767.
constexpr int kBroadcastTag = 32000, kGatherTag = 32001, kBarrierTag = 32002;

std::span<std::byte> bytes_of(int64_t& number) { return std::as_writable_bytes(std::span(&number, 1)); }
std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

class Single final : public Group {
 public:
  Single() : Group(0, 1) {}

 private:
  // Never called: nobody else is in the group.
  MessagePtr start_send(int, std::span<const std::byte>, int) override { return nullptr; }
  MessagePtr start_recv(int, std::span<std::byte>, int) override { return nullptr; }
};

}  // namespace

void Group::check_peer(int peer) const {
  MH_CHECK(peer >= 0 && peer < size_ && peer != rank_, ValueError, "group: rank ", rank_, " of ", size_,
           " has no peer ", peer);
}

MessagePtr Group::isend(int to, std::span<const std::byte> data, int tag) {
  check_peer(to);
  bytes_sent_ += static_cast<int64_t>(data.size());
  return start_send(to, data, tag);
}

MessagePtr Group::irecv(int from, std::span<std::byte> data, int tag) {
  check_peer(from);
  return start_recv(from, data, tag);
}

void Group::sendrecv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in, int tag) {
  const MessagePtr received = irecv(from, in, tag);
  const MessagePtr sent = isend(to, out, tag);
  received->wait();
  sent->wait();
}

// A binomial tree: after step k, the 2^(k+1) ranks from the root on have the data.
void Group::broadcast(int root, std::span<std::byte> data) {
  MH_CHECK(root >= 0 && root < size_, ValueError, "group: no rank ", root, " of ", size_);
  const int place = (rank_ - root + size_) % size_;
  for (int stride = 1; stride < size_; stride *= 2) {
    if (place < stride && place + stride < size_) {
      send((rank_ + stride) % size_, data, kBroadcastTag);
    } else if (place >= stride && place < 2 * stride) {
      recv((rank_ - stride + size_) % size_, data, kBroadcastTag);
    }
  }
}

std::string Group::broadcast_text(int root, std::string text) {
  auto length = static_cast<int64_t>(text.size());
  broadcast(root, bytes_of(length));
  text.resize(static_cast<size_t>(length));
  broadcast(root, bytes_of(text));
  return text;
}

std::vector<std::string> Group::gather(int root, std::string_view text) {
  if (rank_ != root) {
    auto length = static_cast<int64_t>(text.size());
    send(root, bytes_of(length), kGatherTag);
    send(root, std::as_bytes(std::span(text.data(), text.size())), kGatherTag);
    return {};
  }
  std::vector<std::string> texts(static_cast<size_t>(size_));
  for (int from = 0; from < size_; ++from) {
    std::string& own = texts[static_cast<size_t>(from)];
    if (from == rank_) {
      own = text;
      continue;
    }
    int64_t length = 0;
    recv(from, bytes_of(length), kGatherTag);
    own.resize(static_cast<size_t>(length));
    recv(from, bytes_of(own), kGatherTag);
  }
  return texts;
}

// In round k everyone hears from the rank 2^k before it, and so of 2^(k+1) ranks.
void Group::barrier() {
  std::byte here{}, there{};
  for (int stride = 1; stride < size_; stride *= 2) {
    sendrecv((rank_ + stride) % size_, {&here, 1}, (rank_ - stride + size_) % size_, {&there, 1},
             kBarrierTag);
  }
}

std::unique_ptr<Group> single() { return std::make_unique<Single>(); }

}  // namespace multihead::distributed
