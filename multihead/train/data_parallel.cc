#include "multihead/train/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/parallel.h"
#include "multihead/distributed/collectives.h"
#include "multihead/kernels/elementwise/accumulate.h"
#include "multihead/kernels/elementwise/optimizer.h"

namespace multihead::train {
namespace {

// Slices are cut here, and squares are summed by piece, so that neither changes a bit of the other. Small
// enough for a test's model to have some for every rank; their squares are 1/128 of the gradient's bytes.
constexpr int64_t kPiece = 256;

void copy(float* to, const float* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

int tag_of(size_t slice) { return static_cast<int>(slice % 16384); }

std::vector<int64_t> in_bytes(std::vector<int64_t> bounds, size_t size) {
  for (int64_t& bound : bounds) bound *= static_cast<int64_t>(size);
  return bounds;
}

}  // namespace

DataParallel::DataParallel(distributed::Group& group, const std::vector<nn::NamedTensor>& parameters,
                           int64_t shards)
    : group_(group), tree_(shards, group.size()), flats_(tree_.nodes().size()) {
  for (const auto& [name, tensor] : parameters) {
    MH_CHECK(tensor.dtype() == Dtype::f32, DtypeError, "train: shards need f32 weights, ", name, " is ",
             tensor.dtype());
    parameters_.push_back({name, tensor, weights_});
    for (int64_t at = 0; at < tensor.numel(); at += kPiece) pieces_.push_back(weights_ + at);
    weights_ += tensor.numel();
  }
  pieces_.push_back(weights_);
  cut(parameters);
}

DataParallel::~DataParallel() = default;

// Slices of about the same size, whole pieces each.
void DataParallel::cut(const std::vector<nn::NamedTensor>& parameters) {
  const int ranks = group_.size();
  for (int rank = 0; rank <= ranks; ++rank) {
    const int64_t target = distributed::share_begin(weights_, ranks, rank);
    const auto piece = std::lower_bound(pieces_.begin(), pieces_.end(), target);
    slice_pieces_.push_back(piece - pieces_.begin());
    bounds_.push_back(*piece);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    MH_CHECK(slice_size(rank) > 0, ValueError, "train: a model of ", weights_, " weights is too small for ",
             ranks, " ranks");
  }
  const int64_t begin = bounds_[static_cast<size_t>(group_.rank())], end = begin + slice_size(group_.rank());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters_[i];
    const int64_t from = std::max(begin, p.begin) - p.begin,
                  to = std::min(end, p.begin + p.tensor.numel()) - p.begin;
    if (from >= to) continue;
    // Whether weights decay depends on the rank of their tensor.
    const Shape shape = p.tensor.rank() >= 2 ? Shape{1, to - from} : Shape{to - from};
    const Shape strides = p.tensor.rank() >= 2 ? Shape{to - from, 1} : Shape{1};
    Tensor view = p.tensor.as_strided(shape, strides, from);
    view.set_requires_grad();
    own_.push_back({p.name, view});
  }
}

optim::ParameterList DataParallel::all_parameters() const {
  std::vector<nn::NamedTensor> all;
  for (const Parameter& p : parameters_) all.push_back({p.name, p.tensor});
  return all;
}

int64_t DataParallel::slice_size(int rank) const {
  return bounds_[static_cast<size_t>(rank) + 1] - bounds_[static_cast<size_t>(rank)];
}

DataParallel::Flat DataParallel::take_flat() {
  if (spare_.empty()) return Flat(new float[static_cast<size_t>(weights_)]);
  Flat flat = std::move(spare_.back());
  spare_.pop_back();
  return flat;
}

void DataParallel::add(int64_t shard) {
  const std::vector<ShardTree::Node>& nodes = tree_.nodes();
  while (!(nodes[next_node_].is_leaf() && nodes[next_node_].begin == shard)) ++next_node_;
  Flat& leaf = flats_[next_node_];
  leaf = take_flat();
  for (const Parameter& p : parameters_) {
    const Tensor gradient = p.tensor.grad();
    float* const to = leaf.get() + p.begin;
    if (gradient.defined()) {
      copy(to, gradient.data<float>(), gradient.numel());
    } else {
      std::fill_n(to, p.tensor.numel(), 0.0f);  // no token of this shard reaches it
    }
    p.tensor.set_grad({});
  }
  // The sums that are complete with this shard.
  while (++next_node_ < nodes.size() && !nodes[next_node_].is_leaf() && nodes[next_node_].is_local() &&
         nodes[next_node_].first_rank == group_.rank()) {
    add_local(static_cast<int>(next_node_));
  }
}

void DataParallel::add_local(int node) {
  const ShardTree::Node& n = tree_.nodes()[static_cast<size_t>(node)];
  Flat &left = flats_[static_cast<size_t>(n.left)], &right = flats_[static_cast<size_t>(n.right)];
  kernels::accumulate(left.get(), right.get(), weights_);
  spare_.push_back(std::move(right));
  flats_[static_cast<size_t>(node)] = std::move(left);
}

double DataParallel::reduce() {
  if (group_.size() > 1 && received_ == nullptr) received_ = take_flat();
  climbs_.clear();
  climbs_.resize(static_cast<size_t>(group_.size()));
  for (size_t k = 0; k < climbs_.size(); ++k) {
    for (const Flat& flat : flats_)
      climbs_[k].sums.push_back(flat != nullptr ? flat.get() + bounds_[k] : nullptr);
  }
  // All slices side by side; once nothing moves, until the first of them does.
  for (bool done = false; !done;) {
    done = true;
    Climb* waiting = nullptr;
    for (size_t k = 0; k < climbs_.size(); ++k) {
      if (advance(k)) continue;
      done = false;
      if (waiting == nullptr) waiting = &climbs_[k];
    }
    if (waiting != nullptr) waiting->message->wait();
  }
  const auto rank = static_cast<size_t>(group_.rank());
  float* const sum = climbs_[rank].sums.back();
  for (int64_t at = 0; const auto& [name, view] : own_) {
    view.set_grad(Tensor::borrow(sum + at, view.shape(), view.strides(), Dtype::f32));
    at += view.numel();
  }
  for (const distributed::MessagePtr& message : sending_) message->wait();
  sending_.clear();
  return norm(sum);
}

// Takes a slice as far up the tree as it goes without waiting. True: as far as it goes on this rank.
bool DataParallel::advance(size_t slice) {
  Climb& climb = climbs_[slice];
  for (; climb.node < tree_.nodes().size(); ++climb.node) {
    const ShardTree::Node& node = tree_.nodes()[climb.node];
    const bool ours = node.first_rank <= group_.rank() && group_.rank() <= node.last_rank;
    if (node.is_local() || !ours) continue;
    if (climb.message != nullptr && !climb.message->test()) return false;
    climb.sums[climb.node] = step_up(slice, climb.node);
    if (climb.message != nullptr) return false;
  }
  return true;
}

// One node's slice from those of its children, one of which may lie on another rank. Null if it belongs
// elsewhere, or waits for a message.
float* DataParallel::step_up(size_t slice, size_t index) {
  Climb& climb = climbs_[slice];
  const ShardTree::Node& node = tree_.nodes()[index];
  const auto left = static_cast<size_t>(node.left), right = static_cast<size_t>(node.right);
  const int me = group_.rank(), left_holder = tree_.nodes()[left].holder[slice],
            right_holder = tree_.nodes()[right].holder[slice];
  const int64_t size = slice_size(static_cast<int>(slice));
  float* const own = left_holder == me ? climb.sums[left] : right_holder == me ? climb.sums[right] : nullptr;
  if (own == nullptr) return nullptr;
  if (node.holder[slice] != me) {
    sending_.push_back(group_.isend(node.holder[slice], distributed::bytes_of(own, size), tag_of(slice)));
    return nullptr;
  }
  float* other = left_holder == me ? climb.sums[right] : nullptr;
  if (left_holder != right_holder) {
    other = received_.get() + bounds_[slice];
    if (climb.message == nullptr) {
      climb.message = group_.irecv(left_holder == me ? right_holder : left_holder,
                                   distributed::bytes_of(other, size), tag_of(slice));
      return nullptr;
    }
    climb.message.reset();
  }
  kernels::accumulate(own, other, size);  // of two numbers the sum is the same in either order
  return own;
}

double DataParallel::norm(const float* own) const {
  const auto rank = static_cast<size_t>(group_.rank());
  std::vector<double> squares(pieces_.size() - 1);
  const int64_t first = slice_pieces_[rank], count = slice_pieces_[rank + 1] - first;
  const float* const sum = own - bounds_[rank];  // as if of all weights
  parallel_ranges(count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = first + begin; i < first + end; ++i) {
      const int64_t at = pieces_[static_cast<size_t>(i)], next = pieces_[static_cast<size_t>(i) + 1];
      squares[static_cast<size_t>(i)] = kernels::sum_of_squares(sum + at, next - at);
    }
  });
  distributed::all_gather(group_, std::as_writable_bytes(std::span(squares)),
                          in_bytes(slice_pieces_, sizeof(double)));
  double total = 0;
  for (const double part : squares) total += part;
  if (std::isfinite(total)) return std::sqrt(total);
  for (size_t i = 0; i < squares.size(); ++i) {
    if (std::isfinite(squares[i])) continue;
    const auto after = std::upper_bound(parameters_.begin(), parameters_.end(), pieces_[i],
                                        [](int64_t at, const Parameter& p) { return at < p.begin; });
    throw NumericError(concat("the gradient of ", std::prev(after)->name, " holds NaN or Inf"));
  }
  throw NumericError("the norm of the gradient is infinite");
}

void DataParallel::share_weights() {
  for (const auto& [name, view] : own_) view.set_grad({});
  for (Flat& flat : flats_) {
    if (flat != nullptr) spare_.push_back(std::move(flat));
  }
  next_node_ = 0;
  if (group_.size() == 1) return;
  Flat all = take_flat();
  float* at = all.get() + bounds_[static_cast<size_t>(group_.rank())];
  for (const auto& [name, view] : own_) {
    copy(at, view.data<float>(), view.numel());
    at += view.numel();
  }
  distributed::all_gather(group_, distributed::bytes_of(all.get(), weights_),
                          in_bytes(bounds_, sizeof(float)));
  for (const Parameter& p : parameters_) copy(p.tensor.data<float>(), all.get() + p.begin, p.tensor.numel());
  spare_.push_back(std::move(all));
}

}  // namespace multihead::train
