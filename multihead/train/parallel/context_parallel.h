// Micro-batches whose sequences are cut over ranks, so that none has to hold a whole one.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "multihead/distributed/group.h"
#include "multihead/nn/module.h"
#include "multihead/ops/attention/ring/shards.h"
#include "multihead/train/loop.h"

namespace multihead::train {

/// The positions of the task's sequences in `shards` parts, of which every rank has as many. A part
/// computes what is its own's; keys and values travel (ring_attention). Which positions a part has, and so
/// each bit of its gradient, depends on the length and `shards` alone; the parts' gradients are terms of the
/// step's tree. A rank with several parts runs them in turns, each with gradients of its own.
class ContextParallel {
 public:
  /// All outlive this. The sizes have passed check_context().
  ContextParallel(distributed::Group& group, Task& task, const std::vector<nn::NamedTensor>& parameters,
                  int shards);

  /// Calls body(part, task) for each of this rank's parts, where the part's positions are those of a
  /// ContextScope.
  void run(const std::function<void(int64_t part, Task& task)>& body);
  /// Puts the gradients of a part into the parameters.
  void take_gradients(int64_t part);

 private:
  distributed::Group& group_;
  Task& task_;
  SequenceShards shards_;
  std::vector<nn::NamedTensor> parameters_;
  std::vector<std::unique_ptr<Task>> twins_;  // if there are several parts
  std::vector<std::vector<nn::NamedTensor>> gradients_;
};

/// Throws ValueError unless the ranks have equally many parts of a sequence, and each part a block of it.
void check_context(int64_t length, int64_t shards, int ranks);

}  // namespace multihead::train
