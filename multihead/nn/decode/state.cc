#include "multihead/nn/decode/state.h"

#include <algorithm>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/kernels/attention/decode/int8_rows.h"
#include "multihead/nn/decode/own-inl.h"
#include "multihead/ops/attention/int8.h"

namespace multihead::nn {
namespace {

// x[b, :, begin : begin + count, :]
Tensor tokens_of(const Tensor& x, int64_t b, int64_t begin, int64_t count) {
  const Shape& s = x.strides();
  return x.as_strided({x.size(1), count, x.size(3)}, {s[1], s[2], s[3]}, b * s[0] + begin * s[2]);
}

std::vector<int64_t> selected(const std::vector<int64_t>& values, std::span<const int64_t> rows) {
  std::vector<int64_t> result;
  for (const int64_t row : rows) result.push_back(values[static_cast<size_t>(row)]);
  return result;
}

// The rows of `cross` that follow `rows`, one per whole group.
std::vector<int64_t> cross_rows_of(const DecodeState& state, std::span<const int64_t> rows) {
  std::vector<int64_t> result;
  if (state.cross_lengths.empty()) return result;
  const int64_t group = state.group();
  MH_CHECK(static_cast<int64_t>(rows.size()) % group == 0, ValueError, "reorder: ", rows.size(),
           " rows are no whole groups of ", group);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t row = rows[i] / group;
    const bool first = i % static_cast<size_t>(group) == 0;
    MH_CHECK(first || result.back() == row, ValueError, "reorder: row ", i,
             " would mix the hypotheses of two sentences");
    if (first) result.push_back(row);
  }
  return result;
}

// Row i of x [B, H, C, D] becomes row rows[i], the first lengths[row] tokens of it. The rest is undefined.
void reorder_rows(Tensor& x, const std::vector<int64_t>& lengths, std::span<const int64_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto used = [&](const Tensor& t, int64_t at, int64_t row) {
    return tokens_of(t, at, 0, std::min(lengths[static_cast<size_t>(row)], t.size(2)));
  };
  if (count != x.size(0)) {
    Tensor result = Tensor::empty({count, x.size(1), x.size(2), x.size(3)}, x.dtype());
    parallel_for(count,
                 [&](int64_t i, int) { used(result, i, rows[i]).copy_from(used(x, rows[i], rows[i])); });
    x = result;
    return;
  }
  // In place: what moves is copied aside first, because a row may be overwritten before it is read.
  std::vector<int64_t> moved;
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] != i) moved.push_back(i);
  }
  if (!moved.empty()) make_own(x);
  std::vector<Tensor> aside(moved.size());
  const auto moves = static_cast<int64_t>(moved.size());
  parallel_for(moves, [&](int64_t m, int) {
    const int64_t row = rows[static_cast<size_t>(moved[static_cast<size_t>(m)])];
    aside[static_cast<size_t>(m)] = used(x, row, row).clone();
  });
  parallel_for(moves, [&](int64_t m, int) {
    const int64_t i = moved[static_cast<size_t>(m)];
    used(x, i, rows[static_cast<size_t>(i)]).copy_from(aside[static_cast<size_t>(m)]);
  });
}

// x[b, :, shift : shift + count] moves to the front: pieces no longer than the shift do not overlap.
void move_to_front(const Tensor& x, int64_t b, int64_t shift, int64_t count) {
  for (int64_t at = 0; at < count; at += shift) {
    const int64_t piece = std::min(shift, count - at);
    tokens_of(x, b, at, piece).copy_from(tokens_of(x, b, at + shift, piece));
  }
}

// f(tensor, whether it holds a row's tokens, the same of `other`) for all that a layer keeps.
template <class F>
void for_each_tensor(KvCache& cache, const KvCache& other, F&& f) {
  f(cache.key, true, other.key);
  f(cache.value, true, other.value);
  for (size_t i = 0; i < cache.own.size(); ++i) {
    f(cache.own[i].values, cache.own[i].grows, other.own[i].values);
  }
}

bool carries(const std::vector<KvCache>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const KvCache& cache) {
    return std::any_of(cache.own.begin(), cache.own.end(), [](const OwnCache& kept) { return !kept.grows; });
  });
}

// Numbers of the cache's dtype that a row of `dim` takes.
int64_t row_size(int64_t dim, Dtype dtype) {
  if (dtype != kInt8Cache) return dim;
  MH_CHECK(dim > 0 && dim % 4 == 0, ValueError,
           "decode state: an int8 cache needs head sizes that are multiples of 4, got ", dim);
  return kernels::int8_row_words(dim);
}

