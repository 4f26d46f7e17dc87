// Problems that several tests of attention share.
#pragma once

#include <cstdint>
#include <string>

#include "multihead/core/error.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/testing/attention_case.h"

namespace multihead::testing {

inline std::string describe(const CaseOptions& o) {
  return concat("B", o.batch, " H", o.heads, "/", o.kv_heads, " Tq", o.queries, " Tk", o.keys, " D",
                o.head_dim, "/", o.value_dim, " causal", o.causal, " diag", o.diagonal, "/", o.diagonals,
                " win", o.window_left, ",", o.window_right, " len", o.key_lengths, o.query_lengths,
                o.intervals, " ragged", o.ragged, " keep", static_cast<int>(o.keep), " fn", o.mask_function,
                " bias", static_cast<int>(o.bias), " rel", o.relative_bias, " alibi", o.alibi, " score",
                o.score_function, " cap", o.softcap, " drop", o.dropout, " relkey", o.relative_key,
                o.relative_key_shared, " dlse", o.lse_gradient, " seed", o.seed);
}

inline constexpr kernels::MatmulPrecision kTilePrecisions[] = {kernels::MatmulPrecision::high,
                                                               kernels::MatmulPrecision::medium,
                                                               kernels::MatmulPrecision::highest_tiles};

// One of the problems that tiles are tried on, the third of the lengths of keys being `third_keys`.
inline CaseOptions tile_options(uint32_t seed, int64_t third_keys) {
  CaseOptions o;
  o.seed = seed, o.batch = 2, o.kv_heads = 2, o.heads = seed % 3 == 0 ? 2 : 6;
  const int64_t queries[] = {1, 3, 67, 130}, keys[] = {97, 300, third_keys, 31},
                dims[] = {16, 31, 40, 64, 80, 1, 128};
  o.queries = queries[seed % 4], o.keys = keys[seed / 2 % 4], o.head_dim = dims[seed % 7];
  o.value_dim = dims[seed / 2 % 7], o.causal = seed % 2 == 0;
  if (seed % 5 == 0) o.window_left = 71;
  if (seed % 7 == 0) o.alibi = true, o.softcap = 5;
  if (seed % 8 == 0) o.keep = Keep::per_sample;
  if (seed % 9 == 0) o.bias = Bias::full;
  if (seed % 10 == 1) o.score_function = true, o.mask_function = true;
  if (seed % 11 == 0) o.dropout = 0.25;
  if (seed % 4 == 1) o.layout = Layout::bthd;
  if (seed % 6 == 1) o.key_lengths = true;
  if (seed % 13 == 0) o.query_lengths = o.intervals = true;
  return o;
}

}  // namespace multihead::testing
