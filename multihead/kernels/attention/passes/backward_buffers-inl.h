// The memory of a backward pass's task, cut into what a block needs.

#if defined(MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_BUFFERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_BUFFERS_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_BUFFERS_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_PASSES_BACKWARD_BUFFERS_INL_H_
#endif

#include <cstdint>

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/block/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

struct BackwardBuffers {
  float* p;           // [kBackwardBlock][kTileRows] scores, then probabilities
  float* ds;          // likewise: probability gradients, then score gradients
  float* derivative;  // likewise: of soft-cap and score function
  float* extra;       // likewise: transposed bias, dropped probabilities, transposed bias gradients
  float* raw;         // likewise: what the score function is given, if something it captured learns
  uint8_t* keep;
  float* engine;      // the engine's
  float* d_key;       // [kBackwardBlock][head_columns]
  float* d_value;     // [kBackwardBlock][value_columns]
  float* table_rows;  // a band of the relative keys' table, padded, or of probabilities
  float* key_sums;    // the block's share of the table's gradient
  float* value_sums;  // likewise: of relative values
};

inline BackwardBuffers MakeBackwardBuffers(const BackwardCall& call, float* scratch) {
  constexpr int64_t kSize = kBackwardBlock * kTileRows;
  BackwardBuffers b;
  b.p = scratch;
  b.ds = b.p + kSize;
  b.derivative = b.ds + kSize;
  b.extra = b.derivative + kSize;
  const bool captured = call.gradient.d_captured != nullptr;
  b.raw = captured ? b.extra + kSize : nullptr;
  b.keep = reinterpret_cast<uint8_t*>(b.extra + (captured ? 2 : 1) * kSize);
  b.engine = reinterpret_cast<float*>(b.keep) + kSize / 4;
  b.d_key = b.engine + call.operands.block;
  b.d_value = b.d_key + kBackwardBlock * call.head_columns;
  b.table_rows = b.d_value + kBackwardBlock * call.forward.value_columns;
  b.key_sums = b.table_rows + relative_band_floats(call);
  b.value_sums = b.key_sums + relative_key_sum_floats(call);
  return b;
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
