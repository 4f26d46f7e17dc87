// Sixteen virtual lanes: the unit in which every f32 kernel reads, computes and reduces.
//
// A Pack is 16 floats, read from memory as f32 or bf16, in as few vectors as the target needs (1 on AVX-512,
// 2 on AVX2, 16 without SIMD). Sums and maxima over a row run in 16 chains and end in one fixed tree (i + 8,
// + 4, + 2, + 1), so their bits do not depend on the width of the vectors.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_SIMD_LANES_INL_H_
#undef MULTIHEAD_KERNELS_SIMD_LANES_INL_H_
#else
#define MULTIHEAD_KERNELS_SIMD_LANES_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "multihead/kernels/simd/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<Floats>;
inline constexpr int64_t kPack = 16;
inline constexpr int kPackVectors = static_cast<int>(kPack / hn::MaxLanes(Floats()));

#if HWY_TARGET != HWY_SCALAR
// Halves all the way down instead of an array: every compiler keeps it in registers.
template <int kVectors>
struct PackOf {
  PackOf<kVectors / 2> low, high;
};
template <>
struct PackOf<1> {
  FloatVec v;
};
using Pack = PackOf<kPackVectors>;

template <int kVectors>
inline constexpr int64_t kHalf = kVectors / 2 * static_cast<int64_t>(hn::MaxLanes(Floats()));

// f on every vector: Map(f, a, b, …) with f(FloatVec, FloatVec, …).
template <class F, class... More>
HWY_INLINE PackOf<1> Map(const F& f, PackOf<1> a, const More&... more) {
  return {f(a.v, more.v...)};
}
template <int kVectors, class F, class... More>
HWY_INLINE PackOf<kVectors> Map(const F& f, PackOf<kVectors> a, const More&... more) {
  return {Map(f, a.low, more.low...), Map(f, a.high, more.high...)};
}
// f(one, two, a, b, …) on every vector writes two results.
template <class F, class... More>
HWY_INLINE void MapInto(const F& f, PackOf<1>& one, PackOf<1>& two, const More&... more) {
  f(one.v, two.v, more.v...);
}
template <int kVectors, class F, class... More>
HWY_INLINE void MapInto(const F& f, PackOf<kVectors>& one, PackOf<kVectors>& two, const More&... more) {
  MapInto(f, one.low, two.low, more.low...);
  MapInto(f, one.high, two.high, more.high...);
}
#else
// Without SIMD a plain loop: unrolled, sixteen scalars of a long function take compilers minutes.
struct Pack {
  FloatVec v[kPack];
};
template <class F, class... More>
HWY_INLINE Pack Map(const F& f, const Pack& a, const More&... more) {
  Pack result;
  for (int64_t i = 0; i < kPack; ++i) result.v[i] = f(a.v[i], more.v[i]...);
  return result;
}
template <class F, class... More>
HWY_INLINE void MapInto(const F& f, Pack& one, Pack& two, const More&... more) {
  for (int64_t i = 0; i < kPack; ++i) f(one.v[i], two.v[i], more.v[i]...);
}
#endif

