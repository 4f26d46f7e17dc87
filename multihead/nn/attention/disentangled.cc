#include "multihead/nn/attention/disentangled-inl.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/ops/array/gather.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::nn::detail {
namespace {

// Of [T, H, D] and the vectors [2T - 1, H, D]: what each of the T meets at each distance, [H, T, 2T - 1].
Tensor products(const Tensor& tokens, const Tensor& vectors) {
  return matmul(transpose(tokens, 0, 1), permute(vectors, {1, 2, 0}));
}

}  // namespace

Tensor distance_rows(const DistanceRows& rows, int64_t longest) {
  const int64_t middle = rows.span / 2;
  MH_CHECK(middle >= 2 && rows.max_distance > middle + 1, ValueError, "distance_rows: ", rows.span,
           " rows on either side cannot hold distances up to ", rows.max_distance);
  // In f32, in the order of the published code: a distance must not fall into the row beside.
  const auto half = static_cast<float>(middle), steps = static_cast<float>(middle - 1);
  const float range =
      std::log(static_cast<float>(static_cast<double>(rows.max_distance - 1) / static_cast<double>(middle)));
  std::vector<int64_t> all;
  for (int64_t d = -longest; d <= longest; ++d) {
    int64_t row = d;
    if (std::abs(d) > middle) {
      const float octaves = std::log(static_cast<float>(std::abs(d)) / half) / range;
      const auto distance = middle + static_cast<int64_t>(std::ceil(octaves * steps));
      row = d < 0 ? -distance : distance;
    }
    all.push_back(std::clamp(row + rows.span, int64_t{0}, 2 * rows.span - 1));
  }
  return Tensor::of<int64_t>({std::ssize(all)}, all);
}

Tensor distance_scores(const Tensor& query, const Tensor& key, const Tensor& query_vectors,
                       const Tensor& key_vectors, double scale_by) {
  const int64_t length = query.size(1), spare = (key_vectors.size(0) - 1) / 2 - (length - 1);
  MH_CHECK(spare >= 0, ShapeError, "distance_scores: vectors of the distances up to ",
           (key_vectors.size(0) - 1) / 2, " for ", length, " tokens");
  std::vector<int64_t> places;  // of i - j
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j < length; ++j) places.push_back(length - 1 + i - j);
  }
  const Tensor index = Tensor::of<int64_t>({1, length, length}, places);
  const auto at = [&](const Tensor& tokens, const Tensor& vectors, const Tensor& own_index) {
    const Tensor near = slice(vectors, 0, spare, spare + 2 * length - 1);
    return take_along_axis(products(reshape(tokens, {length, tokens.size(2), tokens.size(3)}), near),
                           own_index, -1);
  };
  const Tensor from_queries = at(query, key_vectors, index),
               from_keys = at(key, query_vectors, transpose(index, 1, 2));
  return reshape(scale(add(from_queries, transpose(from_keys, 1, 2)), scale_by),
                 {1, query.size(2), length, length});
}

}  // namespace multihead::nn::detail
