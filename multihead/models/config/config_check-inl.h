// Config checks shared by all models.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/models/config/config_fields.h"
#include "multihead/nn/positions.h"

namespace multihead::models {

/// Bounded so that sums of a few and products of two cannot overflow; files are, more narrowly, by the range.
inline void check_range(const char* field, int64_t value, const io::IntegerRange& range) {
  MH_CHECK(value >= range.min, ValueError, "config: ", field,
           range.min == 1 ? " must be positive, got " : " must not be negative, got ", value);
  MH_CHECK(value <= int64_t{1} << 31, ValueError, "config: ", field, " must be at most 2^31, got ", value);
}

inline void check_range(const char* field, double value, const io::NumberRange& range) {
  const std::string expected = std::isinf(range.max) ? "positive"
                                                     : concat("in ", range.exclude_min ? "(" : "[", range.min,
                                                              ", ", range.max, range.exclude_max ? ")" : "]");
  MH_CHECK(range.holds(value) && std::isfinite(value), ValueError, "config: ", field, " must be ", expected,
           ", got ", value);
}

/// Throws ValueError for the first field outside its range in the table; `derived` may be 0 besides.
template <class Config>
void check_ranges(const Config& config, std::initializer_list<int64_t Config::*> derived) {
  for (const ConfigField<Config>& field : config_fields<Config>()) {
    if (const auto* count = std::get_if<int64_t Config::*>(&field.member)) {
      const bool open = config.**count == 0 && std::ranges::count(derived, *count) > 0;
      if (!open) check_range(field.name, config.**count, field.range.integer);
    } else if (const auto* number = std::get_if<double Config::*>(&field.member)) {
      check_range(field.name, config.**number, field.range.number);
    }
  }
}

/// Throws ValueError for an impossible number of weights, before allocation.
inline void check_weights(int64_t embeddings, int64_t layer, int64_t layers) {
  constexpr int64_t kMost = int64_t{1} << 42;
  MH_CHECK(embeddings <= kMost && layer <= kMost / layers, ValueError, "config: ", embeddings,
           " weights of embeddings and ", layer, " in each of ", layers, " layers are more than 2^42");
}

/// Throws ValueError unless there are no buckets or they hold the distances.
inline void check_buckets(int64_t buckets, int64_t distance, bool bidirectional) {
  if (buckets == 0) return;
  MH_CHECK(std::max(buckets, distance) <= kBuckets.max, ValueError, "config: relative_buckets ", buckets,
           " and relative_distance ", distance, " must be at most ", kBuckets.max);
  nn::relative_buckets({buckets, distance, bidirectional});
}

/// Throws MemoryError unless this many f32 weights fit into available memory.
inline void check_weight_memory(int64_t weights) {
  check_memory(4.0 * static_cast<double>(weights), concat("model: ", weights, " weights"));
}

}  // namespace multihead::models
