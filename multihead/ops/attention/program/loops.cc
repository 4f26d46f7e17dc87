// The loops that run a program on blocks of scores, compiled once per instruction set.
#include <algorithm>

#include "multihead/ops/attention/program/integers-inl.h"
#include "multihead/ops/attention/program/program-inl.h"
#include "multihead/ops/attention/program/reverse-inl.h"

namespace multihead::program {
namespace {

// The same loops for each instruction set that is built (MULTIHEAD_TARGETS): lists of instructions forwards and back, a
// function each. No FMA contraction: all give the same bits.
#if defined(__x86_64__) && defined(__GNUC__)
#define MH_AVX2 __attribute__((target("avx2")))
#if defined(__clang__)
#define MH_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw"), min_vector_width(512)))
#else
#define MH_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")))
#endif
#else
#define MULTIHEAD_NO_AVX2 1
#define MULTIHEAD_NO_AVX3 1
#endif

template <class T>
MH_INLINE void run_list(const ScoreProgram& program, const std::vector<int32_t>& list, Registers<T>& r,
                        const Place& at) {
  for (const int32_t index : list) {
    if (is_integer(program.code()[static_cast<size_t>(index)].op)) {
      run_integer(program, index, r, at);
    } else {
      run_number(program, index, r, at);
    }
  }
}

template <class T, class U>
MH_INLINE void reverse_list(const ScoreProgram& program, const std::vector<int32_t>& list, Registers<T>& r,
                            const Place& at, const T* seed, U* sums) {
  for (size_t n = list.size(); n-- > 0;) {
    if (program.is_active(list[n])) reverse_number(program, list[n], r, at, seed, sums);
  }
}

template <class T>
using Run = void (*)(const ScoreProgram&, const std::vector<int32_t>&, Registers<T>&, const Place&);
template <class T, class U>
using Reverse = void (*)(const ScoreProgram&, const std::vector<int32_t>&, Registers<T>&, const Place&,
                         const T* seed, U* sums);

template <class T>
void run_baseline(const ScoreProgram& p, const std::vector<int32_t>& list, Registers<T>& r, const Place& at) {
  run_list(p, list, r, at);
}
template <class T, class U>
void reverse_baseline(const ScoreProgram& p, const std::vector<int32_t>& list, Registers<T>& r,
                      const Place& at, const T* seed, U* sums) {
  reverse_list(p, list, r, at, seed, sums);
}
#ifndef MULTIHEAD_NO_AVX2
template <class T>
MH_AVX2 void run_avx2(const ScoreProgram& p, const std::vector<int32_t>& list, Registers<T>& r,
                      const Place& at) {
  run_list(p, list, r, at);
}
template <class T, class U>
MH_AVX2 void reverse_avx2(const ScoreProgram& p, const std::vector<int32_t>& list, Registers<T>& r,
                          const Place& at, const T* seed, U* sums) {
  reverse_list(p, list, r, at, seed, sums);
}
#endif
#ifndef MULTIHEAD_NO_AVX3
template <class T>
MH_AVX512 void run_avx512(const ScoreProgram& p, const std::vector<int32_t>& list, Registers<T>& r,
                          const Place& at) {
  run_list(p, list, r, at);
}
template <class T, class U>
MH_AVX512 void reverse_avx512(const ScoreProgram& p, const std::vector<int32_t>& list, Registers<T>& r,
                              const Place& at, const T* seed, U* sums) {
  reverse_list(p, list, r, at, seed, sums);
}
#endif

template <class T>
Run<T> run_of_isa() {
  switch (kernels::current_isa()) {
#ifndef MULTIHEAD_NO_AVX3
    case kernels::Isa::avx512:
      return run_avx512<T>;
#endif
#ifndef MULTIHEAD_NO_AVX2
    case kernels::Isa::avx2:
      return run_avx2<T>;
#endif
    default:
      return run_baseline<T>;
  }
}
template <class T, class U>
Reverse<T, U> reverse_of_isa() {
  switch (kernels::current_isa()) {
#ifndef MULTIHEAD_NO_AVX3
    case kernels::Isa::avx512:
      return reverse_avx512<T, U>;
#endif
#ifndef MULTIHEAD_NO_AVX2
    case kernels::Isa::avx2:
      return reverse_avx2<T, U>;
#endif
    default:
      return reverse_baseline<T, U>;
  }
}

// T: of the registers; U: of the tile, which may be narrower.
template <class T, class U>
MH_INLINE void load_block(const U* scores, int64_t stride, const Place& at, T* x) {
  for (int k = 0; k < at.rows; ++k) {
    const U* row = scores + k * stride;
    if (at.count == kQueries) {
      for (int i = 0; i < kQueries; ++i) x[k * kQueries + i] = static_cast<T>(row[i]);
    } else {
      for (int i = 0; i < at.count; ++i) x[k * kQueries + i] = static_cast<T>(row[i]);
    }
  }
  if (at.rows == kKeys && at.count == kQueries) return;
  for (int i = 0; i < kBlock; ++i) {  // a block cut short computes on zeros
    if (i % kQueries >= at.count || i / kQueries >= at.rows) x[i] = 0;
  }
}

template <class T, class U>
MH_INLINE void store_block(const T* y, const Place& at, U* scores, int64_t stride) {
  for (int k = 0; k < at.rows; ++k) {
    U* row = scores + k * stride;
    if (at.count == kQueries) {
      for (int i = 0; i < kQueries; ++i) row[i] = static_cast<U>(y[k * kQueries + i]);
    } else {
      for (int i = 0; i < at.count; ++i) row[i] = static_cast<U>(y[k * kQueries + i]);
    }
  }
}

// Runs the program on every block of the tile: load(at, keys, queries), the instructions, store(at, keys,
// queries); begin(at, lists) and end(at, lists) around the blocks of the same queries.
template <class T, class Tile, class Begin, class Load, class Store, class End>
MH_INLINE void for_each_block(const ScoreProgram& program, const Tile& tile, int64_t offset, Registers<T>& r,
                              Begin&& begin, Load&& load, Store&& store, End&& end) {
  const TilePlace place{tile.batch,     tile.head,        tile.query_begin + offset,
                        tile.key_begin, tile.query_count, tile.key_count,
                        offset};
  Place at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head), 0, 0, 0, 0, place, nullptr};
  if (program.find_first(place, r.first)) at.first = r.first.data();
  const ScoreProgram::Lists& lists = program.lists(at.first != nullptr);
  const Run<T> run = run_of_isa<T>();
  for (int64_t q = 0; q < tile.query_count; q += kQueries) {
    at.query = static_cast<int32_t>(place.query + q);
    at.count = static_cast<int32_t>(std::min<int64_t>(kQueries, tile.query_count - q));
    at.rows = static_cast<int32_t>(std::min<int64_t>(kKeys, tile.key_count));
    at.key = static_cast<int32_t>(tile.key_begin);
    run(program, lists.once, r, at);
    begin(lists);
    for (int64_t k = 0; k < tile.key_count; k += kKeys) {
      at.key = static_cast<int32_t>(tile.key_begin + k);
      at.rows = static_cast<int32_t>(std::min<int64_t>(kKeys, tile.key_count - k));
      load(at, k, q);
      run(program, lists.per_key, r, at);
      store(at, lists, k, q);
    }
    at.key = static_cast<int32_t>(tile.key_begin);
    at.rows = kKeys;
    end(at, lists);
  }
}

