// Philox4x32-10 (core/tensor/rng.h), one block in each lane.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_PHILOX_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_PHILOX_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_PHILOX_INL_H_
#endif

#include "hwy/highway.h"
#include "multihead/core/tensor/rng.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
using Words = hn::CappedTag<uint32_t, 16>;
using WordVec = hn::Vec<Words>;

// a · b as high and low words.
HWY_INLINE void MulWords(WordVec a, WordVec b, WordVec& high, WordVec& low) {
  const Words d;
  const hn::RepartitionToWide<Words> wide;
  const auto odd = [&](WordVec v)
                       HWY_ATTR { return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, v))); };
  const auto even_product = hn::MulEven(a, b);
  const auto odd_product = hn::MulEven(odd(a), odd(b));
  high = hn::OddEven(hn::BitCast(d, odd_product), hn::BitCast(d, hn::ShiftRight<32>(even_product)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd_product)), hn::BitCast(d, even_product));
}

// The blocks first, first + 1, …; `first` must be a multiple of the lanes.
struct PhiloxBlocks {
  WordVec w0, w1, w2, w3;
};
HWY_INLINE PhiloxBlocks Philox(const RandomStream& s, uint64_t first) {
  const Words d;
  PhiloxBlocks c{hn::Add(hn::Set(d, static_cast<uint32_t>(first)), hn::Iota(d, 0)),
                 hn::Set(d, static_cast<uint32_t>(first >> 32)), hn::Set(d, static_cast<uint32_t>(s.stream)),
                 hn::Set(d, static_cast<uint32_t>(s.stream >> 32))};
  uint32_t key0 = static_cast<uint32_t>(s.seed), key1 = static_cast<uint32_t>(s.seed >> 32);
  const WordVec m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    WordVec high0, low0, high1, low1;
    MulWords(c.w0, m0, high0, low0);
    MulWords(c.w2, m1, high1, low1);
    c = {hn::Xor(hn::Xor(high1, c.w1), hn::Set(d, key0)), low1,
         hn::Xor(hn::Xor(high0, c.w3), hn::Set(d, key1)), low0};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}
#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
