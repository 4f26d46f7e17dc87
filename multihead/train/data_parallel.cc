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

std::span<std::byte> bytes_of(float* data, int64_t count) {
  return std::as_writable_bytes(std::span(data, static_cast<size_t>(count)));
}

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
    : group_(group), tree_(shards, group.size()), sums_(tree_.nodes().size()) {
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
  Sum& leaf = sums_[next_node_];
  leaf.flat = take_flat();
  for (const Parameter& p : parameters_) {
    const Tensor gradient = p.tensor.grad();
    float* const to = leaf.flat.get() + p.begin;
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
  Sum &left = sum_of(n.left), &right = sum_of(n.right);
  kernels::accumulate(left.flat.get(), right.flat.get(), weights_);
  spare_.push_back(std::move(right.flat));
  sum_of(node).flat = std::move(left.flat);
}

double DataParallel::reduce() {
  const std::vector<ShardTree::Node>& nodes = tree_.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (sums_[i].flat == nullptr) continue;
    sums_[i].slices.clear();
    for (int rank = 0; rank < group_.size(); ++rank) {
      sums_[i].slices.push_back(sums_[i].flat.get() + bounds_[static_cast<size_t>(rank)]);
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ShardTree::Node& node = nodes[i];
    if (!node.is_local() && node.first_rank <= group_.rank() && node.last_rank >= group_.rank()) {
      exchange(static_cast<int>(i));
    }
  }
  float* const sum = sums_.back().slices[static_cast<size_t>(group_.rank())];
  for (int64_t at = 0; const auto& [name, view] : own_) {
    view.set_grad(Tensor::borrow(sum + at, view.shape(), view.strides(), Dtype::f32));
    at += view.numel();
  }
  for (const distributed::MessagePtr& message : sending_) message->wait();
  sending_.clear();
  return norm();
}

// The slices of a node from those of its children, one of which may lie on another rank.
void DataParallel::exchange(int index) {
  const ShardTree::Node& node = tree_.nodes()[static_cast<size_t>(index)];
  const std::vector<int>&left = tree_.nodes()[static_cast<size_t>(node.left)].holder,
        &right = tree_.nodes()[static_cast<size_t>(node.right)].holder;
  const int me = group_.rank();
  Sum& sum = sum_of(index);
  sum.slices.assign(node.holder.size(), nullptr);
  struct Arrival {
    size_t slice;
    float* data;
    distributed::MessagePtr message;
  };
  std::vector<Arrival> arrivals;
  int64_t expected = 0;
  for (size_t k = 0; k < node.holder.size(); ++k) {
    const bool comes = node.holder[k] == me && (left[k] != me || right[k] != me);
    if (comes) expected += slice_size(static_cast<int>(k));
  }
  if (expected > received_size_) {
    received_.reset(new float[static_cast<size_t>(expected)]);
    received_size_ = expected;
  }
  float* free_space = received_.get();
  for (size_t k = 0; k < node.holder.size(); ++k) {
    const int64_t size = slice_size(static_cast<int>(k));
    if (node.holder[k] != me) continue;
    float *const ours = left[k] == me ? sum_of(node.left).slices[k] : nullptr,
                 *const others = right[k] == me ? sum_of(node.right).slices[k] : nullptr;
    sum.slices[k] = ours != nullptr ? ours : others;
    if (ours != nullptr && others != nullptr) {
      kernels::accumulate(ours, others, size);
      continue;
    }
    const int from = ours != nullptr ? right[k] : left[k];
    arrivals.push_back({k, free_space, group_.irecv(from, bytes_of(free_space, size), tag_of(k))});
    free_space += size;
  }
  for (size_t k = 0; k < node.holder.size(); ++k) {
    if (node.holder[k] == me) continue;
    for (const int child : {node.left, node.right}) {
      if (tree_.nodes()[static_cast<size_t>(child)].holder[k] != me) continue;
      const int64_t size = slice_size(static_cast<int>(k));
      sending_.push_back(group_.isend(node.holder[k], bytes_of(sum_of(child).slices[k], size), tag_of(k)));
    }
  }
  // Of two numbers the sum is the same in either order.
  for (const Arrival& arrival : arrivals) {
    arrival.message->wait();
    kernels::accumulate(sum.slices[arrival.slice], arrival.data, slice_size(static_cast<int>(arrival.slice)));
  }
}

double DataParallel::norm() const {
  const auto rank = static_cast<size_t>(group_.rank());
  std::vector<double> squares(pieces_.size() - 1);
  const int64_t first = slice_pieces_[rank], count = slice_pieces_[rank + 1] - first;
  const float* const sum = sums_.back().slices[rank] - bounds_[rank];  // as if of all weights
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
  for (Sum& sum : sums_) {
    if (sum.flat != nullptr) spare_.push_back(std::move(sum.flat));
    sum.flat = nullptr;
    sum.slices.clear();
  }
  next_node_ = 0;
  if (group_.size() == 1) return;
  Flat all = take_flat();
  float* at = all.get() + bounds_[static_cast<size_t>(group_.rank())];
  for (const auto& [name, view] : own_) {
    copy(at, view.data<float>(), view.numel());
    at += view.numel();
  }
  distributed::all_gather(group_, bytes_of(all.get(), weights_), in_bytes(bounds_, sizeof(float)));
  for (const Parameter& p : parameters_) copy(p.tensor.data<float>(), all.get() + p.begin, p.tensor.numel());
  spare_.push_back(std::move(all));
}

}  // namespace multihead::train
