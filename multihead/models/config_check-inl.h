// Config checks shared by all models.
#pragma once

#include <cmath>
#include <cstdint>

#include "multihead/core/error.h"
#include "multihead/core/memory.h"

namespace multihead::models {

/// A count, bounded so that sums of a few and products of two cannot overflow.
inline void check_count(const char* field, int64_t value) {
  MH_CHECK(value > 0, ValueError, "config: ", field, " must be positive, got ", value);
  MH_CHECK(value <= int64_t{1} << 31, ValueError, "config: ", field, " must be at most 2^31, got ", value);
}

inline void check_probability(const char* field, double value) {
  MH_CHECK(value >= 0 && value < 1, ValueError, "config: ", field, " must be in [0, 1), got ", value);
}

inline void check_positive_number(const char* field, double value) {
  MH_CHECK(value > 0 && std::isfinite(value), ValueError, "config: ", field, " must be positive, got ",
           value);
}

/// Throws ValueError for an impossible number of weights, before allocation.
inline void check_weights(int64_t embeddings, int64_t layer, int64_t layers) {
  constexpr int64_t kMost = int64_t{1} << 42;
  MH_CHECK(embeddings <= kMost && layer <= kMost / layers, ValueError, "config: ", embeddings,
           " weights of embeddings and ", layer, " in each of ", layers, " layers are more than 2^42");
}

/// Throws MemoryError unless this many f32 weights fit into available memory.
inline void check_weight_memory(int64_t weights) {
  check_memory(4.0 * static_cast<double>(weights), concat("model: ", weights, " weights"));
}

}  // namespace multihead::models
