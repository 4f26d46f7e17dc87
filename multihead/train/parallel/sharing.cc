#include "multihead/train/parallel/sharing.h"

#include <algorithm>

#include "multihead/distributed/collectives.h"

namespace multihead::train {

std::vector<double> measure_batches(const Sharing& sharing, int64_t count, int64_t width,
                                    FunctionRef<void(int64_t batch, std::span<double> numbers)> measure) {
  const std::unique_ptr<distributed::Group> alone = distributed::single();
  distributed::Group& group = sharing.group != nullptr ? *sharing.group : *alone;
  const int ranks = group.size(), rank = group.rank();
  std::vector<double> all(static_cast<size_t>(count * width));
  const auto begin = [&](int of) { return distributed::share_begin(count, ranks, of); };
  for (int64_t i = begin(rank); i < begin(rank + 1); ++i) {
    if (sharing.should_stop && sharing.should_stop()) break;
    measure(i, std::span(all).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width)));
  }
  distributed::all_gather(group, std::span(all), [&](int of) { return begin(of) * width; });
  return all;
}

bool on_any(distributed::Group* group, bool here) {
  const std::vector<double> all = measure_batches({.group = group}, group != nullptr ? group->size() : 1, 1,
                                                  [&](int64_t, std::span<double> own) { own[0] = here; });
  return std::any_of(all.begin(), all.end(), [](double there) { return there != 0; });
}

}  // namespace multihead::train
