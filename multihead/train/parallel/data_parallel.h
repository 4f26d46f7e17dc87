// Data parallelism whose weights do not depend on the number of ranks: the shards of a step are added in one
// order (ShardTree), and every rank sums and updates its own slices (ZeRO-2).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/distributed/group.h"
#include "multihead/nn/module.h"
#include "multihead/optim/optimizer.h"
#include "multihead/train/parallel/shard_tree.h"

namespace multihead::train {

class BucketSum;

/// The leader's weights on every rank.
void broadcast_weights(distributed::Group& group, const std::vector<nn::NamedTensor>& weights);

/// The gradients of one group of ranks, and the slices of the weights that they update.
///
/// Gradients travel in buckets, each cut into one slice per rank: a large parameter is a bucket of its own
/// and is not copied, small ones share some. With take() the buckets of the last shard leave during its
/// backward.
///
/// Memory of a rank, in floats per weight: weights 1, gradients 1 + ⌈log2 S/R⌉ during the backward and 1/R
/// after it, what arrives 1/2; of the optimiser's state 1/R.
class DataParallel {
 public:
  /// All outlive this. `bucket`: least weights of one; 0: chosen. Throws ValueError (more ranks than shards,
  /// or than the model can be cut into), DtypeError unless the parameters are f32.
  DataParallel(distributed::Group& group, const std::vector<nn::NamedTensor>& parameters, int64_t shards,
               int64_t bucket = 0);
  ~DataParallel();

  distributed::Group& group() const { return group_; }
  bool leads() const { return group_.rank() == 0; }
  const ShardTree& tree() const { return tree_; }
  int64_t first_shard() const { return tree_.first_shard(group_.rank()); }
  int64_t end_shard() const { return tree_.first_shard(group_.rank() + 1); }
  optim::ParameterList all_parameters() const;
  /// This rank's slices: views of the parameters, by their names, for its optimiser.
  const std::vector<nn::NamedTensor>& own_parameters() const { return own_; }

  /// For Tape::backward(): the gradient of this leaf is complete for the shard that is computed. Leaves of
  /// others are ignored.
  void take(const GradientSlot& leaf);
  /// The shard's backward has ended: takes what gradients are left. Own shards in ascending order.
  void add(int64_t shard);
  /// After the last: returns once this rank's slices are there. All ranks call it before anything else that
  /// they do together.
  void finish();
  /// finish(), and sets the gradients of own_parameters(). Returns the norm of the whole gradient. Throws
  /// NumericError naming a parameter whose gradient holds NaN or Inf.
  double reduce();
  /// After the optimiser's step: every rank gets all slices of the weights.
  void share_weights();

  /// The leader's weights on every rank.
  void broadcast_weights();
  /// The optimiser's whole state, of full shapes, at the leader; elsewhere nothing. All ranks call it.
  optim::StateMap gather_state(const optim::Optimizer& optimizer) const;
  /// The reverse: each rank's optimiser gets its slice of what the leader gives. Throws FormatError if it
  /// belongs to other parameters.
  void scatter_state(const optim::StateMap& whole, optim::Optimizer& optimizer) const;

 private:
  struct Parameter {
    std::string name;
    Tensor tensor;
    int64_t first_piece;  // among those of all parameters
    size_t bucket = 0;
  };
  // A part of a parameter, counted in weights.
  struct Range {
    size_t parameter;
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  struct Bucket;

  void cut(int64_t least);
  void add_bucket(const std::vector<size_t>& members);
  void fill(Bucket& bucket);
  Tensor take_gradient(size_t parameter);
  double norm() const;
  std::vector<int64_t> packed_bounds(int64_t unit = 1) const;
  std::vector<double> gather_squares() const;
  void check_state(const optim::StateMap& whole, const std::set<std::string>& moments) const;

  distributed::Group& group_;
  ShardTree tree_;
  std::vector<Parameter> parameters_;
  std::unordered_map<const GradientSlot*, size_t> parameter_of_;
  int64_t weights_ = 0, pieces_ = 0;
  std::vector<std::vector<Range>> ranges_;  // by rank: its slices of all buckets, one after the other
  std::vector<nn::NamedTensor> own_;        // its slices
  std::vector<std::unique_ptr<Bucket>> buckets_;
  int64_t shard_ = 0;  // that is computed
};

}  // namespace multihead::train
