#include "multihead/train/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/distributed/collectives.h"
#include "multihead/kernels/elementwise/optimizer.h"
#include "multihead/train/parallel/bucket_sum-inl.h"

namespace multihead::train {
namespace {

// Slices are cut here, and squares are summed by piece, so that neither changes a bit of the other. Small
// enough for a test's model to have some for every rank; their squares are 1/128 of the gradient's bytes.
constexpr int64_t kPiece = 256;
constexpr int64_t kTags = 16384;

int64_t pieces_in(int64_t weights) { return (weights + kPiece - 1) / kPiece; }

void copy(float* to, const float* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// Half a megabyte travels in milliseconds and is still long beside a message's latency; every rank has four
// pieces or more of it, and all slices have tags of their own.
int64_t least_bucket(int64_t weights, int ranks) {
  if (ranks == 1) return 1;  // nothing travels, and nothing is copied
  return std::max({int64_t{1} << 17, 4 * kPiece * ranks, weights * ranks / (kTags / 2)});
}

}  // namespace

struct DataParallel::Bucket {
  std::vector<size_t> parameters;
  int64_t size;
  size_t first_own, end_own;  // in own_
  size_t missing;             // gradients of the shard that is computed
  BucketSum sum;
};

DataParallel::DataParallel(distributed::Group& group, const std::vector<nn::NamedTensor>& parameters,
                           int64_t shards, int64_t bucket)
    : group_(group), tree_(shards, group.size()), ranges_(static_cast<size_t>(group.size())) {
  for (const auto& [name, tensor] : parameters) {
    MH_CHECK(tensor.dtype() == Dtype::f32, DtypeError, "train: shards need f32 weights, ", name, " is ",
             tensor.dtype());
    parameter_of_[tensor.gradient_slot().get()] = parameters_.size();
    parameters_.push_back({name, tensor, pieces_});
    weights_ += tensor.numel();
    pieces_ += pieces_in(tensor.numel());
  }
  shard_ = first_shard();
  cut(bucket > 0 ? bucket : least_bucket(weights_, group.size()));
}

DataParallel::~DataParallel() = default;

// From the end, where the backward begins.
void DataParallel::cut(int64_t least) {
  std::vector<size_t> small;
  int64_t size = 0;
  for (size_t i = parameters_.size(); i-- > 0;) {
    const int64_t count = parameters_[i].tensor.numel();
    if (count >= least) {
      add_bucket({i});
      continue;
    }
    small.push_back(i);
    size += count;
    if (size < least) continue;
    add_bucket(std::exchange(small, {}));
    size = 0;
  }
  if (!small.empty()) add_bucket(small);
  for (const std::vector<Range>& ranges : ranges_) {
    MH_CHECK(!ranges.empty(), ValueError, "train: a model of ", weights_, " weights is too small for ",
             group_.size(), " ranks");
  }
}

// Slices of about the same size, whole pieces each.
void DataParallel::add_bucket(const std::vector<size_t>& members) {
  std::vector<int64_t> pieces;
  int64_t size = 0;
  for (const size_t member : members) {
    const int64_t count = parameters_[member].tensor.numel();
    for (int64_t at = 0; at < count; at += kPiece) pieces.push_back(size + at);
    parameters_[member].bucket = buckets_.size();
    size += count;
  }
  pieces.push_back(size);
  std::vector<int64_t> bounds;
  for (int rank = 0; rank <= group_.size(); ++rank) {
    const int64_t target = distributed::share_begin(size, group_.size(), rank);
    bounds.push_back(*std::lower_bound(pieces.begin(), pieces.end(), target));
  }
  const size_t first_own = own_.size();
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t begin = bounds[static_cast<size_t>(rank)], end = bounds[static_cast<size_t>(rank) + 1];
    for (int64_t at = 0; const size_t member : members) {
      const auto& [name, tensor, piece, bucket] = parameters_[member];
      const int64_t from = std::max(begin - at, int64_t{0}), to = std::min(end - at, tensor.numel());
      at += tensor.numel();
      if (from >= to) continue;
      ranges_[static_cast<size_t>(rank)].push_back({member, from, to});
      if (rank != group_.rank()) continue;
      // Whether weights decay depends on the rank of their tensor.
      const bool is_matrix = tensor.rank() >= 2;
      Tensor view = tensor.as_strided(is_matrix ? Shape{1, to - from} : Shape{to - from},
                                      is_matrix ? Shape{to - from, 1} : Shape{1}, from);
      view.set_requires_grad();
      own_.push_back({name, view});
    }
  }
  const auto first_slice = static_cast<int64_t>(buckets_.size()) * group_.size();
  const int first_tag = 1 + static_cast<int>(first_slice % kTags);
  buckets_.push_back(std::make_unique<Bucket>(Bucket{members, size, first_own, own_.size(), members.size(),
                                                     BucketSum(group_, tree_, bounds, first_tag)}));
}

optim::ParameterList DataParallel::all_parameters() const {
  std::vector<nn::NamedTensor> all;
  for (const Parameter& p : parameters_) all.push_back({p.name, p.tensor});
  return all;
}

void DataParallel::take(const GradientSlot& leaf) {
  const auto found = parameter_of_.find(&leaf);
  if (found == parameter_of_.end()) return;
  Bucket& bucket = *buckets_[parameters_[found->second].bucket];
  if (--bucket.missing == 0) fill(bucket);
  for (const auto& other : buckets_) other->sum.advance();
}

void DataParallel::add(int64_t shard) {
  MH_CHECK(shard == shard_, ValueError, "train: shard ", shard, " comes before shard ", shard_);
  for (const auto& bucket : buckets_) {
    if (bucket->missing > 0) fill(*bucket);
    bucket->missing = bucket->parameters.size();
  }
  ++shard_;
}

Tensor DataParallel::take_gradient(size_t parameter) {
  const Tensor& tensor = parameters_[parameter].tensor;
  Tensor gradient = tensor.grad();
  tensor.set_grad({});
  // Undefined: no token of this shard reaches it.
  return gradient.defined() ? gradient.contiguous() : Tensor::zeros(tensor.shape());
}

void DataParallel::fill(Bucket& bucket) {
  bucket.missing = 0;
  Tensor gradient;
  if (bucket.parameters.size() == 1) {
    gradient = take_gradient(bucket.parameters[0]);
  } else {
    gradient = Tensor::empty({bucket.size});
    float* to = gradient.data<float>();
    for (const size_t parameter : bucket.parameters) {
      const Tensor part = take_gradient(parameter);
      copy(to, part.data<float>(), part.numel());
      to += part.numel();
    }
  }
  bucket.sum.add(shard_, std::move(gradient));
}

void DataParallel::finish() {
  // All buckets side by side; once nothing moves, until the first of them does.
  for (BucketSum* waiting = nullptr;; waiting->wait(), waiting = nullptr) {
    for (const auto& bucket : buckets_) {
      if (!bucket->sum.advance() && waiting == nullptr) waiting = &bucket->sum;
    }
    if (waiting == nullptr) return;
  }
}

double DataParallel::reduce() {
  finish();
  for (const auto& bucket : buckets_) {
    int64_t at = 0;
    for (size_t i = bucket->first_own; i < bucket->end_own; ++i) {
      const Tensor& view = own_[i].tensor;
      view.set_grad(bucket->sum.slice().as_strided(view.shape(), view.strides(), at));
      at += view.numel();
    }
  }
  return norm();
}

// Begins of every rank's slices, one rank after the other, and their end, in units that begin with each
// slice.
std::vector<int64_t> DataParallel::packed_bounds(int64_t unit) const {
  std::vector<int64_t> bounds = {0};
  for (const std::vector<Range>& ranges : ranges_) {
    bounds.push_back(bounds.back());
    for (const Range& range : ranges) bounds.back() += (range.size() + unit - 1) / unit;
  }
  return bounds;
}

// The squares of all pieces, in the order of the parameters.
std::vector<double> DataParallel::gather_squares() const {
  const std::vector<int64_t> bounds = packed_bounds(kPiece);
  std::vector<double> packed(static_cast<size_t>(pieces_)), squares(packed.size());
  double* own = packed.data() + bounds[static_cast<size_t>(group_.rank())];
  for (const auto& [name, view] : own_) {
    const Tensor gradient = view.grad();
    const float* const from = gradient.data<float>();
    const int64_t size = view.numel(), count = pieces_in(size);
    parallel_ranges(count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        own[i] = kernels::sum_of_squares(from + i * kPiece, std::min(kPiece, size - i * kPiece));
      }
    });
    own += count;
  }
  distributed::all_gather(group_, std::span(packed),
                          [&](int rank) { return bounds[static_cast<size_t>(rank)]; });
  const double* from = packed.data();
  for (const std::vector<Range>& ranges : ranges_) {
    for (const Range& range : ranges) {
      const int64_t count = pieces_in(range.size());
      const int64_t at = parameters_[range.parameter].first_piece + range.begin / kPiece;
      std::copy_n(from, count, squares.data() + at);
      from += count;
    }
  }
  return squares;
}

