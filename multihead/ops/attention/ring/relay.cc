#include "multihead/ops/attention/ring/relay-inl.h"

#include <algorithm>
#include <bit>

namespace multihead::detail {
namespace {

using distributed::Group;
using distributed::MessagePtr;

constexpr int kFirstTag = 16384, kTags = 15616;

// One journey on this rank, from the moment its messages are requested.
class Visit {
 public:
  Visit(Group& group, const Journey& journey, int number, const Stops& stops)
      : group_(&group), journey_(&journey), tag_(number), tensors_(stops.memory(journey)) {
    const auto& ranks = journey.ranks;
    place_ = static_cast<uint64_t>(std::find(ranks.begin(), ranks.end(), group.rank()) - ranks.begin());
    if (place_ == 0) {
      pass_on();
    } else {
      const int from = ranks[static_cast<size_t>(place_ - std::bit_floor(place_))];
      for (size_t n = 0; n < tensors_.size(); ++n) {
        messages_.push_back(group.irecv(from, bytes_of(tensors_[n]), tag(n)));
      }
    }
  }

  void arrive() {
    if (place_ == 0) return;
    wait();
    pass_on();
  }
  void use(const Stops& stops) {
    stops.use(*journey_, tensors_);
    wait();
  }

 private:
  // Neighbours may exchange several journeys at a time, each in its own direction.
  int tag(size_t n) const {
    const int64_t all = int64_t{tag_} * static_cast<int64_t>(tensors_.size()) + static_cast<int64_t>(n);
    return kFirstTag + static_cast<int>(all % kTags);
  }
  void wait() {
    for (const MessagePtr& message : messages_) message->wait();
    messages_.clear();
  }
  void pass_on() {
    const std::vector<int>& ranks = journey_->ranks;
    for (uint64_t step = place_ == 0 ? 1 : 2 * std::bit_floor(place_); place_ + step < ranks.size();
         step *= 2) {
      for (size_t n = 0; n < tensors_.size(); ++n) {
        messages_.push_back(group_->isend(ranks[place_ + step], bytes_of(tensors_[n]), tag(n)));
      }
    }
  }

  Group* group_;
  const Journey* journey_;
  int tag_;
  std::vector<Tensor> tensors_;
  std::vector<MessagePtr> messages_;  // before the tensors' end
  uint64_t place_ = 0;                // in the binomial tree of the journey's ranks
};

}  // namespace

void relay(Group& group, const std::vector<Journey>& journeys, const Stops& stops) {
  std::vector<int> mine;
  for (size_t n = 0; n < journeys.size(); ++n) {
    const auto& ranks = journeys[n].ranks;
    if (std::find(ranks.begin(), ranks.end(), group.rank()) != ranks.end())
      mine.push_back(static_cast<int>(n));
  }
  const auto start = [&](size_t n) {
    const int number = mine[n];
    return std::make_unique<Visit>(group, journeys[static_cast<size_t>(number)], number, stops);
  };
  std::unique_ptr<Visit> next = mine.empty() ? nullptr : start(0);
  for (size_t n = 0; n < mine.size(); ++n) {
    const std::unique_ptr<Visit> now = std::move(next);
    if (n + 1 < mine.size()) next = start(n + 1);
    now->arrive();
    now->use(stops);
  }
}

std::vector<int> ranks_after(int owner, int ranks, const std::function<bool(int rank)>& needs) {
  std::vector<int> path = {owner};
  for (int step = 1; step < ranks; ++step) {
    const int rank = (owner + step) % ranks;
    if (needs(rank)) path.push_back(rank);
  }
  return path;
}

std::byte set_everywhere(Group& group, std::byte mine) {
  const std::span<std::byte> data(&mine, 1);
  if (group.rank() != 0) {
    group.send(0, data, kFirstTag);
    group.recv(0, data, kFirstTag);
    return mine;
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    std::byte one{};
    group.recv(rank, {&one, 1}, kFirstTag);
    mine &= one;
  }
  for (int rank = 1; rank < group.size(); ++rank) group.send(rank, data, kFirstTag);
  return mine;
}

std::span<std::byte> bytes_of(const Tensor& x) { return {static_cast<std::byte*>(x.raw()), x.bytes()}; }

}  // namespace multihead::detail
