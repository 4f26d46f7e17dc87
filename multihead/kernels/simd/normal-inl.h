// Normal numbers in f32 by Box-Muller in f64: sqrt(-2 log u) times cos 2πv and sin 2πv.
//
// The definition (core/tensor/rng.cc) uses the C library's log, cos and sin. Here they are short series whose error
// leaves the result x within 2^-47 (|mean| + |std| · radius) of the defined one; if x ± 2^-44 of that rounds
// to the same f32 both ways, that f32 is the defined one. One group in 2,000 does not, and is made by
// the definition. (Measured over 2,000,000 groups, AVX2: log 2^-51 relative, cos and sin 2^-49.)

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_NORMAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_NORMAL_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_NORMAL_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_NORMAL_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR

using Doubles = hn::CappedTag<double, 16>;
using DoubleVec = hn::Vec<Doubles>;
using DoubleBits = hn::RebindToUnsigned<Doubles>;

// c[0] + x c[1] + x² c[2] + …: the even and the odd terms side by side, which halves the wait for each other.
template <size_t kCount>
HWY_INLINE DoubleVec Series(DoubleVec x, const double (&c)[kCount]) {
  static_assert(kCount % 2 == 0);
  const Doubles d;
  const DoubleVec square = hn::Mul(x, x);
  DoubleVec even = hn::Set(d, c[kCount - 2]), odd = hn::Set(d, c[kCount - 1]);
  for (size_t i = kCount - 2; i > 0; i -= 2) {
    even = hn::MulAdd(even, square, hn::Set(d, c[i - 2]));
    odd = hn::MulAdd(odd, square, hn::Set(d, c[i - 1]));
  }
  return hn::MulAdd(odd, x, even);
}

// An integer below 2^52 as a number.
HWY_INLINE DoubleVec NumberOf(hn::Vec<DoubleBits> integer) {
  const Doubles d;
  const DoubleVec magic = hn::Set(d, 0x1p52);
  return hn::Sub(hn::BitCast(d, hn::Or(integer, hn::BitCast(DoubleBits(), magic))), magic);
}

// 53 bits in (0, 1], as open_uniform() in core/tensor/rng.cc makes them.
HWY_INLINE DoubleVec OpenUniform(const uint32_t* high, const uint32_t* low) {
  const Doubles d;
  const DoubleBits du;
  const hn::Rebind<uint32_t, Doubles> words;
  const DoubleVec h = NumberOf(hn::PromoteTo(du, hn::LoadU(words, high)));
  const DoubleVec l = NumberOf(hn::PromoteTo(du, hn::ShiftRight<11>(hn::LoadU(words, low))));
  const DoubleVec bits = hn::Add(hn::Mul(h, hn::Set(d, 0x1p21)), l);
  return hn::Mul(hn::Add(bits, hn::Set(d, 0.5)), hn::Set(d, 0x1p-53));
}

// The 32 uniform numbers of the words of 16 blocks, with the bits that core/tensor/rng.cc defines.
inline bool UniformFloats(const uint32_t* words, double low, double high, float* numbers) {
  const Doubles d;
  const hn::Rebind<float, Doubles> floats;
  const DoubleVec first = hn::Set(d, low), width = hn::Set(d, high - low);
  const auto number = [&](const uint32_t* upper, const uint32_t* lower) HWY_ATTR {
    return hn::DemoteTo(floats, hn::Add(first, hn::Mul(width, OpenUniform(upper, lower))));
  };
  for (size_t b = 0; b < 16; b += hn::Lanes(d)) {
    const auto even = number(words + b, words + 16 + b), odd = number(words + 32 + b, words + 48 + b);
    hn::StoreInterleaved2(even, odd, floats, numbers + 2 * b);
  }
  return true;
}

