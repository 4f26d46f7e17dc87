// Data parallelism whose weights do not depend on the number of ranks: the shards of a step are added in one
// order (ShardTree), and every rank updates its own slice of the weights (ZeRO-1).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "multihead/core/tensor.h"
#include "multihead/distributed/group.h"
#include "multihead/nn/module.h"
#include "multihead/optim/optimizer.h"
#include "multihead/train/shard_tree.h"

namespace multihead::train {

/// The gradients of one group of ranks, and the slices of the weights that they update.
///
/// Memory of a rank, in floats per weight: weights and gradients 1 + 1, sums of shards 1 + ⌈log2 S/R⌉, what
/// arrives 1; of the optimiser's state 1/R.
class DataParallel {
 public:
  /// All outlive this. Throws ValueError (more ranks than shards, or than the model can be cut into),
  /// DtypeError unless the parameters are f32.
  DataParallel(distributed::Group& group, const std::vector<nn::NamedTensor>& parameters, int64_t shards);
  ~DataParallel();

  distributed::Group& group() const { return group_; }
  bool leads() const { return group_.rank() == 0; }
  const ShardTree& tree() const { return tree_; }
  int64_t first_shard() const { return tree_.first_shard(group_.rank()); }
  int64_t end_shard() const { return tree_.first_shard(group_.rank() + 1); }
  optim::ParameterList all_parameters() const;
  /// This rank's slice: views of the parameters, by their names, for its optimiser.
  const std::vector<nn::NamedTensor>& own_parameters() const { return own_; }

  /// Takes the gradients of one shard from the parameters; own shards in ascending order.
  void add(int64_t shard);
  /// After the last: adds what the other ranks have, and sets the gradients of own_parameters(). Returns the
  /// norm of the whole gradient. Throws NumericError naming a parameter whose gradient holds NaN or Inf.
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
    int64_t begin;  // in the flat order of all weights
  };
  using Flat = std::unique_ptr<float[]>;
  // Where one slice of the sum is on its way up the tree.
  struct Climb {
    size_t node = 0;                  // the next one
    std::vector<float*> sums;         // by node; null: not here
    distributed::MessagePtr message;  // what the node waits for
  };

  void cut(const std::vector<nn::NamedTensor>& parameters);
  Flat take_flat();
  void add_local(int node);
  bool advance(size_t slice);
  float* step_up(size_t slice, size_t node);
  double norm(const float* own) const;
  int64_t slice_size(int rank) const;

  distributed::Group& group_;
  ShardTree tree_;
  std::vector<Parameter> parameters_;
  int64_t weights_ = 0;
  std::vector<int64_t> pieces_;        // begins of pieces in the flat order, and the end
  std::vector<int64_t> slice_pieces_;  // begins of the ranks' slices in pieces_, and the end
  std::vector<int64_t> bounds_;        // the same in floats
  std::vector<nn::NamedTensor> own_;
  std::vector<Flat> flats_;  // by node: sums of own shards
  size_t next_node_ = 0;
  std::vector<Climb> climbs_;  // by slice
  std::vector<distributed::MessagePtr> sending_;
  Flat received_;
  std::vector<Flat> spare_;
};

}  // namespace multihead::train