int32_t score_register(const ScoreProgram& program) {
  int32_t score = -1;  // instructions are unique, so there is one at most
  for (size_t i = 0; i < program.code().size(); ++i) {
    if (program.code()[i].op == Op::score) score = static_cast<int32_t>(i);
  }
  return score;
}

template <class T, class U>
void apply_tile(const ScoreProgram& program, const kernels::ScoreTile& tile, int64_t offset) {
  const auto size = static_cast<int32_t>(program.code().size());
  Registers<T>& r = registers<T>();
  r.fit(program, false);
  U* scores = static_cast<U*>(tile.scores);
  const int32_t score = score_register(program);
  const auto load = [&](const Place& at, int64_t k, int64_t q) __attribute__((always_inline)) {
    if (score >= 0) load_block(scores + k * tile.stride + q, tile.stride, at, r.value(score));
  };
  const auto store = [&](const Place& at, const ScoreProgram::Lists&, int64_t k, int64_t q)
      __attribute__((always_inline)) {
    store_block(r.value(size - 1), at, scores + k * tile.stride + q, tile.stride);
  };
  for_each_block(
      program, tile, offset, r, [](const ScoreProgram::Lists&) {}, load, store,
      [](const Place&, const ScoreProgram::Lists&) {});
}

template <class T>
MH_INLINE void clear(const ScoreProgram& program, const std::vector<int32_t>& list, Registers<T>& r) {
  for (const int32_t i : list) {
    if (program.is_active(i)) std::fill_n(r.slope(i), kBlock, T(0));
  }
}

// Pairs whose own gradient is zero must add nothing to registers that serve all keys: zero times infinity is
// NaN.
// save = true puts their gradients aside, false brings back those of elements whose seed is zero.
template <class T>
MH_INLINE void restore_once(const ScoreProgram& program, const std::vector<int32_t>& once, Registers<T>& r,
                            const T* seed, bool save) {
  size_t count = 0;
  for (const int32_t i : once) count += program.is_active(i) ? 1 : 0;
  if (save) r.kept.resize(count * kBlock);
  T* kept = r.kept.data();
  for (const int32_t index : once) {
    if (!program.is_active(index)) continue;
    T* d = r.slope(index);
    if (save) {
      std::copy_n(d, kBlock, kept);
    } else {
      each([&](int i) { d[i] = seed[i] == 0 ? kept[i] : d[i]; });
    }
    kept += kBlock;
  }
}

