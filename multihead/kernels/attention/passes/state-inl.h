// The softmax state that a call goes on from, and the one that it leaves.

#if defined(MULTIHEAD_KERNELS_ATTENTION_PASSES_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_PASSES_STATE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_PASSES_STATE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_PASSES_STATE_INL_H_
#endif

#include <algorithm>

#include "multihead/kernels/attention/block/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// Goes on where the call before stopped. Without any key so far the sums are zero, and not looked at.
inline void LoadState(const ForwardCall& c, QueryTile& w) {
  const AttentionState& from = c.state;
  for (int r = 0; r < w.rows.rows; ++r) {
    w.state.max[r] = as_floats(from.max.data)[LaneIndex(c, from.max.strides, w.rows, r)];
    w.state.sum[r] = as_floats(from.sum.data)[LaneIndex(c, from.sum.strides, w.rows, r)];
    w.first = w.first && w.state.sum[r] == 0;
  }
  CopyTileRows(c, w.rows, from.values, c.p->value_dim, c.value_columns, w.out);
}

inline void StoreState(const ForwardCall& c, const QueryTile& w) {
  const AttentionState& to = c.state;
  if (w.first) return;
  for (int r = 0; r < w.rows.rows; ++r) {
    as_floats(to.max.data)[LaneIndex(c, to.max.strides, w.rows, r)] = w.state.max[r];
    as_floats(to.sum.data)[LaneIndex(c, to.sum.strides, w.rows, r)] = w.state.sum[r];
    float* row = as_floats(to.values.data) + RowIndex(c, to.values.strides, w.rows, r);
    std::copy_n(w.out + r * c.value_columns, c.p->value_dim, row);
  }
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
