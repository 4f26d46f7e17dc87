// Rows of operands and results in memory, f32 or bf16: where an element is, loading, copying, storing scaled.

#if defined(MULTIHEAD_KERNELS_ATTENTION_BLOCK_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_BLOCK_ROWS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_BLOCK_ROWS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_BLOCK_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "multihead/kernels/attention/block/forward_call-inl.h"
#include "multihead/kernels/attention/block/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Element `index` of an f32 or bf16 array.
HWY_INLINE const void* At(const void* base, int64_t index, bool bf16) {
  return static_cast<const char*>(base) + index * (bf16 ? 2 : 4);
}
HWY_INLINE void* At(void* base, int64_t index, bool bf16) {
  return static_cast<char*>(base) + index * (bf16 ? 2 : 4);
}

// … and its value.
HWY_INLINE float ElementOf(const void* base, int64_t index, bool bf16) {
  if (!bf16) return static_cast<const float*>(base)[index];
  return Wide(static_cast<const uint16_t*>(base)[index]);
}

// Index of row k of a key head's keys or values, and of row `row` of a tile's queries or outputs.
HWY_INLINE int64_t KeyIndex(const ForwardCall& c, const Strides3& s, int64_t b, int64_t kv, int64_t k) {
  return b * s.batch + kv * s.head + (c.p->key_begin_row(b) + k) * s.token;
}
HWY_INLINE int64_t RowIndex(const ForwardCall& c, const Strides3& s, const RowTile& t, int row) {
  return t.b * s.batch + c.p->head_row(t.head[row]) * s.head +
         (c.p->query_begin(t.b) + t.query[row]) * s.token;
}

// The addresses of those rows.
HWY_INLINE void* KeyRow(const ForwardCall& c, const Operand& x, int64_t b, int64_t kv, int64_t k) {
  return At(x.data, KeyIndex(c, x.strides, b, kv, k), x.dtype == Dtype::bf16);
}
HWY_INLINE void* TileRow(const ForwardCall& c, const Operand& x, const RowTile& t, int row) {
  return At(x.data, RowIndex(c, x.strides, t, row), x.dtype == Dtype::bf16);
}

// Rows of f32 with some stride.
struct Rows {
  const float* data = nullptr;
  int64_t stride = 0;
};

HWY_INLINE Rows Shifted(const Rows& rows, int64_t by) { return {rows.data + by * rows.stride, rows.stride}; }

// A row of either type as f32.
HWY_INLINE void LoadRow(const void* from, int64_t n, bool bf16, float* to) {
  const F d;
  int64_t c = 0;
  if (!bf16) {
    const float* x = static_cast<const float*>(from);
    for (; c + kN <= n; c += kN) hn::StoreU(hn::LoadU(d, x + c), d, to + c);
    for (; c < n; ++c) to[c] = x[c];
    return;
  }
  const auto* x = static_cast<const uint16_t*>(from);
  for (; c + 4 * kN <= n; c += 4 * kN) {
    const Vec x0 = LoadWide(d, x + c), x1 = LoadWide(d, x + c + kN);
    const Vec x2 = LoadWide(d, x + c + 2 * kN), x3 = LoadWide(d, x + c + 3 * kN);
    hn::StoreU(x0, d, to + c), hn::StoreU(x1, d, to + c + kN);
    hn::StoreU(x2, d, to + c + 2 * kN), hn::StoreU(x3, d, to + c + 3 * kN);
  }
  for (; c + kN <= n; c += kN) hn::StoreU(LoadWide(d, x + c), d, to + c);
  for (; c < n; ++c) to[c] = Wide(x[c]);
}

// A row of int8 and its scale as f32.
HWY_INLINE void LoadInt8Row(const void* from, int64_t n, float* to) {
  const F d;
  const hn::Rebind<int32_t, F> di;
  const hn::Rebind<int8_t, F> d8;
  const auto* q = static_cast<const int8_t*>(from);
  float factor;
  std::memcpy(&factor, q + n, sizeof(factor));
  const Vec scale = hn::Set(d, factor);
  int64_t c = 0;
  for (; c + kN <= n; c += kN) {
    hn::StoreU(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, q + c))), scale), d, to + c);
  }
  for (; c < n; ++c) to[c] = static_cast<float>(q[c]) * factor;
}

