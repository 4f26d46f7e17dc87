// Packed bf16: by pairs where the CPU is fast at them, else widened on the way to f32 multiply-adds.
#include "multihead/kernels/matmul/packed_linear_bf16.h"

#include <algorithm>

#include "multihead/core/dtype.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/scratch-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/matmul/packed_linear_bf16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/kernels/matmul/engine_pairs-inl.h"
#include "multihead/kernels/matmul/pack-inl.h"
#include "multihead/kernels/matmul/packed_panel-inl.h"
#include "multihead/kernels/matmul/widened_tile-inl.h"

#ifndef MULTIHEAD_KERNELS_PACKED_LINEAR_BF16_ONCE
#define MULTIHEAD_KERNELS_PACKED_LINEAR_BF16_ONCE
namespace multihead::kernels::bf16 {
namespace {

constexpr int64_t kColumns = 64, kStep = 16;  // outputs of a panel, and what its width is a multiple of

thread_local Scratch rounded_rows;  // of x, in pairs

// Where an output stands.
struct Place {
  Place(int64_t row, int64_t out)
      : panel(row / kColumns * kColumns),
        width(std::min(kColumns, (out - panel + kStep - 1) / kStep * kStep)),
        column(row - panel) {}
  // Of value k among all the numbers of a weight with rows of `in`.
  int64_t index(int64_t k, int64_t in) const {
    return (in + 1) / 2 * 2 * panel + (k / 2 * width + column) * 2 + k % 2;
  }
  int64_t panel, width, column;
};

}  // namespace
}  // namespace multihead::kernels::bf16
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
static_assert(kPanelColumns == bf16::kColumns && kLanes == bf16::kStep, "one layout");

void MultiplyPairsPacked(const PackedLinearArgs& p) {
  const int64_t words = (p.in + 1) / 2, stride = words + kLanes;  // rows a power of two apart share sets
  float* rows = bf16::rounded_rows.get<float>(static_cast<size_t>(p.rows * stride));
  const auto round = [&](int64_t i) HWY_ATTR { CopyAlong<Pairs>(p.x + i * p.ldx, p.in, rows + i * stride); };
  if (p.rows <= kPackedFewRows) {
    for (int64_t i = 0; i < p.rows; ++i) round(i);
  } else {
    parallel_for(p.rows, [&](int64_t i, int) HWY_ATTR { round(i); });
  }
  MultiplyPacked<Pairs>(p, {rows, stride, words});
}
#else
void MultiplyPairsPacked(const PackedLinearArgs&) {}  // bf16_dots() is false
#endif

void MultiplyWidenedPacked(const PackedLinearArgs& p) {
  const int64_t panels = (p.out + bf16::kColumns - 1) / bf16::kColumns;
  const GemmArgs<float> g = epilogue_of(p);
  share_panels(p, panels, kPanelSerialFlops, [&](int64_t begin, int64_t end) {
    LateFinish finish({g});
    for (int64_t i = begin; i < end; ++i) {
      const bf16::Place panel(i * bf16::kColumns, p.out);
      const auto* words = static_cast<const BFloat16*>(p.packed) + panel.index(0, p.in);
      MultiplyWidenedPanel(p, words, panel.panel, panel.width);
      finish({0, p.rows, panel.panel, std::min(bf16::kColumns, p.out - panel.panel)});
    }
  });
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels::bf16 {

HWY_EXPORT(MultiplyPairsPacked);
HWY_EXPORT(MultiplyWidenedPacked);

int64_t packed_bytes(int64_t out, int64_t in) {
  return ((out + kStep - 1) / kStep * kStep * ((in + 1) / 2) * 4 + 63) / 64 * 64;
}

void pack(const float* weight, int64_t stride, int64_t out, int64_t in, void* packed) {
  auto* to = static_cast<BFloat16*>(packed);
  parallel_for((out + kColumns - 1) / kColumns, [&](int64_t i, int) {
    const Place panel(i * kColumns, out);
    for (int64_t column = 0; column < panel.width; ++column) {
      const int64_t row = panel.panel + column;
      const Place at(row, out);
      for (int64_t k = 0; k < (in + 1) / 2 * 2; ++k)
        to[at.index(k, in)] = BFloat16(row < out && k < in ? weight[row * stride + k] : 0.0f);
    }
  });
}

void unpack_row(const void* packed, int64_t row, int64_t out, int64_t in, float* to) {
  const auto* from = static_cast<const BFloat16*>(packed);
  const Place at(row, out);
  for (int64_t k = 0; k < in; ++k) to[k] = static_cast<float>(from[at.index(k, in)]);
}

void multiply(const PackedLinearArgs& args) {
  bf16_dots() && args.in > 0 ? HWY_DYNAMIC_DISPATCH(MultiplyPairsPacked)(args)
                             : HWY_DYNAMIC_DISPATCH(MultiplyWidenedPacked)(args);
}

}  // namespace multihead::kernels::bf16
#endif  // HWY_ONCE