#define MULTIHEAD_PACK_1(Name)                                               \
  struct Name##Op {                                                          \
    HWY_INLINE FloatVec operator()(FloatVec a) const { return hn::Name(a); } \
  };                                                                         \
  HWY_INLINE Pack Name(Pack a) { return Map(Name##Op(), a); }
#define MULTIHEAD_PACK_2(Name)                                                              \
  struct Name##Op {                                                                         \
    HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Name(a, b); } \
  };                                                                                        \
  HWY_INLINE Pack Name(Pack a, Pack b) { return Map(Name##Op(), a, b); }
#define MULTIHEAD_PACK_3(Name)                                                                             \
  struct Name##Op {                                                                                        \
    HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b, FloatVec c) const { return hn::Name(a, b, c); } \
  };                                                                                                       \
  HWY_INLINE Pack Name(Pack a, Pack b, Pack c) { return Map(Name##Op(), a, b, c); }
MULTIHEAD_PACK_1(Neg)
MULTIHEAD_PACK_1(Sqrt)
MULTIHEAD_PACK_2(Add)
MULTIHEAD_PACK_2(Sub)
MULTIHEAD_PACK_2(Mul)
MULTIHEAD_PACK_2(Div)
MULTIHEAD_PACK_2(Max)
MULTIHEAD_PACK_3(MulAdd)
MULTIHEAD_PACK_3(NegMulAdd)
#undef MULTIHEAD_PACK_1
#undef MULTIHEAD_PACK_2
#undef MULTIHEAD_PACK_3

#if HWY_TARGET != HWY_SCALAR
// Constructors recurse on a tag of the type to make.
template <class P>
struct Make;
template <>
struct Make<PackOf<1>> {
  static HWY_INLINE PackOf<1> Set(float x) { return {hn::Set(Floats(), x)}; }
  template <class T>
  static HWY_INLINE PackOf<1> Load(const T* p) {
    return {LoadVector(Floats(), p)};
  }
  template <class T>
  static HWY_INLINE void Store(PackOf<1> a, T* p) {
    StoreVector(a.v, Floats(), p);
  }
};
template <int kVectors>
struct Make<PackOf<kVectors>> {
  using Half = Make<PackOf<kVectors / 2>>;
  static HWY_INLINE PackOf<kVectors> Set(float x) { return {Half::Set(x), Half::Set(x)}; }
  template <class T>
  static HWY_INLINE PackOf<kVectors> Load(const T* p) {
    return {Half::Load(p), Half::Load(p + kHalf<kVectors>)};
  }
  template <class T>
  static HWY_INLINE void Store(PackOf<kVectors> a, T* p) {
    Half::Store(a.low, p);
    Half::Store(a.high, p + kHalf<kVectors>);
  }
};

HWY_INLINE Pack Set(float x) { return Make<Pack>::Set(x); }
template <class T>
HWY_INLINE Pack Load(const T* p) {
  return Make<Pack>::Load(p);
}
template <class T>
HWY_INLINE void Store(Pack a, T* p) {
  Make<Pack>::Store(a, p);
}
#else
template <class T>
HWY_INLINE Pack Load(const T* p) {
  Pack result;
  for (int64_t i = 0; i < kPack; ++i) result.v[i] = LoadVector(Floats(), p + i);
  return result;
}
HWY_INLINE Pack Set(float x) {
  Pack result;
  for (int64_t i = 0; i < kPack; ++i) result.v[i] = hn::Set(Floats(), x);
  return result;
}
template <class T>
HWY_INLINE void Store(const Pack& a, T* p) {
  for (int64_t i = 0; i < kPack; ++i) StoreVector(a.v[i], Floats(), p + i);
}
#endif

// The first `count` < 16 numbers, then `fill`. Nothing past them is read or written. Where it takes a copy it
// is a call: it happens once in a loop, and a loop that holds it twice takes compilers long.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE Pack LoadFirst(const float* p, int64_t count, float fill) {
  const Floats d;
  const auto mask = hn::FirstN(d, static_cast<size_t>(count));
  return {hn::IfThenElse(mask, hn::MaskedLoad(mask, d, p), hn::Set(d, fill))};
}
HWY_INLINE void StoreFirst(Pack a, float* p, int64_t count) {
  const Floats d;
  hn::BlendedStore(a.v, hn::FirstN(d, static_cast<size_t>(count)), d, p);
}
#endif
template <class T>
HWY_NOINLINE Pack LoadFirst(const T* p, int64_t count, float fill) {
  alignas(64) float buffer[kPack];
  for (int64_t i = 0; i < kPack; ++i) buffer[i] = i < count ? static_cast<float>(p[i]) : fill;
  return Load(buffer);
}
template <class T>
HWY_NOINLINE void StoreFirst(Pack a, T* p, int64_t count) {
  alignas(64) T buffer[kPack];
  Store(a, buffer);
  std::memcpy(static_cast<void*>(p), buffer, static_cast<size_t>(count) * sizeof(T));
}

// Runs f(offset, access) over [0, count) in packs, where access.Load / access.Store touch exactly the numbers
// that exist; the last pack may be partial.
struct FullAccess {
  template <class T>
  HWY_INLINE Pack Load(const T* p, float = 0.0f) const {
    return HWY_NAMESPACE::Load(p);
  }
  template <class T>
  HWY_INLINE void Store(Pack a, T* p) const {
    HWY_NAMESPACE::Store(a, p);
  }
};
struct PartialAccess {
  int64_t count;
  template <class T>
  HWY_INLINE Pack Load(const T* p, float fill = 0.0f) const {
    return LoadFirst(p, count, fill);
  }
  template <class T>
  HWY_INLINE void Store(Pack a, T* p) const {
    StoreFirst(a, p, count);
  }
};
template <class F>
HWY_INLINE void ForPacks(int64_t count, const F& f) {
  int64_t i = 0;
  for (; i + kPack <= count; i += kPack) f(i, FullAccess());
  if (i < count) f(i, PartialAccess{count - i});
}

// Four packs at once, whose instructions the compiler alternates (CMakeLists.txt), where a pack is one of 32
// vectors. Chains of dependent instructions one after the other wait in the core's schedulers until they are
// full.
#if HWY_TARGET == HWY_AVX3
struct WideAccess {
  using Wide = PackOf<4 * kPackVectors>;
  static constexpr int64_t kSize = 4 * kPack;
  template <class T>
  HWY_INLINE Wide Load(const T* p) const {
    return Make<Wide>::Load(p);
  }
  template <class T>
  HWY_INLINE void Store(Wide a, T* p) const {
    Make<Wide>::Store(a, p);
  }
};
#endif
// As ForPacks, for an f that takes several packs as well.
template <class F>
HWY_INLINE void ForWidePacks(int64_t count, const F& f) {
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX3
  for (; i + WideAccess::kSize <= count; i += WideAccess::kSize) f(i, WideAccess());
#endif
  ForPacks(count - i, [&](int64_t j, auto at) HWY_ATTR { f(i + j, at); });
}

// The tree: halves are combined until one lane is left.
#if HWY_TARGET != HWY_SCALAR
template <class Op, class D, class V>
HWY_INLINE float ReduceVector(const Op& op, D, V v) {
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return ReduceVector(op, half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return hn::GetLane(v);
  }
}
template <class Op>
HWY_INLINE float Reduce(const Op& op, PackOf<1> a) {
  return ReduceVector(op, Floats(), a.v);
}
template <class Op, int kVectors>
HWY_INLINE float Reduce(const Op& op, PackOf<kVectors> a) {
  return Reduce(op, Map(op, a.low, a.high));
}
#else
template <class Op>
HWY_INLINE float Reduce(const Op& op, Pack a) {
  for (int64_t width = kPack / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) a.v[i] = op(a.v[i], a.v[i + width]);
  }
  return hn::GetLane(a.v[0]);
}
#endif

struct SumLanes {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct MaxLanes {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};
HWY_INLINE float Sum(Pack a) { return Reduce(SumLanes(), a); }
// If a lane is NaN, the result may be any lane: the exponentials that follow turn NaN anyway.
HWY_INLINE float Max(Pack a) { return Reduce(MaxLanes(), a); }

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