// log u of u = 2^e m with m in [sqrt 1/2, sqrt 2): e log 2 + 2 artanh((m - 1) / (m + 1)).
HWY_INLINE DoubleVec LogUniform(DoubleVec u) {
  const Doubles d;
  const DoubleBits du;
  const auto bits = hn::BitCast(du, u);
  const auto least = hn::Set(du, 0x3FE6A09E667F3BCDull - (uint64_t{64} << 52));  // of sqrt 1/2, times 2^-64
  const auto exponent = hn::ShiftRight<52>(hn::Sub(bits, least));                // e + 64
  const auto shift = hn::Sub(hn::ShiftLeft<52>(exponent), hn::Set(du, uint64_t{64} << 52));
  const DoubleVec m = hn::BitCast(d, hn::Sub(bits, shift)), one = hn::Set(d, 1.0);
  const DoubleVec e = hn::Sub(NumberOf(exponent), hn::Set(d, 64.0));
  const DoubleVec s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  constexpr double kArtanh[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,
                                2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19};
  return hn::MulAdd(e, hn::Set(d, 0.693147180559945309), hn::Mul(s, Series(hn::Mul(s, s), kArtanh)));
}

// cos 2πv and sin 2πv: quarters of a turn are taken off, series up to an eighth.
HWY_INLINE void TurnUniform(DoubleVec v, DoubleVec& cosine, DoubleVec& sine) {
  const Doubles d;
  const DoubleBits du;
  const DoubleVec magic = hn::Set(d, 0x1.8p52);
  const DoubleVec shifted = hn::MulAdd(v, hn::Set(d, 4.0), magic);  // its last bits count quarters
  const DoubleVec rest = hn::NegMulAdd(hn::Sub(shifted, magic), hn::Set(d, 0.25), v);
  const DoubleVec angle = hn::Mul(rest, hn::Set(d, 6.283185307179586477)), square = hn::Mul(angle, angle);
  constexpr double kCos[] = {1.0,         -1.0 / 2,       1.0 / 24,        -1.0 / 720,
                             1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200};
  constexpr double kSin[] = {1.0,          -1.0 / 6,        1.0 / 120,        -1.0 / 5040,
                             1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000};
  const DoubleVec c = Series(square, kCos), s = hn::Mul(angle, Series(square, kSin));
  const auto quarters = hn::BitCast(du, shifted), one = hn::Set(du, uint64_t{1});
  const auto swap = hn::RebindMask(d, hn::TestBit(quarters, one));
  const auto sign_of = [&](hn::Vec<DoubleBits> q)
                           HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<63>(hn::ShiftRight<1>(q))); };
  cosine = hn::Xor(hn::IfThenElse(swap, s, c), sign_of(hn::Add(quarters, one)));
  sine = hn::Xor(hn::IfThenElse(swap, c, s), sign_of(quarters));
}

// The 32 numbers of the words of 16 blocks; false if one of them may round otherwise.
inline bool NormalFloats(const uint32_t* words, double mean, double std, float* numbers) {
  const Doubles d;
  const hn::Rebind<float, Doubles> floats;
  const DoubleVec center = hn::Set(d, mean);
  bool sure = true;
  for (size_t b = 0; b < 16; b += hn::Lanes(d)) {
    const DoubleVec log = LogUniform(OpenUniform(words + b, words + 16 + b));
    const DoubleVec radius = hn::Mul(hn::Set(d, std), hn::Sqrt(hn::Mul(hn::Set(d, -2.0), log)));
    const DoubleVec slack = hn::Mul(hn::Add(hn::Abs(center), hn::Abs(radius)), hn::Set(d, 0x1p-44));
    DoubleVec cosine, sine;
    TurnUniform(OpenUniform(words + 32 + b, words + 48 + b), cosine, sine);
    const auto rounded = [&](DoubleVec wave) HWY_ATTR {
      const DoubleVec x = hn::MulAdd(radius, wave, center);
      const auto low = hn::DemoteTo(floats, hn::Sub(x, slack)),
                 high = hn::DemoteTo(floats, hn::Add(x, slack));
      sure = sure && hn::AllTrue(floats, hn::Eq(low, high));
      return low;
    };
    const auto even = rounded(cosine), odd = rounded(sine);
    hn::StoreInterleaved2(even, odd, floats, numbers + 2 * b);
  }
  return sure;
}

#else

inline bool UniformFloats(const uint32_t*, double, double, float*) { return false; }
inline bool NormalFloats(const uint32_t*, double, double, float*) { return false; }

#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
