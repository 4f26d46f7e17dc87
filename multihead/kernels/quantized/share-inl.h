// Shared by the products of all packed formats: the epilogue and how work is split.
#pragma once

#include <algorithm>
#include <cstdint>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/quantized/packed_linear.h"

namespace multihead::kernels {

inline constexpr int64_t kReadRows = 16;      // rows that take as long as reading the weights from L3
inline constexpr int64_t kPackedFewRows = 6;  // read panels once: what is prefetched is the panel itself

/// The epilogue of a packed product, as one of gemm()'s.
inline GemmArgs<float> epilogue_of(const PackedLinearArgs& p) {
  GemmArgs<float> g;
  g.c = p.y;
  g.ldc = p.ldy;
  g.bias = p.bias;
  g.activation = p.activation;
  g.residual = p.residual;
  return g;
}

/// run(begin, end) for one run of the `panels` per thread; all in one call below `serial_flops`, where
/// starting threads costs more than it saves.
template <class Run>
void share_panels(const PackedLinearArgs& p, int64_t panels, int64_t serial_flops, const Run& run) {
  const bool serial = 2 * std::max(p.rows, kReadRows) * p.out * p.in < serial_flops;
  const int64_t tasks = serial ? 1 : std::min<int64_t>(panels, num_threads());
  if (tasks == 1) return run(0, panels);
  parallel_for(tasks, [&](int64_t task, int) { run(panels * task / tasks, panels * (task + 1) / tasks); });
}

/// run(begin, end) for parts of the rows, each begun at a multiple of `step`: what is done once to every
/// element of x before a product.
template <class Run>
void share_rows(const PackedLinearArgs& p, const Run& run, int64_t step = 1) {
  constexpr int64_t kSerialElements = 1 << 17;  // some 5 us
  const int64_t steps = (p.rows + step - 1) / step;
  const int64_t tasks = p.rows * p.in < kSerialElements ? 1 : std::min<int64_t>(steps, num_threads());
  if (tasks == 1) return run(0, p.rows);
  const auto begin = [&](int64_t task) { return std::min(steps * task / tasks * step, p.rows); };
  parallel_for(tasks, [&](int64_t task, int) { run(begin(task), begin(task + 1)); });
}

}  // namespace multihead::kernels
