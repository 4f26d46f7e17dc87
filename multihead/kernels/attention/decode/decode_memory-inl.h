// Reads a cache while decoding: rows in place, in either type, and cache lines prefetched in order of
// addresses.
//
// Lines are prefetched 9 KB ahead, one at each step: 4 KB starve, prefetches to L2 only get .6-.75 of the
// read rate, none .6 (Zen 5, 2026-11).

#if defined(MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_MEMORY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_MEMORY_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_MEMORY_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_DECODE_DECODE_MEMORY_INL_H_
#endif

#include "multihead/kernels/attention/engines/engine_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Key or value rows in place, in either type.
struct RawRows {
  const char* data = nullptr;
  int64_t stride = 0;  // bytes
};

HWY_INLINE RawRows RawRowsOf(const ForwardCall& c, const Operand& x, int64_t b, int64_t kv, int k0) {
  return {static_cast<const char*>(KeyRow(c, x, b, kv, k0)), x.strides.token * (c.bf16 ? 2 : 4)};
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
// The contents of a cache, and the products made of them.
enum class CacheKind { f32, widened, pairs, int8 };

// Prefetches cache lines in order of addresses: those of `rows` rows, then of `next_rows` rows elsewhere.
struct PrefetchStream {
  const char* at;
  int64_t stride, lines, rows;  // lines: of a row
  const char* next;
  int64_t next_stride, next_lines, next_rows, left;

  struct Rows {
    const char* data;
    int64_t stride, bytes, count;
  };

  HWY_INLINE PrefetchStream(Rows first, Rows second) {
    const auto join = [](Rows& r) {  // neighbours are one long row
      if (r.stride != r.bytes) return;
      r.bytes *= r.count, r.stride = r.bytes;
      r.count = std::min<int64_t>(r.count, 1);
    };
    join(first), join(second);
    at = first.data, stride = first.stride, lines = (first.bytes + 63) / 64, rows = first.count;
    next = second.data, next_stride = second.stride, next_lines = (second.bytes + 63) / 64;
    next_rows = second.count, left = lines;
    if (rows == 0) NextRow();
  }

  // The next row; after the last one the line stays where it is.
  HWY_NOINLINE void NextRow() {
    if (--rows > 0) {
      at += stride - 64 * lines;
    } else if (next_rows > 0) {
      at = next, stride = next_stride, lines = next_lines, rows = next_rows, next_rows = 0;
    } else {
      at -= 64, stride = 0, lines = 1, rows = 1;
    }
    left = lines;
  }

  HWY_INLINE void Skip(int64_t count) {
    while (count > 0) {
      const int64_t now = std::min(count, left);
      at += 64 * now, count -= now, left -= now;
      if (left > 0) break;
      const bool last = rows <= 1 && next_rows == 0;
      NextRow();
      if (last) break;
    }
  }
};

// A stream's place in registers while a run is computed.
class PrefetchCursor {
 public:
  HWY_INLINE explicit PrefetchCursor(PrefetchStream& prefetch)
      : stream_(prefetch), at_(prefetch.at), left_(prefetch.left) {}
  HWY_INLINE ~PrefetchCursor() { stream_.at = at_, stream_.left = left_; }
  PrefetchCursor(const PrefetchCursor&) = delete;
  PrefetchCursor& operator=(const PrefetchCursor&) = delete;

  HWY_INLINE void Step() {
    __builtin_prefetch(at_, 0, 3);
    at_ += 64;
    if (HWY_LIKELY(--left_ != 0)) return;
    stream_.at = at_;
    stream_.NextRow();
    at_ = stream_.at, left_ = stream_.left;
  }

 private:
  PrefetchStream& stream_;
  const char* at_;
  int64_t left_;
};

inline constexpr int kRun = 16;                 // rows of a step
inline constexpr int64_t kPrefetchLines = 140;  // not a multiple of 4 KB
inline constexpr int kFewRows = 8;

// Two bf16 numbers in each lane: the one at the lower address, and the other.
HWY_INLINE Vec LowerOfPair(Vec x) { return hn::BitCast(F(), hn::ShiftLeft<16>(hn::BitCast(I(), x))); }
HWY_INLINE Vec UpperOfPair(Vec x) {
  return hn::BitCast(F(), hn::And(hn::BitCast(I(), x), hn::Set(I(), static_cast<int32_t>(0xFFFF0000))));
}

#endif

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
