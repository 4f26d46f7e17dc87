#include "multihead/embed/vector_index.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/best-inl.h"

namespace multihead::embed {
namespace {

constexpr int64_t kBits = 64;

// The factor that turns codes, of -127 to 127, into numbers.
float to_codes(const float* row, int64_t dim, int8_t* codes) {
  float most = 0;
  for (int64_t i = 0; i < dim; ++i) most = std::max(most, std::fabs(row[i]));
  const float scale = most / 127;
  for (int64_t i = 0; i < dim; ++i) {
    codes[i] = scale > 0 ? static_cast<int8_t>(std::clamp(std::nearbyint(row[i] / scale), -127.0F, 127.0F))
                         : int8_t{0};
  }
  return scale;
}

void to_signs(const float* row, int64_t dim, uint64_t* signs) {
  for (int64_t i = 0; i < dim; ++i) signs[i / kBits] |= static_cast<uint64_t>(row[i] > 0) << (i % kBits);
}

// Sixteen sums side by side, which compilers keep in vectors.
int32_t dot_of_codes(const int8_t* a, const int8_t* b, int64_t dim) {
  constexpr int64_t kLanes = 16;
  int32_t sums[kLanes] = {}, sum = 0;
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<int16_t>(a[i + lane]) * static_cast<int16_t>(b[i + lane]);
    }
  }
  for (; i < dim; ++i) sum += a[i] * b[i];
  for (const int32_t lane : sums) sum += lane;
  return sum;
}

}  // namespace

VectorIndex::VectorIndex(const Tensor& rows, IndexKind kind) : kind_(kind) {
  MH_CHECK(rows.rank() == 2 && rows.dtype() == Dtype::f32, ShapeError,
           "VectorIndex: rows must be [n, dim] f32, got ", rows.shape(), " ", rows.dtype());
  detail::check_finite("rows", rows);
  const Tensor x = rows.contiguous();
  dim_ = x.size(1);
  const int64_t words = (dim_ + kBits - 1) / kBits, n = x.size(0);
  codes_.resize(static_cast<size_t>(n * dim_));
  scales_.resize(static_cast<size_t>(n));
  if (kind == IndexKind::binary) signs_.resize(static_cast<size_t>(n * words));
  parallel_for(n, [&](int64_t r, int) {
    const float* row = x.data<float>() + r * dim_;
    scales_[static_cast<size_t>(r)] = to_codes(row, dim_, codes_.data() + r * dim_);
    if (kind == IndexKind::binary) to_signs(row, dim_, signs_.data() + r * words);
  });
}

// Appends the `count` best rows by what the kind compares.
void VectorIndex::scan(const float* query, std::vector<Match>& found, int64_t count) const {
  constexpr int64_t kRows = 4096;  // between two selections
  const int64_t words = (dim_ + kBits - 1) / kBits, n = size();
  std::vector<int8_t> codes(static_cast<size_t>(dim_));
  std::vector<uint64_t> signs(static_cast<size_t>(words));
  to_codes(query, dim_, codes.data());
  to_signs(query, dim_, signs.data());
  for (int64_t row = 0; row < n; ++row) {
    float like = 0;
    if (kind_ == IndexKind::int8) {
      like = scales_[static_cast<size_t>(row)] *
             static_cast<float>(dot_of_codes(codes.data(), codes_.data() + row * dim_, dim_));
    } else {
      int64_t unlike = 0;
      const uint64_t* own = signs_.data() + row * words;
      for (int64_t w = 0; w < words; ++w) unlike += std::popcount(signs[static_cast<size_t>(w)] ^ own[w]);
      like = static_cast<float>(-unlike);
    }
    found.push_back({row, like});
    if (row % kRows == kRows - 1) detail::keep_best(found, count);
  }
  detail::keep_best(found, count);
}

float VectorIndex::score(const float* query, int64_t row) const {
  const int8_t* codes = codes_.data() + row * dim_;
  float sum = 0;
  for (int64_t i = 0; i < dim_; ++i) sum += query[i] * static_cast<float>(codes[i]);
  return sum * scales_[static_cast<size_t>(row)];
}

std::vector<std::vector<Match>> VectorIndex::nearest(const Tensor& queries, int64_t count,
                                                     int64_t rescored) const {
  MH_CHECK(queries.rank() == 2 && queries.size(1) == dim_ && queries.dtype() == Dtype::f32, ShapeError,
           "VectorIndex: queries must be [q, ", dim_, "] f32, got ", queries.shape(), " ", queries.dtype());
  detail::check_count(count);
  MH_CHECK(rescored > 0, ValueError, "VectorIndex: rescored must be positive, got ", rescored);
  detail::check_finite("queries", queries);
  const Tensor x = queries.contiguous();
  std::vector<std::vector<Match>> best(static_cast<size_t>(x.size(0)));
  parallel_for(x.size(0), [&](int64_t q, int) {
    std::vector<Match>& list = best[static_cast<size_t>(q)];
    const float* query = x.data<float>() + q * dim_;
    scan(query, list, std::min(count, size()) * std::min(rescored, size()));
    for (Match& match : list) match.score = score(query, match.row);
    detail::keep_best(list, count);
  });
  return best;
}

}  // namespace multihead::embed
