#include "multihead/nn/positions.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {

Tensor sinusoidal_positions(int64_t length, int64_t embed_dim, int64_t start, SinusoidLayout layout,
                            double base) {
  MH_CHECK(embed_dim > 0 && length >= 0 && start >= 0, ValueError, "sinusoidal_positions: embed_dim ",
           embed_dim, ", length ", length, " and start ", start, " must not be negative");
  MH_CHECK(base > 0 && std::isfinite(base), ValueError,
           "sinusoidal_positions: base must be positive and finite, got ", base);
  const bool ends_at_base = layout == SinusoidLayout::tensor2tensor;
  MH_CHECK(!ends_at_base || embed_dim >= 4, ValueError,
           "sinusoidal_positions: tensor2tensor needs an embed_dim of at least 4, got ", embed_dim);
  const int64_t sines = ends_at_base ? embed_dim / 2 : (embed_dim + 1) / 2;
  const double steps = ends_at_base ? static_cast<double>(sines - 1) : static_cast<double>(embed_dim) / 2;
  std::vector<double> frequencies;
  for (int64_t k = 0; k < sines; ++k) frequencies.push_back(std::pow(base, -static_cast<double>(k) / steps));
  Tensor table = Tensor::zeros({length, embed_dim});
  float* rows = table.data<float>();
  const bool halves = layout != SinusoidLayout::interleaved;
  parallel_ranges(length, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = rows + row * embed_dim;
      for (int64_t k = 0; k < sines; ++k) {
        const double angle = static_cast<double>(start + row) * frequencies[static_cast<size_t>(k)];
        out[halves ? k : 2 * k] = static_cast<float>(std::sin(angle));
        const int64_t cosine = halves ? sines + k : 2 * k + 1;
        if (cosine < embed_dim) out[cosine] = static_cast<float>(std::cos(angle));
      }
    }
  });
  return table;
}

SinusoidalPositionalEncoding::SinusoidalPositionalEncoding(int64_t embed_dim, double dropout_p,
                                                           SinusoidLayout layout)
    : embed_dim_(embed_dim), dropout_p_(dropout_p), layout_(layout) {
  MH_CHECK(embed_dim > 0, ValueError, "SinusoidalPositionalEncoding: embed_dim must be positive, got ",
           embed_dim);
  MH_CHECK(dropout_p >= 0 && dropout_p <= 1, ValueError,
           "SinusoidalPositionalEncoding: dropout_p must be in [0, 1], got ", dropout_p);
}

Tensor SinusoidalPositionalEncoding::operator()(const Tensor& x, const std::vector<int64_t>& starts,
                                                Rng* rng) const {
  MH_CHECK(x.rank() == 3 && x.size(2) == embed_dim_, ShapeError,
           "SinusoidalPositionalEncoding: x must be [B, T, ", embed_dim_, "], got ", x.shape());
  const auto [first, last] = std::minmax_element(starts.begin(), starts.end());
  MH_CHECK(first != starts.end() && *first >= 0, ValueError,
           "SinusoidalPositionalEncoding: a start must not be negative");
  const int64_t length = x.size(1), rows = *last - *first + length;
  Tensor table = sinusoidal_positions(rows, embed_dim_, *first, layout_).to(x.dtype());
  if (*first != *last) {
    std::vector<int64_t> relative;
    for (const int64_t start : starts) relative.push_back(start - *first);
    table = embedding(table, position_ids(x.size(0), length, relative));
  }
  return dropout(add(x, table), dropout_p_, rng);
}

Tensor position_ids(int64_t batch, int64_t length, const std::vector<int64_t>& starts, int64_t limit,
                    int64_t offset) {
  MH_CHECK(starts.size() == 1 || static_cast<int64_t>(starts.size()) == batch, ShapeError,
           "positions: expected one start or one per row of the batch (", batch, "), got ", starts.size());
  Tensor ids = Tensor::empty({batch, length}, Dtype::i64);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t start = starts[starts.size() == 1 ? 0 : static_cast<size_t>(b)];
    MH_CHECK(start >= 0, ValueError, "positions: a start must not be negative, got ", start);
    for (int64_t t = 0; t < length; ++t)
      ids.data<int64_t>()[b * length + t] = std::min(start + t, limit) + offset;
  }
  return ids;
}

Tensor alibi_slopes(int64_t num_heads) {
  MH_CHECK(num_heads > 0, ValueError, "alibi_slopes: num_heads must be positive, got ", num_heads);
  const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  Tensor slopes = Tensor::empty({num_heads});
  for (int64_t h = 0; h < num_heads; ++h) {
    const double exponent =
        h < power ? -8.0 * static_cast<double>(h + 1) / static_cast<double>(power)
                  : -4.0 * static_cast<double>(2 * (h - power) + 1) / static_cast<double>(power);
    slopes.data<float>()[h] = static_cast<float>(std::exp2(exponent));
  }
  return slopes;
}

Tensor relative_buckets(const RelativeBuckets& buckets) {
  const int64_t half = buckets.bidirectional ? buckets.count / 2 : buckets.count, exact = half / 2;
  MH_CHECK(exact >= 1 && exact < buckets.max_distance, ValueError, "relative_buckets: ", buckets.count,
           buckets.bidirectional ? " buckets in both directions" : " buckets",
           " cannot hold distances up to ", buckets.max_distance);
  // In f32, in the order of the published code: a distance must not fall into the bucket beside.
  const auto steps = static_cast<float>(half - exact), first = static_cast<float>(exact);
  const auto range = static_cast<float>(std::log(static_cast<double>(buckets.max_distance) / exact));
  const auto bucket_of = [&](int64_t distance) {
    if (distance < exact) return distance;
    const float octaves = std::log(static_cast<float>(distance) / first) / range;
    return std::min(exact + static_cast<int64_t>(octaves * steps), half - 1);
  };
  std::vector<int64_t> all;
  for (int64_t d = -buckets.max_distance; d <= buckets.max_distance; ++d) {
    const int64_t ahead = buckets.bidirectional ? half + bucket_of(d) : 0;
    all.push_back(d > 0 ? ahead : bucket_of(-d));
  }
  return Tensor::of<int64_t>({std::ssize(all)}, all);
}

RelativeBias::RelativeBias(const RelativeBuckets& buckets, int64_t num_heads, Rng& rng)
    : weight(normal_parameter({buckets.count, num_heads}, 1, rng)), buckets_(relative_buckets(buckets)) {}

Tensor RelativeBias::operator()() const { return transpose(embedding(weight, buckets_), 0, 1); }

}  // namespace multihead::nn
