// Disentangled attention (He et al. 2021, DeBERTa, eq. 4): every distance of a key from a query has a vector of its
// own, with which both are compared, besides with each other. Internal to nn and models.
#pragma once

#include <cstdint>

#include "multihead/core/tensor/tensor.h"

namespace multihead::nn::detail {

/// Vectors of distances in a table of 2·span rows: exact up to span / 2 and in logarithmic steps up to max_distance;
/// all beyond share the first or the last row. Query position - key position = 0 is row `span`.
struct DistanceRows {
  int64_t span = 256;
  int64_t max_distance = 512;
};
/// The row of query position - key position = -longest … longest: i64 [2·longest + 1]. Throws ValueError (span below 4,
/// max_distance not above span / 2 + 1).
Tensor distance_rows(const DistanceRows& rows, int64_t longest);

/// What distances add to the scores: scale · (⟨q_i, key_vector(i - j)⟩ + ⟨k_j, query_vector(i - j)⟩).
///
/// Shapes    query, key [1, T, H, D]; query_vectors, key_vectors [2·longest + 1, H, D], of -longest … longest with
///           longest >= T - 1 -> [1, H, T, T]
/// Gradient  all
Tensor distance_scores(const Tensor& query, const Tensor& key, const Tensor& query_vectors,
                       const Tensor& key_vectors, double scale);

}  // namespace multihead::nn::detail
