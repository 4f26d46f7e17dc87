// How many rows the forward pass in f32 takes together. Internal.
#pragma once

#include "multihead/kernels/attention/schedule-inl.h"

namespace multihead::kernels {

/// Rows of a task's tiles: 16 if those together see far fewer keys than 64 do, in the blocks of a mask; else 64. A row's
/// bits do not depend on it. One key block of one tile stands for the task (16x16 blocks, an eighth of them seen: .6).
int tile_height(const AttentionProblem& p, const AttentionTask& task);

}  // namespace multihead::kernels