// x as the cache holds it.
Tensor stored(const Tensor& x, Dtype dtype) { return dtype == kInt8Cache ? to_int8_rows(x) : x; }

// The first of the keys that the token at `position` sees.
int64_t first_seen(int64_t position, int64_t window) { return std::max<int64_t>(position - window + 1, 0); }

}  // namespace

std::vector<int64_t> DecodeState::held() const {
  std::vector<int64_t> result = lengths;
  for (size_t b = 0; b < starts.size(); ++b) result[b] -= starts[b];
  return result;
}

int64_t DecodeState::room() const {
  if (window > 0) return capacity - ring_capacity(window, 0);
  return capacity - (lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
}

void DecodeState::make_room(std::span<const int64_t> counts, const Busy& /*held*/) {
  if (window == 0) return;
  // Blocks of keys keep their places in the kernel's order of sums.
  std::vector<int64_t> shifts(lengths.size(), 0);
  bool any = false;
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] - starts[b] + counts[b] <= capacity) continue;
    const int64_t seen = first_seen(lengths[b], window);
    shifts[b] = seen - seen % kernels::attention_key_block - starts[b];
    any = true;
    MH_CHECK(lengths[b] - starts[b] - shifts[b] + counts[b] <= capacity, ValueError, "decode state: row ", b,
             " adds ", counts[b], " tokens, this ring takes ", room(), " at a time");
  }
  if (!any) return;
  const std::vector<int64_t> before = held();
  for (KvCache& cache : layers) {
    make_own(cache.key);
    make_own(cache.value);
    parallel_for(batch(), [&](int64_t b, int) {
      const int64_t shift = shifts[static_cast<size_t>(b)];
      if (shift == 0) return;
      move_to_front(cache.key, b, shift, before[static_cast<size_t>(b)] - shift);
      move_to_front(cache.value, b, shift, before[static_cast<size_t>(b)] - shift);
    });
  }
  for (size_t b = 0; b < starts.size(); ++b) starts[b] += shifts[b];
}

int64_t DecodeState::group() const {
  return cross_lengths.empty() ? 1 : batch() / static_cast<int64_t>(cross_lengths.size());
}

void DecodeState::reorder(std::span<const int64_t> rows) {
  const Busy busy(in_use, "reorder");
  for (const int64_t row : rows) {
    MH_CHECK(row >= 0 && row < batch(), ValueError, "reorder: row ", row, " of a batch of ", batch());
  }
  const std::vector<int64_t> cross_rows = cross_rows_of(*this, rows);
  reorder_layers(rows);
  for (KvCache& cache : cross) {
    reorder_rows(cache.key, cross_lengths, cross_rows);
    reorder_rows(cache.value, cross_lengths, cross_rows);
  }
  cross_lengths = selected(cross_lengths, cross_rows);
}

void DecodeState::reorder_layers(std::span<const int64_t> rows) {
  const std::vector<int64_t> tokens = held();
  for (KvCache& cache : layers) {
    for_each_tensor(cache, cache, [&](Tensor& x, bool grows, const Tensor&) {
      reorder_rows(x, grows ? tokens : std::vector<int64_t>(tokens.size(), x.size(2)), rows);
    });
  }
  lengths = selected(lengths, rows);
  starts = selected(starts, rows);
}

void DecodeState::repeat(int64_t times) {
  const Busy busy(in_use, "repeat");
  MH_CHECK(times >= 1, ValueError, "repeat: expected at least 1 time, got ", times);
  const int64_t count = checked_multiply(batch(), times, "repeat");
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(i / times);
  reorder_layers(rows);
}

void DecodeState::check_truncation(int64_t row, int64_t length) const {
  const auto b = static_cast<size_t>(row);
  MH_CHECK(length >= 0, ValueError, "truncate: the length must not be negative, got ", length);
  MH_CHECK(length >= lengths[b] || first_seen(length, window) >= starts[b], ValueError, "truncate: row ", b,
           " cannot go back to ", length, " tokens: the next token sees ", window,
           " keys, and the ring has dropped the first ", starts[b]);
  MH_CHECK(length == 0 || length >= lengths[b] || !carries(layers), ValueError, "truncate: row ", row,
           " cannot go back to ", length, " tokens: an own attention carries what came after");
}

