#include "multihead/train/parallel/context_parallel.h"

#include "multihead/core/error.h"
#include "multihead/distributed/local_group.h"
#include "multihead/ops/attention/ring/context_scope.h"

namespace multihead::train {

ContextParallel::ContextParallel(distributed::Group& group, Task& task,
                                 const std::vector<nn::NamedTensor>& parameters, int shards)
    : group_(group), task_(task), shards_(task.length(), shards), parameters_(parameters) {
  const int own = shards / group.size();
  for (int n = 0; own > 1 && n < own; ++n) {
    std::vector<nn::NamedTensor> gradients;
    twins_.push_back(task.twin(gradients));
    gradients_.push_back(std::move(gradients));
  }
}

void check_context(int64_t length, int64_t shards, int ranks) {
  const SequenceShards parts(length, static_cast<int>(shards));
  MH_CHECK(parts.chunks() >= shards, ValueError, "train: a context of ", length, " tokens has ",
           parts.chunks(), " blocks of ", parts.chunk(0).count(), " for ", shards, " --context-shards");
  try {
    distributed::check_hosted(static_cast<int>(shards), ranks);
  } catch (const ValueError& error) {
    throw ValueError(concat("train: --context-shards ", shards, ": ", error.what()));
  }
}

void ContextParallel::run(const std::function<void(int64_t part, Task& task)>& body) {
  distributed::run_hosted_group(group_, shards_.ranks(), [&](distributed::Group& parts) {
    const ContextScope scope(parts, shards_);
    const auto part = static_cast<size_t>(parts.rank());
    body(parts.rank(), twins_.empty() ? task_ : *twins_[part % twins_.size()]);
  });
}

void ContextParallel::take_gradients(int64_t part) {
  if (twins_.empty()) return;
  const std::vector<nn::NamedTensor>& from = gradients_[static_cast<size_t>(part) % twins_.size()];
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.set_grad(from[i].tensor.grad());
    from[i].tensor.set_grad({});
  }
}

}  // namespace multihead::train