// Runs forwards and back. Without `sums`: the tile takes the results, d_scores their derivatives. With: the
// tile stays, d_scores come as gradients of the results and leave as gradients of the scores.
template <class T, class U>
void reverse_tile(const ScoreProgram& program, const kernels::ScoreTile& tile, int64_t offset, U* d_scores,
                  U* sums) {
  const auto result = static_cast<int32_t>(program.code().size()) - 1;
  Registers<T>& r = registers<T>();
  r.fit(program, true);
  U* scores = static_cast<U*>(tile.scores);
  const int32_t score = score_register(program);
  const bool active = program.is_active(result);
  const Reverse<T, U> reverse = reverse_of_isa<T, U>();
  alignas(64) T seed[kBlock], zero[kBlock] = {};
  const auto begin = [&](const ScoreProgram::Lists& lists) { clear(program, lists.once, r); };
  const auto load = [&](const Place& at, int64_t k, int64_t q) __attribute__((always_inline)) {
    if (score >= 0) load_block(scores + k * tile.stride + q, tile.stride, at, r.value(score));
  };
  const auto store = [&](const Place& at, const ScoreProgram::Lists& lists, int64_t k, int64_t q)
      __attribute__((always_inline)) {
    const int64_t first = k * tile.stride + q;
    clear(program, lists.per_key, r);
    if (score >= 0) std::fill_n(r.slope(score), kBlock, T(0));
    if (sums) {
      load_block(d_scores + first, tile.stride, at, seed);
      restore_once(program, lists.once, r, seed, true);
    } else {
      store_block(r.value(result), at, scores + first, tile.stride);
      std::fill_n(seed, kBlock, T(1));
    }
    if (active) {
      T* d = r.slope(result);
      each([&](int i) { d[i] += seed[i]; });
      reverse(program, lists.per_key, r, at, sums ? seed : nullptr, sums);
    }
    const T* d = score >= 0 ? r.slope(score) : zero;
    if (sums) {
      restore_once(program, lists.once, r, seed, false);
      each([&](int i) { seed[i] = seed[i] == 0 ? T(0) : d[i]; });
      d = seed;
    }
    store_block(d, at, d_scores + first, tile.stride);
  };
  const auto end = [&](const Place& at, const ScoreProgram::Lists& lists) {
    if (sums) reverse(program, lists.once, r, at, static_cast<const T*>(nullptr), sums);
  };
  for_each_block(program, tile, offset, r, begin, load, store, end);
}

template <class T>
void fill_tile(const ScoreProgram& program, const kernels::KeepTile& tile, int64_t offset) {
  const auto size = static_cast<int32_t>(program.code().size());
  Registers<T>& r = registers<T>();
  r.fit(program, false);
  const auto store = [&](const Place& at, const ScoreProgram::Lists&, int64_t k, int64_t q)
      __attribute__((always_inline)) {
    const int32_t* y = r.integer(size - 1);
    for (int row = 0; row < at.rows; ++row, y += kQueries) {
      uint8_t* keep = tile.keep + (k + row) * tile.stride + q;
      if (at.count == kQueries) {
        for (int i = 0; i < kQueries; ++i) keep[i] = y[i] != 0;
      } else {
        for (int i = 0; i < at.count; ++i) keep[i] = y[i] != 0;
      }
    }
  };
  for_each_block(
      program, tile, offset, r, [](const ScoreProgram::Lists&) {}, [](const Place&, int64_t, int64_t) {},
      store, [](const Place&, const ScoreProgram::Lists&) {});
}

// A program with numbers wider than f32 runs in f64 wherever it is called from.
template <class T>
void run_reverse(const ScoreProgram& p, const kernels::ScoreTile& t, int64_t offset, T* d, T* sums) {
  p.is_wide() ? reverse_tile<double>(p, t, offset, d, sums) : reverse_tile<T>(p, t, offset, d, sums);
}

}  // namespace

template <class T>
void ScoreProgram::apply(const kernels::ScoreTile& tile, int64_t offset, T* derivative) const {
  if (derivative != nullptr) return run_reverse(*this, tile, offset, derivative, static_cast<T*>(nullptr));
  is_wide() ? apply_tile<double, T>(*this, tile, offset) : apply_tile<T, T>(*this, tile, offset);
}
template void ScoreProgram::apply(const kernels::ScoreTile&, int64_t, float*) const;
template void ScoreProgram::apply(const kernels::ScoreTile&, int64_t, double*) const;

template <class T>
void ScoreProgram::backward(const kernels::ScoreTile& tile, int64_t offset, T* d_scores, T* sums) const {
  run_reverse(*this, tile, offset, d_scores, sums);
}
template void ScoreProgram::backward(const kernels::ScoreTile&, int64_t, float*, float*) const;
template void ScoreProgram::backward(const kernels::ScoreTile&, int64_t, double*, double*) const;

void ScoreProgram::fill(const kernels::KeepTile& tile, int64_t offset) const {
  is_wide() ? fill_tile<double>(*this, tile, offset) : fill_tile<float>(*this, tile, offset);
}

}  // namespace multihead::program
