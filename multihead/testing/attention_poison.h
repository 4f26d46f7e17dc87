// Attention with NaN or Inf where nothing may be read.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "multihead/testing/attention_case.h"

namespace multihead::testing {

enum class ExcludedBy { lengths, mask, window, bias };
inline constexpr ExcludedBy kEveryExclusion[] = {ExcludedBy::lengths, ExcludedBy::mask, ExcludedBy::window,
                                                 ExcludedBy::bias};

/// Two calls that differ in excluded keys and values only: `dirty` has a poison there.
struct PoisonedTwins {
  PoisonedTwins(ExcludedBy by, int64_t queries, float poison)
      : options(options_of(by, queries)), clean(options), dirty(options) {
    for (int64_t b = 0; b < 2; ++b) {
      const int64_t seen = by == ExcludedBy::window ? 53 : lengths[b];
      for (int64_t j = 0; j < options.keys; ++j) keep.push_back(j < seen);
      for (int64_t j = seen; j < options.keys; ++j) exclude(b, j, by == ExcludedBy::bias, poison);
    }
    for (AttentionCase* c : {&clean, &dirty}) {
      if (by == ExcludedBy::lengths) c->problem.key_lengths = lengths;
      if (by == ExcludedBy::mask) {
        c->problem.keep = keep.data(), c->problem.keep_strides = {options.keys, 0, 0, 1};
      }
    }
  }
  PoisonedTwins(const PoisonedTwins&) = delete;
  PoisonedTwins& operator=(const PoisonedTwins&) = delete;

  int64_t lengths[2] = {51, 40};
  std::vector<uint8_t> keep;
  CaseOptions options;
  AttentionCase clean, dirty;

 private:
  static CaseOptions options_of(ExcludedBy by, int64_t queries) {
    CaseOptions o;
    o.batch = 2, o.heads = 4, o.kv_heads = 2, o.queries = queries, o.keys = 83;
    o.head_dim = 32, o.value_dim = 48, o.seed = 5 + static_cast<uint32_t>(by);
    if (by == ExcludedBy::window) o.window_right = 0, o.diagonal = 82 - 30 - queries;  // the last sees key 51
    if (by == ExcludedBy::bias) o.bias = Bias::key_only;
    return o;
  }

  void exclude(int64_t b, int64_t key, bool by_bias, float poison) {
    for (int64_t h = 0; h < 2; ++h) {
      dirty.key[static_cast<size_t>(((b * 2 + h) * options.keys + key) * 32 + 2)] = poison;
      dirty.value[static_cast<size_t>(((b * 2 + h) * options.keys + key) * 48 + 3)] = poison;
    }
    for (AttentionCase* c : {&clean, &dirty}) {
      if (by_bias) {
        c->bias[static_cast<size_t>(b * options.keys + key)] = -std::numeric_limits<float>::infinity();
      }
    }
  }
};

}  // namespace multihead::testing
