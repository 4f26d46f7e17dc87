#include "multihead/nn/state.h"

#include <algorithm>

#include "multihead/core/error.h"

namespace multihead::nn {
namespace {

Tensor select_rows(const Tensor& x, std::span<const int64_t> rows) {
  Shape shape = x.shape();
  shape[0] = static_cast<int64_t>(rows.size());
  Tensor result = Tensor::empty(shape, x.dtype());
  const Shape row_shape = x.shape().erased(0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Tensor to = result.as_strided(row_shape, result.strides().erased(0),
                                        static_cast<int64_t>(i) * result.strides()[0]);
    to.copy_from(x.as_strided(row_shape, x.strides().erased(0), rows[i] * x.strides()[0]));
  }
  return result;
}

// x[b, :, begin : begin + count, :]
Tensor tokens_of(const Tensor& x, int64_t b, int64_t begin, int64_t count) {
  const Shape& s = x.strides();
  return x.as_strided({x.size(1), count, x.size(3)}, {s[1], s[2], s[3]}, b * s[0] + begin * s[2]);
}

}  // namespace

void DecodeState::reorder(std::span<const int64_t> rows) {
  for (const int64_t row : rows) {
    MH_CHECK(row >= 0 && row < batch(), ValueError, "reorder: row ", row, " of a batch of ", batch());
  }
  for (auto* caches : {&layers, &cross}) {
    for (KvCache& cache : *caches) {
      cache.key = select_rows(cache.key, rows);
      cache.value = select_rows(cache.value, rows);
    }
  }
  for (auto* numbers : {&lengths, &cross_lengths}) {
    if (numbers->empty()) continue;
    std::vector<int64_t> selected;
    for (const int64_t row : rows) selected.push_back((*numbers)[static_cast<size_t>(row)]);
    *numbers = std::move(selected);
  }
}

void DecodeState::truncate(int64_t length) {
  MH_CHECK(length >= 0, ValueError, "truncate: the length must not be negative, got ", length);
  for (int64_t& row : lengths) row = std::min(row, length);
}

DecodeState DecodeState::fork() const {
  DecodeState copy = *this;
  for (auto* caches : {&copy.layers, &copy.cross}) {
    for (KvCache& cache : *caches) cache = {cache.key.clone(), cache.value.clone()};
  }
  return copy;
}

size_t DecodeState::bytes() const {
  size_t total = 0;
  for (const auto* caches : {&layers, &cross}) {
    for (const KvCache& cache : *caches) total += cache.key.bytes() + cache.value.bytes();
  }
  return total;
}

DecodeState make_decode_state(const DecodeStateOptions& o) {
  MH_CHECK(o.batch > 0 && o.capacity > 0, ValueError,
           "decode state: batch and capacity must be positive, got ", o.batch, " and ", o.capacity);
  DecodeState state;
  state.capacity = o.capacity;
  state.lengths.assign(static_cast<size_t>(o.batch), 0);
  for (int64_t i = 0; i < o.num_layers; ++i) {
    state.layers.push_back({Tensor::empty({o.batch, o.num_kv_heads, o.capacity, o.head_dim}, o.dtype),
                            Tensor::empty({o.batch, o.num_kv_heads, o.capacity, o.value_head_dim}, o.dtype)});
  }
  return state;
}

void append(KvCache& cache, const Tensor& key, const Tensor& value, std::span<const int64_t> lengths,
            std::span<const int64_t> counts) {
  const int64_t batch = key.size(0), capacity = cache.key.size(2);
  MH_CHECK(cache.key.size(0) == batch && static_cast<int64_t>(lengths.size()) == batch &&
               static_cast<int64_t>(counts.size()) == batch,
           ShapeError, "decode state: it holds ", cache.key.size(0), " rows, got ", batch);
  MH_CHECK(cache.key.size(1) == key.size(1) && cache.key.size(3) == key.size(3) &&
               cache.value.size(3) == value.size(3),
           ShapeError, "decode state: it belongs to another model: keys ", cache.key.shape(), ", new keys ",
           key.shape());
  for (size_t b = 0; b < lengths.size(); ++b) {
    MH_CHECK(counts[b] >= 0 && counts[b] <= key.size(2), ValueError, "decode state: row ", b, " adds ",
             counts[b], " of ", key.size(2), " tokens");
    MH_CHECK(lengths[b] + counts[b] <= capacity, ValueError, "decode state: row ", b, " would hold ",
             lengths[b] + counts[b], " tokens, its capacity is ", capacity);
  }
  for (int64_t b = 0; b < batch; ++b) {
    const auto i = static_cast<size_t>(b);
    tokens_of(cache.key, b, lengths[i], counts[i]).copy_from(tokens_of(key, b, 0, counts[i]));
    tokens_of(cache.value, b, lengths[i], counts[i]).copy_from(tokens_of(value, b, 0, counts[i]));
  }
}

}  // namespace multihead::nn