// A row that begins again carries nothing.
void DecodeState::shorten(int64_t row, int64_t length) {
  int64_t& tokens = lengths[static_cast<size_t>(row)];
  tokens = std::min(tokens, length);
  if (tokens > 0) return;
  for (KvCache& cache : layers) {
    for (OwnCache& kept : cache.own) {
      if (kept.grows) continue;
      make_own(kept.values);
      tokens_of(kept.values, row, 0, kept.values.size(2)).fill(0);
    }
  }
}

void DecodeState::truncate(int64_t length) {
  const Busy busy(in_use, "truncate");
  for (int64_t b = 0; b < batch(); ++b) check_truncation(b, length);
  for (int64_t b = 0; b < batch(); ++b) shorten(b, length);
}

void DecodeState::truncate(int64_t row, int64_t length) {
  const Busy busy(in_use, "truncate");
  MH_CHECK(row >= 0 && row < batch(), ValueError, "truncate: row ", row, " of a batch of ", batch());
  check_truncation(row, length);
  shorten(row, length);
}

void DecodeState::put(int64_t to, const DecodeState& from, int64_t row, int64_t tokens) {
  const Busy busy(in_use, "put"), theirs(from.in_use, "put");
  MH_CHECK(to >= 0 && to < batch() && row >= 0 && row < from.batch(), ValueError, "put: row ", row,
           " of a batch of ", from.batch(), " cannot become row ", to, " of ", batch());
  MH_CHECK(layers.size() == from.layers.size() && cross.empty() && window == from.window, ValueError,
           "put: the states are not of the same decoder-only model");
  const auto source = static_cast<size_t>(row), target = static_cast<size_t>(to);
  MH_CHECK(tokens >= 0 && tokens <= from.lengths[source], ValueError, "put: row ", row, " holds ",
           from.lengths[source], " tokens, not ", tokens);
  MH_CHECK(tokens == from.lengths[source] || !carries(layers), ValueError,
           "put: what an own attention carries is of all ", from.lengths[source], " tokens, not of ", tokens);
  for (size_t i = 0; i < layers.size(); ++i) {
    MH_CHECK(layers[i].own.size() == from.layers[i].own.size(), ValueError,
             "put: the states are of other own attentions");
    MH_CHECK(layers[i].key.dtype() == from.layers[i].key.dtype(), ValueError, "put: a cache of ",
             from.layers[i].key.dtype(), " cannot become part of one of ", layers[i].key.dtype());
  }
  const int64_t start = from.starts[source], count = tokens - start;
  MH_CHECK(start == 0 || tokens == from.lengths[source], ValueError, "put: a ring's row moves as a whole");
  MH_CHECK(count <= capacity, ValueError, "put: ", count, " tokens do not fit a capacity of ", capacity);
  parallel_for(std::ssize(layers), [&](int64_t i, int) {
    KvCache& cache = layers[static_cast<size_t>(i)];
    const KvCache& other = from.layers[static_cast<size_t>(i)];
    for_each_tensor(cache, other, [&](Tensor& x, bool grows, const Tensor& source) {
      const int64_t part = grows ? count : x.size(2);
      make_own(x);
      tokens_of(x, to, 0, part).copy_from(tokens_of(source, row, 0, part));
    });
  });
  lengths[target] = tokens, starts[target] = start;
}

void DecodeState::clear(int64_t row) {
  const Busy busy(in_use, "clear");
  MH_CHECK(row >= 0 && row < batch(), ValueError, "clear: row ", row, " of a batch of ", batch());
  shorten(row, 0);
  starts[static_cast<size_t>(row)] = 0;
}

DecodeState DecodeState::fork() const {
  const Busy busy(in_use, "fork");
  return *this;
}

size_t DecodeState::bytes() const {
  size_t total = 0;
  for (const auto* caches : {&layers, &cross}) {
    for (const KvCache& cache : *caches) {
      total += cache.key.bytes() + cache.value.bytes();
      for (const OwnCache& kept : cache.own) total += kept.values.bytes();
    }
  }
  return total;
}

bool DecodeStateOptions::carries() const {
  return std::any_of(own.begin(), own.end(), [](const std::vector<OwnCacheSpec>& layer) {
    return std::any_of(layer.begin(), layer.end(), [](const OwnCacheSpec& spec) { return spec.rows > 0; });
  });
}

