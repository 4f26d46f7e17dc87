#include "multihead/embed/vector_index.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/best-inl.h"
#include "multihead/kernels/quantized/int8.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

constexpr int64_t kBits = 64;
constexpr int64_t kRowsOfPart = 4096;  // of the index, and between two selections

void to_signs(const float* row, int64_t dim, uint64_t* signs) {
  for (int64_t i = 0; i < dim; ++i) signs[i / kBits] |= static_cast<uint64_t>(row[i] > 0) << (i % kBits);
}

// Inner products of a query with rows to what orders the rows alike.
void to_order(Similarity by, const float* squares, int64_t rows, float* products) {
  if (by == Similarity::cosine) {
    for (int64_t i = 0; i < rows; ++i) products[i] = squares[i] > 0 ? products[i] / std::sqrt(squares[i]) : 0;
  } else if (by == Similarity::euclidean) {
    for (int64_t i = 0; i < rows; ++i) products[i] = 2 * products[i] - squares[i];
  }
}

}  // namespace

VectorIndex::VectorIndex(const Tensor& rows, IndexKind kind) : kind_(kind) {
  MH_CHECK(rows.rank() == 2 && rows.dtype() == Dtype::f32, ShapeError,
           "VectorIndex: rows must be [n, dim] f32, got ", rows.shape(), " ", rows.dtype());
  detail::check_finite("rows", rows);
  const Tensor x = rows.contiguous();
  size_ = x.size(0);
  dim_ = x.size(1);
  MH_CHECK(dim_ <= kernels::kLongestInt8Sum, ValueError, "VectorIndex: rows must have at most ",
           kernels::kLongestInt8Sum, " columns, got ", dim_);
  const int64_t words = (dim_ + kBits - 1) / kBits;
  parts_.resize(static_cast<size_t>((size_ + kRowsOfPart - 1) / kRowsOfPart));
  parallel_for(std::ssize(parts_), [&](int64_t part, int) {
    const int64_t begin = part * kRowsOfPart, end = std::min(begin + kRowsOfPart, size_);
    parts_[static_cast<size_t>(part)] = {slice(x, 0, begin, end), nn::WeightDtype::int8};
  });
  squares_.resize(static_cast<size_t>(size_));
  parallel_for(size_, [&](int64_t row, int) {
    int64_t sum = 0;
    each_code(row, [&](int64_t, int8_t code) { sum += int64_t{code} * code; });
    const double scale = scale_of(row);
    squares_[static_cast<size_t>(row)] = static_cast<float>(scale * scale * static_cast<double>(sum));
  });
  for (int64_t row = 0; row < size_; ++row) {
    MH_CHECK(std::isfinite(squares_[static_cast<size_t>(row)]), ValueError, "VectorIndex: row ", row,
             "'s numbers are too large for f32, in which the sum of their squares is infinite");
  }
  if (kind == IndexKind::int8) return;
  signs_.resize(static_cast<size_t>(size_ * words));
  parallel_for(
      size_, [&](int64_t r, int) { to_signs(x.data<float>() + r * dim_, dim_, signs_.data() + r * words); });
}

void VectorIndex::scan_bytes(const Tensor& queries, Matches& best, int64_t count, Similarity by) const {
  constexpr int64_t kQueries = 512;  // at a time: their scores take 8 MB
  for (int64_t first = 0; first < queries.size(0); first += kQueries) {
    const int64_t last = std::min(first + kQueries, queries.size(0));
    Matches found(static_cast<size_t>(last - first));
    for (size_t part = 0; part < parts_.size(); ++part) {
      const Tensor scores = parts_[part](slice(queries, 0, first, last), {});
      const int64_t begin = static_cast<int64_t>(part) * kRowsOfPart, rows = scores.size(1);
      parallel_for(last - first, [&](int64_t q, int) {
        to_order(by, squares_.data() + begin, rows, scores.data<float>() + q * rows);
      });
      detail::add_scores(found, scores, begin, count);
    }
    std::move(found.begin(), found.end(), best.begin() + first);
  }
}

