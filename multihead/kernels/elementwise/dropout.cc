// Random bits are drawn 128 elements at a time (16 Philox blocks side by side) and used at once.
#include "multihead/kernels/elementwise/dropout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/elementwise/dropout.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/simd/bf16-inl.h"
#include "multihead/kernels/simd/philox-inl.h"

#ifndef MULTIHEAD_KERNELS_DROPOUT_ONCE
#define MULTIHEAD_KERNELS_DROPOUT_ONCE
namespace multihead::kernels {

constexpr int64_t kGroup = 128;  // elements that share 16 blocks

template <class From, class To>
struct DropoutRange {
  const From* x;
  const To* residual;
  To* y;
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
template <bool kResidual, class From, class To>
HWY_INLINE void KeepLanes(const DropoutRange<From, To>& r, int64_t at, WordVec bits) {
  const Words du;
  const hn::RebindToFloat<Words> d;
  // 16-bit numbers compare the same as signed integers, which every target has.
  const hn::RebindToSigned<Words> di;
  const auto dropped = hn::Lt(hn::BitCast(di, bits), hn::BitCast(di, hn::Set(du, r.threshold)));
  auto v = hn::Mul(LoadVector(d, r.x + at), hn::Set(d, r.scale));
  v = hn::IfThenZeroElse(hn::RebindMask(d, dropped), v);
  if constexpr (kResidual) v = hn::Add(v, LoadVector(d, r.residual + at));
  StoreVector(v, d, r.y + at);
}

template <bool kResidual, class From, class To>
HWY_INLINE void KeepWord(const DropoutRange<From, To>& r, int64_t at, WordVec word) {
  const Words d;
  KeepLanes<kResidual>(r, at, hn::And(word, hn::Set(d, 0xFFFFu)));
  KeepLanes<kResidual>(r, at + 16, hn::ShiftRight<16>(word));
}

template <bool kResidual, class From, class To>
void DropoutGroups(const DropoutRange<From, To>& r, int64_t begin, int64_t end) {
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
template <bool kResidual, class From, class To>
void DropoutGroups(const DropoutRange<From, To>& r, int64_t begin, int64_t end) {
  for (int64_t i = begin * kGroup; i < end * kGroup; ++i) {
    const bool keeps = dropout_keeps(r.stream, r.threshold / 65536.0, r.first_group * kGroup + i);
    const float v = keeps ? static_cast<float>(r.x[i]) * r.scale : 0.0f;
    r.y[i] = static_cast<To>(kResidual ? v + static_cast<float>(r.residual[i]) : v);
  }
}
#endif

void DropoutRun(const DropoutRange<float, float>& r, int64_t begin, int64_t end) {
  r.residual != nullptr ? DropoutGroups<true>(r, begin, end) : DropoutGroups<false>(r, begin, end);
}
void DropoutJoin16(const DropoutRange<BFloat16, float>& r, int64_t begin, int64_t end) {
  DropoutGroups<true>(r, begin, end);
}
void DropoutRun16(const DropoutRange<BFloat16, BFloat16>& r, int64_t begin, int64_t end) {
  DropoutGroups<false>(r, begin, end);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

constexpr int64_t kGrain = 32;  // groups

HWY_EXPORT(DropoutRun);
HWY_EXPORT(DropoutJoin16);
HWY_EXPORT(DropoutRun16);

// 1/(1-p); nothing is kept at p = 1.
double keep_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

template <class T, class From, class To>
void dropout_plain(const From* x, const To* residual, To* y, int64_t begin, int64_t end,
                   const DropoutMask& mask) {
  const T scale = static_cast<T>(keep_scale(mask.p));
  for (int64_t i = begin; i < end; ++i) {
    const T v = dropout_keeps(mask.stream, mask.p, mask.first + i) ? static_cast<T>(x[i]) * scale : T{0};
    y[i] = static_cast<To>(residual != nullptr ? v + static_cast<T>(residual[i]) : v);
  }
}

// run(range, begin, end) on whole groups.
template <class From, class To, class Run>
void dropout_groups(const DropoutRange<From, To>& range, int64_t count, const DropoutMask& mask, Run run) {
  const int64_t groups = count / kGroup;
  parallel_ranges(groups, kGrain, [&](int64_t begin, int64_t end) { run(range, begin, end); });
  dropout_plain<float>(range.x, range.residual, range.y, groups * kGroup, count, mask);
}

template <class From, class To>
DropoutRange<From, To> range_of(const From* x, const To* residual, To* y, const DropoutMask& mask) {
  return {x,
          residual,
          y,
          mask.stream,
          dropout_threshold(mask.p),
          static_cast<float>(keep_scale(mask.p)),
          mask.first / kGroup};
}

}  // namespace

void dropout(const float* x, const float* residual, float* y, int64_t count, const DropoutMask& mask) {
  dropout_groups(range_of(x, residual, y, mask), count, mask, HWY_DYNAMIC_DISPATCH(DropoutRun));
}

void dropout(const BFloat16* x, const float* residual, float* y, int64_t count, const DropoutMask& mask) {
  dropout_groups(range_of(x, residual, y, mask), count, mask, HWY_DYNAMIC_DISPATCH(DropoutJoin16));
}

void dropout(const BFloat16* x, BFloat16* y, int64_t count, const DropoutMask& mask) {
  const BFloat16* const none = nullptr;
  dropout_groups(range_of(x, none, y, mask), count, mask, HWY_DYNAMIC_DISPATCH(DropoutRun16));
}

void dropout(const double* x, const double* residual, double* y, int64_t count, const DropoutMask& mask) {
  dropout_plain<double>(x, residual, y, 0, count, mask);
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
