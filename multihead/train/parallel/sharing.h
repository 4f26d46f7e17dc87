// Evaluations that ranks share.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/distributed/group.h"

namespace multihead::train {

/// Who takes part in an evaluation, and when it is given up.
struct Sharing {
  /// Polled between batches; once true, this rank's other batches are skipped and the result does not matter.
  std::function<bool()> should_stop = {};
  /// Ranks that measure a part of the batches each; all call with the same model and data, and all get the
  /// result, which does not depend on their number. Null: this process alone.
  distributed::Group* group = nullptr;
};

/// measure(i, numbers) for every batch i < `count`, each on one rank. Returns the `width` numbers of every
/// batch, in order; they are 0 where measure() has set nothing.
std::vector<double> measure_batches(const Sharing& sharing, int64_t count, int64_t width,
                                    FunctionRef<void(int64_t batch, std::span<double> numbers)> measure);

/// Whether `here` is true on any rank; all of them call.
bool on_any(distributed::Group* group, bool here);

}  // namespace multihead::train
