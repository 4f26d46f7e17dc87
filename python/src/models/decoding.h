// Modules that go on from a decoding state.
#pragma once

#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/nn/attention.h"
#include "multihead/nn/decode/state.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

/// As to_dtype(), and "int8".
inline Dtype to_cache_dtype(nb::handle object) {
  if (PyUnicode_Check(object.ptr()) && nb::cast<std::string>(object) == "int8") return nn::kInt8Cache;
  const Dtype dtype = to_dtype(object);
  MH_CHECK(is_floating(dtype), DtypeError, "the dtype of a state is floating or 'int8', got ", dtype);
  return dtype;
}

/// The state of one layer. dtype: None is `weight`'s.
inline nn::DecodeState make_layer_state(const nn::MultiHeadAttention& attention, int64_t batch,
                                        int64_t capacity, int64_t window, nb::handle dtype) {
  const nn::MultiHeadAttentionOptions& o = attention.options();
  nn::DecodeStateOptions options{{o.num_kv_heads}, batch, o.head_dim, o.value_head_dim, capacity};
  options.dtype = dtype.is_none() ? attention.out_proj.weight.dtype() : to_cache_dtype(dtype);
  options.window = window;
  return nn::make_decode_state(options);
}

/// New tokens per row from None (all) or integers.
inline std::vector<int64_t> to_counts(nb::handle counts, const char* who) {
  return counts.is_none() ? std::vector<int64_t>() : to_integers(counts, {who, "counts"});
}

/// f(update) with the next tokens x of a state of one layer; counts[b] of row b (none: all) join the state.
template <class F>
Tensor move_on(const char* who, const Tensor& x, nn::DecodeState& state, std::vector<int64_t> counts, F&& f) {
  const Busy busy(state.in_use, who);
  MH_CHECK(x.rank() == 3 && state.layers.size() == 1 && state.batch() == x.size(0), ShapeError, who,
           ": the state has ", state.layers.size(), " layers and ", state.batch(),
           " rows, expected one layer and as many rows as ", x.shape());
  if (counts.empty()) counts.assign(static_cast<size_t>(x.size(0)), x.size(1));
  MH_CHECK(counts.size() == state.lengths.size(), ShapeError, who, ": counts must have ", state.batch(),
           " entries, got ", counts.size());
  state.make_room(counts, busy);
  const std::vector<int64_t> held = state.held();
  Tensor out = f(nn::CacheUpdate{&state.layers[0], held, counts, state.window});
  for (size_t b = 0; b < counts.size(); ++b) state.lengths[b] += counts[b];
  return out;
}

}  // namespace multihead::python
