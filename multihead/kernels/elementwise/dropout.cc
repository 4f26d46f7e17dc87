// Random bits are drawn 128 elements at a time (16 Philox blocks side by side) and used at once.
#include "multihead/kernels/elementwise/dropout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/dropout.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/parallel.h"
#include "multihead/kernels/simd/philox-inl.h"

#ifndef MULTIHEAD_KERNELS_DROPOUT_ONCE
#define MULTIHEAD_KERNELS_DROPOUT_ONCE
namespace multihead::kernels {

constexpr int64_t kGroup = 128;  // elements that share 16 blocks

struct DropoutRange {
  const float* x;
  const float* residual;
  float* y;
  RandomStream stream;
  uint32_t threshold;
  float scale;
  int64_t first_group;
};

}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
template <bool kResidual>
HWY_INLINE void KeepLanes(const DropoutRange& r, int64_t at, WordVec bits) {
  const Words du;
  const hn::RebindToFloat<Words> d;
  // 16-bit numbers compare the same as signed integers, which every target has.
  const hn::RebindToSigned<Words> di;
  const auto dropped = hn::Lt(hn::BitCast(di, bits), hn::BitCast(di, hn::Set(du, r.threshold)));
  auto v = hn::Mul(hn::LoadU(d, r.x + at), hn::Set(d, r.scale));
  v = hn::IfThenZeroElse(hn::RebindMask(d, dropped), v);
  if constexpr (kResidual) v = hn::Add(v, hn::LoadU(d, r.residual + at));
  hn::StoreU(v, d, r.y + at);
}

template <bool kResidual>
HWY_INLINE void KeepWord(const DropoutRange& r, int64_t at, WordVec word) {
  const Words d;
  KeepLanes<kResidual>(r, at, hn::And(word, hn::Set(d, 0xFFFFu)));
  KeepLanes<kResidual>(r, at + 16, hn::ShiftRight<16>(word));
}

template <bool kResidual>
void DropoutGroups(const DropoutRange& r, int64_t begin, int64_t end) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Words()));
  for (int64_t group = begin; group < end; ++group) {
    for (int64_t lane = 0; lane < 16; lane += lanes) {
      const PhiloxBlocks b = Philox(r.stream, static_cast<uint64_t>((r.first_group + group) * 16 + lane));
      const int64_t at = group * kGroup + lane;
      KeepWord<kResidual>(r, at, b.w0);
      KeepWord<kResidual>(r, at + 32, b.w1);
      KeepWord<kResidual>(r, at + 64, b.w2);
      KeepWord<kResidual>(r, at + 96, b.w3);
    }
  }
}
#else
template <bool kResidual>
void DropoutGroups(const DropoutRange& r, int64_t begin, int64_t end) {
  for (int64_t i = begin * kGroup; i < end * kGroup; ++i) {
    const float v =
        dropout_keeps(r.stream, r.threshold / 65536.0, r.first_group * kGroup + i) ? r.x[i] * r.scale : 0.0f;
    r.y[i] = kResidual ? v + r.residual[i] : v;
  }
}
#endif

void DropoutRun(const DropoutRange& r, int64_t begin, int64_t end) {
  r.residual != nullptr ? DropoutGroups<true>(r, begin, end) : DropoutGroups<false>(r, begin, end);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 32;  // groups

HWY_EXPORT(DropoutRun);

// 1/(1-p); nothing is kept at p = 1.
double keep_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

template <class T>
void dropout_plain(const T* x, const T* residual, T* y, int64_t begin, int64_t end, const DropoutMask& mask) {
  const T scale = static_cast<T>(keep_scale(mask.p));
  for (int64_t i = begin; i < end; ++i) {
    const T v = dropout_keeps(mask.stream, mask.p, mask.first + i) ? x[i] * scale : T{0};
    y[i] = residual != nullptr ? v + residual[i] : v;
  }
}

}  // namespace

void dropout(const float* x, const float* residual, float* y, int64_t count, const DropoutMask& mask) {
  const DropoutRange range{x,
                           residual,
                           y,
                           mask.stream,
                           dropout_threshold(mask.p),
                           static_cast<float>(keep_scale(mask.p)),
                           mask.first / kGroup};
  const auto run = HWY_DYNAMIC_DISPATCH(DropoutRun);
  const int64_t groups = count / kGroup;
  parallel_ranges(groups, kGrain, [&](int64_t begin, int64_t end) { run(range, begin, end); });
  dropout_plain(x, residual, y, groups * kGroup, count, mask);
}

void dropout(const double* x, const double* residual, double* y, int64_t count, const DropoutMask& mask) {
  dropout_plain(x, residual, y, 0, count, mask);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
