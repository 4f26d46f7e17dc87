// One block of scores and the registers that instructions write. Included by loops.cc alone.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/ops/attention/program/program-inl.h"

namespace multihead::program {

#define MH_INLINE [[gnu::always_inline]] inline

// A block is 8 keys of 64 queries: long enough to hide the dispatch, short enough that registers stay in L1
// (4 keys: a cubic polynomial costs 1.15 times as much forward; 16: 1.03)
constexpr int kQueries = 64, kKeys = 8, kBlock = kQueries * kKeys;

template <class T>
struct Registers {
  std::vector<T> values, slopes;  ///< slopes: gradients, in the backward pass
  std::vector<int32_t> integers;
  std::vector<int64_t> first;
  const int32_t* slots = nullptr;  ///< where each register lives; null: at its own number
  std::vector<T> kept;             ///< gradients of once-computed registers, see restore_once()
  T* value(int32_t i) { return values.data() + at(i); }
  T* slope(int32_t i) { return slopes.data() + at(i); }
  int32_t* integer(int32_t i) { return integers.data() + at(i); }
  size_t at(int32_t i) const { return static_cast<size_t>(slots ? slots[i] : i) * kBlock; }
  // A backward pass reads every value again, so that none can share its memory.
  void fit(const ScoreProgram& program, bool in_reverse) {
    slots = in_reverse ? nullptr : program.slots().data();
    const auto count = in_reverse ? program.code().size() : static_cast<size_t>(program.slot_count());
    if (integers.size() < count * kBlock) {
      values.resize(count * kBlock);
      integers.resize(count * kBlock);
    }
    if (in_reverse && slopes.size() < count * kBlock) slopes.resize(count * kBlock);
  }
};

template <class T>
Registers<T>& registers() {
  thread_local PerThread<Registers<T>> instance;
  return *instance;
}

struct Place {
  int32_t batch, head, query, key;
  int32_t count, rows;  ///< queries and keys that exist in this block
  TilePlace tile;
  const int64_t* first;  ///< of ScoreProgram::find_first(), or null: gathers read their index register
};

template <class F>
MH_INLINE void each(F&& f) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (int i = 0; i < kBlock; ++i) f(i);
}

// The same for one row of it.
template <class F>
MH_INLINE void each_query(F&& f) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (int i = 0; i < kQueries; ++i) f(i);
}

}  // namespace multihead::program
