// Between the entry points and the SIMD kernels of attention. Internal.
#pragma once

#include <vector>

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/block/forward_call-inl.h"

namespace multihead::kernels {

/// Every sample has the same rows and intervals.
bool samples_are_alike(const AttentionProblem& p);

/// The call as the engines take it.
ForwardCall make_forward_call(const AttentionProblem& p, const ScoreTerms& terms, const AttentionInput& in,
                              const AttentionOutput& out);
/// AMX tiles or pairs of bf16 if the CPU and the dtype support them; never with a relative key.
void choose_engine(ForwardCall& call);
/// Whether key and value blocks are copied before use.
void decide_copies(ForwardCall& call);
/// Tiles per task such that there are tasks enough for the threads; fills `tasks`, of which the call has
/// `copies` sets (a plan lists one sample and head where all are alike).
int64_t choose_tiles(const ForwardCall& call, int threads, std::vector<AttentionTask>& tasks,
                     int64_t copies = 1);
/// Whether rows are so few that the keys have to be split as well.
bool choose_split(const AttentionProblem& p, int threads, int64_t tasks);

/// bf16 and int8 without SIMD kernels.
void reference_f32_forward(const ForwardCall& call);
void reference_f32_backward(const BackwardCall& call);

void run_forward(ForwardCall call);
/// By the specification: rows that run_forward left not finite because a sum of finite values was too large.
void recompute_overflow(const ForwardCall& call);
/// Overwrites the gradients of one key head and its query heads by the specification, which touches nothing
/// that is excluded. Those of the score terms stay, but the tables' are added to where they are given.
void recompute_gradients(const BackwardCall& call, int64_t b, int64_t kv, float* d_relative_key,
                         float* d_relative_value);

void run_backward(BackwardCall call);

/// Either pass on tiles whatever the CPU, without relative key: bf16 in one part, f32 in those of
/// `precision`. The entry points come here with TileUnit::amx, tests with the loops. Needs AVX-512.
void attention_forward_on_tiles(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                const AttentionOutput& out, MatmulPrecision precision, TileUnit unit);
void attention_backward_on_tiles(const AttentionProblem& p, const ScoreTerms& t, const AttentionInput& in,
                                 const AttentionGradient& g, MatmulPrecision precision, TileUnit unit);

}  // namespace multihead::kernels