// Number `index` of a row of keys or values of `dim`.
HWY_INLINE float NumberOf(const ForwardCall& c, const void* row, int64_t dim, int64_t index) {
  if (!c.int8) return ElementOf(row, index, c.bf16);
  float scale;
  std::memcpy(&scale, static_cast<const int8_t*>(row) + dim, sizeof(scale));
  return static_cast<float>(static_cast<const int8_t*>(row)[index]) * scale;
}

// Rows [k0, k1) of a key head, in place or copied to `buffer` with `columns` floats a row. In tile_steps.cc.
Rows StageRows(const ForwardCall& call, const Operand& x, int64_t b, int64_t kv, int k0, int k1, int64_t dim,
               bool copy, int64_t columns, float* buffer);

// Index of row `row` of a tile in an array [B, H, T] whose last axis is contiguous.
HWY_INLINE int64_t LaneIndex(const ForwardCall& c, const Strides3& s, const RowTile& t, int row) {
  return t.b * s.batch + c.p->head_row(t.head[row]) * s.head + c.p->query_begin(t.b) + t.query[row];
}

// Copies the rows of a tile to [kTileRows][columns], zero-padded. In tile_steps.cc.
void CopyTileRows(const ForwardCall& c, const RowTile& t, const Operand& x, int64_t dim, int64_t columns,
                  float* to);

// to[c] = from[c] · factor; check gathers x · 0, which is NaN where x is not finite.
HWY_INLINE Vec StoreFloatRow(const float* from, Vec factor, int64_t n, float* to, Vec check) {
  const F d;
  int64_t c = 0;
  for (; c + kN <= n; c += kN) {
    const Vec x = hn::Mul(hn::LoadU(d, from + c), factor);
    check = hn::MulAdd(x, hn::Zero(d), check);
    hn::StoreU(x, d, to + c);
  }
  for (; c < n; ++c) {
    to[c] = from[c] * hn::GetLane(factor);
    check = hn::Add(check, hn::Set(d, to[c] * 0.0f));
  }
  return check;
}

// to[c] = bf16(from[c] · factor), to nearest even; check gathers x · 0, which is NaN where x is not finite.
HWY_INLINE Vec StoreBf16Row(const float* from, Vec factor, int64_t n, uint16_t* to, Vec check) {
  const F d;
  const I di;
  const hn::Rebind<uint16_t, F> d16;
  alignas(64) float tail[kN];
  for (int64_t c = 0; c < n; c += kN) {
    const int64_t rest = std::min<int64_t>(n - c, kN);
    const float* source = from + c;
    if (rest < kN) {
      std::fill_n(tail, kN, 0.0f);
      std::copy_n(from + c, rest, tail);
      source = tail;
    }
    const Vec x = hn::Mul(hn::LoadU(d, source), factor);
    check = hn::MulAdd(x, hn::Zero(d), check);
    const VecI bits = hn::BitCast(di, x);
    const VecI odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 1));
    const VecI rounded = hn::Add(bits, hn::Add(odd, hn::Set(di, 0x7FFF)));
    const VecI quiet = hn::Or(bits, hn::Set(di, 0x400000));
    const VecI chosen = hn::IfThenElse(hn::RebindMask(di, hn::Ne(x, x)), quiet, rounded);
    const auto half = hn::DemoteTo(d16, hn::And(hn::ShiftRight<16>(chosen), hn::Set(di, 0xFFFF)));
    if (rest == kN) {
      hn::StoreU(half, d16, to + c);
    } else {
      alignas(32) uint16_t last[kN];
      hn::StoreU(half, d16, last);
      std::copy_n(last, rest, to + c);
    }
  }
  return check;
}

// As StoreFloatRow, past the caches where the row is whole lines; hwy::FlushStream() ends a tile of them.
HWY_INLINE Vec StreamFloatRow(const float* from, Vec factor, int64_t n, float* to, Vec check) {
  const F d;
  if (reinterpret_cast<uintptr_t>(to) % 64 != 0 || n % 16 != 0)
    return StoreFloatRow(from, factor, n, to, check);
  for (int64_t c = 0; c < n; c += kN) {
    const Vec x = hn::Mul(hn::LoadU(d, from + c), factor);
    check = hn::MulAdd(x, hn::Zero(d), check);
    hn::Stream(x, d, to + c);
  }
  return check;
}

// Either, by the type of the row.
HWY_INLINE Vec StoreRow(const float* from, Vec factor, int64_t n, bool bf16, void* to, Vec check) {
  return bf16 ? StoreBf16Row(from, factor, n, static_cast<uint16_t*>(to), check)
              : StoreFloatRow(from, factor, n, static_cast<float*>(to), check);
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
