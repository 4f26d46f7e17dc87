#include <cstring>
#include <utility>

#include "multihead/distributed/collectives.h"
#include "multihead/kernels/elementwise/accumulate.h"
#include "multihead/train/parallel/bucket_sum-inl.h"

namespace multihead::train {

BucketSum::BucketSum(distributed::Group& group, const ShardTree& tree, std::vector<int64_t> bounds,
                     int first_tag)
    : group_(group),
      tree_(tree),
      bounds_(std::move(bounds)),
      first_tag_(first_tag),
      sums_(tree.nodes().size()) {
  for (size_t i = 0; i < tree_.nodes().size(); ++i) {
    const ShardTree::Node& node = tree_.nodes()[i];
    const bool ours = node.first_rank <= group_.rank() && group_.rank() <= node.last_rank;
    if (ours && !node.is_local()) path_.push_back(static_cast<int>(i));
  }
}

void BucketSum::add(int64_t shard, Tensor gradient) {
  const std::vector<ShardTree::Node>& nodes = tree_.nodes();
  while (!(nodes[next_node_].is_leaf() && nodes[next_node_].begin == shard)) ++next_node_;
  sums_[next_node_] = std::move(gradient);
  // The sums that are complete with this shard.
  while (++next_node_ < nodes.size() && !nodes[next_node_].is_leaf() && nodes[next_node_].is_local() &&
         nodes[next_node_].first_rank == group_.rank()) {
    Tensor &left = sums_[static_cast<size_t>(nodes[next_node_].left)],
           &right = sums_[static_cast<size_t>(nodes[next_node_].right)];
    kernels::accumulate(left.data<float>(), right.data<float>(), left.numel());
    right = Tensor();
    sums_[next_node_] = std::exchange(left, Tensor());
  }
  if (shard + 1 == tree_.first_shard(group_.rank() + 1)) climbs_.resize(bounds_.size() - 1);
}

bool BucketSum::advance() {
  if (slice_.defined()) return true;
  if (climbs_.empty()) return false;  // own shards are missing
  bool is_done = true;
  for (size_t slice = 0; slice < climbs_.size(); ++slice) is_done = climb(slice) && is_done;
  std::erase_if(sending_, [](const distributed::MessagePtr& message) { return message->test(); });
  if (!is_done || !sending_.empty()) return false;
  keep_slice();
  return true;
}

void BucketSum::wait() {
  for (const Climb& climb : climbs_) {
    if (climb.message != nullptr) return climb.message->wait();
  }
  if (!sending_.empty()) sending_.front()->wait();
}

void BucketSum::keep_slice() {
  const auto rank = static_cast<size_t>(group_.rank());
  const int root = static_cast<int>(tree_.nodes().size()) - 1;
  if (group_.size() == 1) {
    slice_ = sums_.back();
  } else {
    slice_ = Tensor::empty({bounds_[rank + 1] - bounds_[rank]});
    if (slice_.numel() > 0) std::memcpy(slice_.data<float>(), held(rank, root), slice_.bytes());
  }
  for (Tensor& sum : sums_) sum = Tensor();
}

void BucketSum::clear() {
  slice_ = Tensor();
  climbs_.clear();
  next_node_ = 0;
}

// Takes a slice as far up the tree as it goes without waiting. True: as far as it goes on this rank.
bool BucketSum::climb(size_t slice) {
  Climb& climb = climbs_[slice];
  if (bounds_[slice] == bounds_[slice + 1]) return true;
  for (; climb.next < path_.size(); ++climb.next) {
    if (climb.message != nullptr && !climb.message->test()) return false;
    const int node = path_[climb.next];
    float* const sum = step_up(slice, tree_.nodes()[static_cast<size_t>(node)]);
    if (climb.message != nullptr) return false;
    if (sum != nullptr) climb.sums[node] = sum;
  }
  return true;
}

float* BucketSum::held(size_t slice, int node) const {
  const Tensor& own = sums_[static_cast<size_t>(node)];
  return own.defined() ? own.data<float>() + bounds_[slice] : climbs_[slice].sums.at(node);
}

// One node's slice from those of its children, one of which may lie on another rank. Null if it belongs
// elsewhere, or waits for a message.
float* BucketSum::step_up(size_t slice, const ShardTree::Node& node) {
  Climb& climb = climbs_[slice];
  const auto holder = [&](int child) { return tree_.nodes()[static_cast<size_t>(child)].holder[slice]; };
  const int me = group_.rank(), left = holder(node.left), right = holder(node.right),
            tag = first_tag_ + static_cast<int>(slice);
  if (left != me && right != me) return nullptr;
  const int64_t size = bounds_[slice + 1] - bounds_[slice];
  float* const own = held(slice, left == me ? node.left : node.right);
  if (node.holder[slice] != me) {
    sending_.push_back(group_.isend(node.holder[slice], distributed::bytes_of(own, size), tag));
    return nullptr;
  }
  const float* other = left == right ? held(slice, node.right) : nullptr;
  if (other == nullptr) {
    if (climb.message == nullptr) {
      climb.received = Tensor::empty({size});
      climb.message = group_.irecv(left == me ? right : left,
                                   distributed::bytes_of(climb.received.data<float>(), size), tag);
      return nullptr;
    }
    other = climb.received.data<float>();
  }
  kernels::accumulate(own, other, size);  // of two numbers the sum is the same in either order
  climb.message.reset();
  climb.received = Tensor();
  return own;
}

}  // namespace multihead::train