DecodeState make_decode_state(const DecodeStateOptions& o) {
  MH_CHECK(o.batch > 0 && o.capacity > 0, ValueError,
           "decode state: batch and capacity must be positive, got ", o.batch, " and ", o.capacity);
  MH_CHECK(o.window == 0 || o.own.empty(), ValueError, "decode state: an own attention has no ring");
  MH_CHECK(o.window >= 0, ValueError, "decode state: window must not be negative, got ", o.window);
  MH_CHECK(o.window == 0 || o.capacity >= ring_capacity(o.window, 1), ValueError,
           "decode state: a ring for a window of ", o.window, " needs a capacity of at least ",
           ring_capacity(o.window, 1), ", got ", o.capacity);
  DecodeState state;
  state.capacity = o.capacity;
  state.window = o.window;
  state.lengths.assign(static_cast<size_t>(o.batch), 0);
  state.starts = state.lengths;
  for (const int64_t heads : o.kv_heads) {
    const int64_t key = row_size(o.head_dim, o.dtype), value = row_size(o.value_head_dim, o.dtype);
    state.layers.push_back({Tensor::empty({o.batch, heads, o.capacity, key}, o.dtype),
                            Tensor::empty({o.batch, heads, o.capacity, value}, o.dtype)});
  }
  for (size_t i = 0; i < o.own.size(); ++i) {
    for (const OwnCacheSpec& spec : o.own[i]) {
      const int64_t rows = spec.rows > 0 ? spec.rows : o.capacity;
      state.layers[i].own.push_back(
          {spec.name, Tensor::zeros({o.batch, spec.heads, rows, spec.dim}, o.dtype), spec.rows == 0});
    }
  }
  return state;
}

int64_t ring_capacity(int64_t window, int64_t chunk) {
  return window - 1 + kernels::attention_key_block - 1 + chunk;
}

size_t decode_state_bytes(const DecodeStateOptions& o) {
  const int64_t tokens = checked_multiply(o.batch, o.capacity, "decode state");
  const int64_t heads = std::accumulate(o.kv_heads.begin(), o.kv_heads.end(), int64_t{0});
  const int64_t features = checked_multiply(
      heads, row_size(o.head_dim, o.dtype) + row_size(o.value_head_dim, o.dtype), "decode state");
  int64_t numbers = checked_multiply(tokens, features, "decode state");
  for (const std::vector<OwnCacheSpec>& layer : o.own) {
    for (const OwnCacheSpec& spec : layer) {
      const int64_t rows = checked_multiply(o.batch, spec.rows > 0 ? spec.rows : o.capacity, "decode state");
      numbers +=
          checked_multiply(rows, checked_multiply(spec.heads, spec.dim, "decode state"), "decode state");
    }
  }
  return static_cast<size_t>(
      checked_multiply(numbers, static_cast<int64_t>(size_of(o.dtype)), "decode state"));
}

void append(KvCache& cache, const Tensor& key, const Tensor& value, std::span<const int64_t> lengths,
            std::span<const int64_t> counts) {
  const int64_t batch = key.size(0), capacity = cache.key.size(2);
  MH_CHECK(cache.key.size(0) == batch && static_cast<int64_t>(lengths.size()) == batch &&
               static_cast<int64_t>(counts.size()) == batch,
           ShapeError, "decode state: it holds ", cache.key.size(0), " rows, got ", batch,
           " rows of keys with ", lengths.size(), " lengths and ", counts.size(), " counts");
  const Dtype dtype = cache.key.dtype();
  MH_CHECK(cache.key.size(1) == key.size(1) && cache.key.size(3) == row_size(key.size(3), dtype) &&
               cache.value.size(3) == row_size(value.size(3), dtype),
           ShapeError, "decode state: it belongs to another model: keys ", cache.key.shape(), " and values ",
           cache.value.shape(), ", new ones ", key.shape(), " and ", value.shape());
  for (size_t b = 0; b < lengths.size(); ++b) {
    MH_CHECK(counts[b] >= 0 && counts[b] <= key.size(2), ValueError, "decode state: row ", b, " adds ",
             counts[b], " of ", key.size(2), " tokens");
    MH_CHECK(lengths[b] >= 0 && lengths[b] <= capacity - counts[b], ValueError, "decode state: row ", b,
             " holds ", lengths[b], " tokens and gets ", counts[b], ", its capacity is ", capacity);
  }
  make_own(cache.key);
  make_own(cache.value);
  for (int64_t b = 0; b < batch; ++b) {
    const auto i = static_cast<size_t>(b);
    tokens_of(cache.key, b, lengths[i], counts[i]).copy_from(stored(tokens_of(key, b, 0, counts[i]), dtype));
    tokens_of(cache.value, b, lengths[i], counts[i])
        .copy_from(stored(tokens_of(value, b, 0, counts[i]), dtype));
  }
}

}  // namespace multihead::nn