void VectorIndex::scan_signs(const float* query, std::vector<Match>& found, int64_t count) const {
  const int64_t words = (dim_ + kBits - 1) / kBits;
  std::vector<uint64_t> signs(static_cast<size_t>(words));
  to_signs(query, dim_, signs.data());
  for (int64_t row = 0; row < size_; ++row) {
    int64_t unlike = 0;
    const uint64_t* own = signs_.data() + row * words;
    for (int64_t w = 0; w < words; ++w) unlike += std::popcount(signs[static_cast<size_t>(w)] ^ own[w]);
    found.push_back({row, static_cast<float>(-unlike)});
    if (row % kRowsOfPart == kRowsOfPart - 1) detail::keep_best(found, count);
  }
  detail::keep_best(found, count);
}

template <class Use>
void VectorIndex::each_code(int64_t row, Use&& use) const {
  using namespace kernels::int8;
  const nn::PackedLinear& part = parts_[static_cast<size_t>(row / kRowsOfPart)];
  const PackedInt8 packed(part.packed().data<int32_t>(), part.out_features(), dim_);
  const int64_t own = row % kRowsOfPart, first = own / kPanelColumns * kPanelColumns;
  const int64_t width = std::min(kPanelColumns, padded_columns(part.out_features()) - first);
  const int8_t* codes = packed.weights + (first * groups_of(dim_) + own - first) * kGroup;
  for (int64_t i = 0; i < dim_; ++i) use(i, codes[i / kGroup * width * kGroup + i % kGroup]);
}

float VectorIndex::scale_of(int64_t row) const {
  const nn::PackedLinear& part = parts_[static_cast<size_t>(row / kRowsOfPart)];
  return kernels::int8::PackedInt8(part.packed().data<int32_t>(), part.out_features(), dim_)
      .scales[row % kRowsOfPart];
}

// Sums in the order of the columns, so that they do not depend on the machine.
float VectorIndex::score(const float* query, double square, int64_t row, Similarity by) const {
  float product = 0;
  each_code(row, [&](int64_t i, int8_t code) { product += query[i] * static_cast<float>(code); });
  product *= scale_of(row);
  MH_CHECK(std::isfinite(product), ValueError, "VectorIndex: the product of a query and row ", row,
           " is not finite: their numbers are too large for f32");
  return static_cast<float>(detail::score_of(by, product, square, squares_[static_cast<size_t>(row)]));
}

std::vector<std::vector<Match>> VectorIndex::nearest(const Tensor& queries, int64_t count, Similarity by,
                                                     int64_t rescored) const {
  MH_CHECK(queries.rank() == 2 && queries.size(1) == dim_ && queries.dtype() == Dtype::f32, ShapeError,
           "VectorIndex: queries must be [q, ", dim_, "] f32, got ", queries.shape(), " ", queries.dtype());
  detail::check_count(count);
  MH_CHECK(rescored > 0, ValueError, "VectorIndex: rescored must be positive, got ", rescored);
  MH_CHECK(by != Similarity::manhattan, ValueError,
           "VectorIndex: similarity manhattan is not supported; supported are cosine, dot and euclidean");
  detail::check_finite("queries", queries);
  const NoTape silent;
  const Tensor x = queries.contiguous();
  const int64_t candidates = std::min(count, size()) * std::min(rescored, size());
  Matches best(static_cast<size_t>(x.size(0)));
  if (kind_ == IndexKind::int8) scan_bytes(x, best, candidates, by);
  parallel_for(x.size(0), [&](int64_t q, int) {
    std::vector<Match>& list = best[static_cast<size_t>(q)];
    const float* query = x.data<float>() + q * dim_;
    if (kind_ == IndexKind::binary) scan_signs(query, list, candidates);
    double square = 0;
    for (int64_t i = 0; i < dim_; ++i) square += static_cast<double>(query[i]) * query[i];
    for (Match& match : list) match.score = score(query, square, match.row, by);
    detail::keep_best(list, count);
  });
  return best;
}

}  // namespace multihead::embed