double DataParallel::norm() const {
  const std::vector<double> squares = gather_squares();
  double total = 0;
  for (const double part : squares) total += part;
  if (std::isfinite(total)) return std::sqrt(total);
  for (size_t i = 0; i < squares.size(); ++i) {
    if (std::isfinite(squares[i])) continue;
    const auto after =
        std::upper_bound(parameters_.begin(), parameters_.end(), static_cast<int64_t>(i),
                         [](int64_t piece, const Parameter& p) { return piece < p.first_piece; });
    throw NumericError(concat("the gradient of ", std::prev(after)->name, " holds NaN or Inf"));
  }
  throw NumericError("the norm of the gradient is infinite");
}

void DataParallel::share_weights() {
  for (const auto& [name, view] : own_) view.set_grad({});
  for (const auto& bucket : buckets_) bucket->sum.clear();
  shard_ = first_shard();
  if (group_.size() == 1) return;
  const Tensor all = Tensor::empty({weights_});
  const std::vector<int64_t> bounds = packed_bounds();
  float* own = all.data<float>() + bounds[static_cast<size_t>(group_.rank())];
  for (const auto& [name, view] : own_) {
    copy(own, view.data<float>(), view.numel());
    own += view.numel();
  }
  distributed::all_gather(group_, all.span<float>(),
                          [&](int rank) { return bounds[static_cast<size_t>(rank)]; });
  const float* from = all.data<float>();
  for (const std::vector<Range>& ranges : ranges_) {
    for (const Range& range : ranges) {
      copy(parameters_[range.parameter].tensor.data<float>() + range.begin, from, range.size());
      from += range.size();
    }
  }
}

}  // namespace multihead::train
