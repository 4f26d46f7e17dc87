// Checks of arguments by the functions that make masks. Internal to ops.
#pragma once

#include "multihead/ops/attention/masks/mask.h"

namespace multihead::detail {

/// bool and at most [B, H, Tq, Tk].
void check_flags(const char* who, const Tensor& flags);
void check_integers(const char* who, const char* argument, const Tensor& x, int lowest_rank, int highest_rank,
                    const char* expected);
void check_diagonal(const char* who, const Diagonal& diagonal);

/// keep(flags) or drop(flags) for a system that does not broadcast some axes: bit a of `exact` is axis a of
/// [B, H, Tq, Tk].
Mask flag_mask(const Tensor& flags, bool wanted, unsigned exact);

// Elements as a definition reads them, one at a time.
/// Element b of values [B] or [1].
int64_t value_at(const Tensor& values, int64_t b);
/// Element (b, t) of rows [T], [1, T] or [B, T].
int64_t value_at(const Tensor& rows, int64_t b, int64_t t);
/// Element (b, h, i, j) of a tensor that broadcasts to [B, H, Tq, Tk].
double broadcast_at(const Tensor& x, int64_t b, int64_t h, int64_t i, int64_t j);

}  // namespace multihead::detail
