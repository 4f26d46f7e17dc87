// The gradient splits columns over the threads: each walks all ids in order, so that equal ids never meet in
// two threads and every element has one order of addition. No sorting, no scratch.
#include "multihead/kernels/elementwise/embedding.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/embedding.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Columns [begin, end) of the sum.
void ScatterColumns(const float* d_out, float* d_table, const ScatterArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < a.count; ++row) {
    const float* from = d_out + row * a.size + begin;
    float* to = d_table + a.ids[row] * a.size + begin;
    ForPacks(end - begin,
             [&](int64_t i, auto at) HWY_ATTR { at.Store(Add(at.Load(to + i), at.Load(from + i)), to + i); });
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrainBytes = 32768;
constexpr int64_t kLine = 16;  // columns of one cache line: the least a thread takes

HWY_EXPORT(ScatterColumns);

void scatter_columns(const double* d_out, double* d_table, const ScatterArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < a.count; ++row) {
    for (int64_t i = begin; i < end; ++i) d_table[a.ids[row] * a.size + i] += d_out[row * a.size + i];
  }
}

template <class T, class Columns>
void scatter(const T* d_out, T* d_table, const ScatterArgs& a, Columns columns) {
  parallel_ranges(a.table_rows * a.size, kGrainBytes / static_cast<int64_t>(sizeof(T)),
                  [&](int64_t begin, int64_t end) { std::fill(d_table + begin, d_table + end, T{0}); });
  const int64_t lines = (a.size + kLine - 1) / kLine;
  const int64_t tasks = a.count * a.size < 4096 ? 1 : std::min<int64_t>(lines, num_threads());
  parallel_for(tasks, [&](int64_t task, int) {
    const int64_t begin = lines * task / tasks * kLine, end = lines * (task + 1) / tasks * kLine;
    columns(d_out, d_table, a, begin, std::min(end, a.size));
  });
}

}  // namespace

void gather_rows(const void* table, const int64_t* ids, void* out, int64_t count, size_t row_bytes) {
  const int64_t grain = kGrainBytes / static_cast<int64_t>(std::max<size_t>(row_bytes, 1));
  parallel_ranges(count, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<char*>(out) + static_cast<size_t>(i) * row_bytes,
                  static_cast<const char*>(table) + static_cast<size_t>(ids[i]) * row_bytes, row_bytes);
    }
  });
}

void scatter_add_rows(const float* d_out, float* d_table, const ScatterArgs& args) {
  scatter(d_out, d_table, args, HWY_DYNAMIC_DISPATCH(ScatterColumns));
}
void scatter_add_rows(const double* d_out, double* d_table, const ScatterArgs& args) {
  scatter(d_out, d_table, args, scatter_columns);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
