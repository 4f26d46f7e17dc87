// The loops that run a program on blocks of scores, compiled once per instruction set.
#include <algorithm>

#include "python/src/score_program.h"
#include "python/src/score_program_integers.h"
#include "python/src/score_program_numbers.h"

namespace multihead::python {
namespace {

template <bool kDerivative, class T>
MH_INLINE void run(const ScoreProgram& program, const std::vector<int32_t>& list, Registers<T>& r,
                   const Place& at) {
  for (const int32_t index : list) {
    if (is_integer(program.code()[static_cast<size_t>(index)].op)) {
      run_integer(program, index, r, at);
    } else {
      run_number<kDerivative>(program, index, r, at);
    }
  }
}

template <class T>
MH_INLINE void load_block(const T* scores, int64_t stride, const Place& at, T* x) {
  for (int k = 0; k < at.rows; ++k) {
    const T* row = scores + k * stride;
    if (at.count == kQueries) {
      for (int i = 0; i < kQueries; ++i) x[k * kQueries + i] = row[i];
    } else {
      for (int i = 0; i < at.count; ++i) x[k * kQueries + i] = row[i];
    }
  }
  if (at.rows == kKeys && at.count == kQueries) return;
  for (int i = 0; i < kBlock; ++i) {  // a block cut short computes on zeros
    if (i % kQueries >= at.count || i / kQueries >= at.rows) x[i] = 0;
  }
}

template <class T>
MH_INLINE void store_block(const T* y, const Place& at, T* scores, int64_t stride) {
  for (int k = 0; k < at.rows; ++k) {
    T* row = scores + k * stride;
    if (at.count == kQueries) {
      for (int i = 0; i < kQueries; ++i) row[i] = y[k * kQueries + i];
    } else {
      for (int i = 0; i < at.count; ++i) row[i] = y[k * kQueries + i];
    }
  }
}

// Runs the program on every block of the tile: load(at, keys, queries), the instructions, store(at, keys,
// queries).
template <bool kDerivative, class T, class Tile, class Load, class Store>
MH_INLINE void for_each_block(const ScoreProgram& program, const Tile& tile, Registers<T>& r, Load&& load,
                              Store&& store) {
  const TilePlace place{tile.batch,     tile.head,        tile.query_begin,
                        tile.key_begin, tile.query_count, tile.key_count};
  Place at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head), 0, 0, 0, 0, place, nullptr};
  if (program.find_first(place, r.first)) at.first = r.first.data();
  const ScoreProgram::Lists& lists = program.lists(at.first != nullptr);
  for (int64_t q = 0; q < tile.query_count; q += kQueries) {
    at.query = static_cast<int32_t>(tile.query_begin + q);
    at.count = static_cast<int32_t>(std::min<int64_t>(kQueries, tile.query_count - q));
    at.rows = static_cast<int32_t>(std::min<int64_t>(kKeys, tile.key_count));
    at.key = static_cast<int32_t>(tile.key_begin);
    run<kDerivative>(program, lists.once, r, at);
    for (int64_t k = 0; k < tile.key_count; k += kKeys) {
      at.key = static_cast<int32_t>(tile.key_begin + k);
      at.rows = static_cast<int32_t>(std::min<int64_t>(kKeys, tile.key_count - k));
      load(at, k, q);
      run<kDerivative>(program, lists.per_key, r, at);
      store(at, k, q);
    }
  }
}

template <bool kDerivative, class T>
MH_INLINE void apply_tile(const ScoreProgram& program, const kernels::ScoreTile<T>& tile, T* derivative) {
  const auto size = static_cast<int32_t>(program.code().size());
  Registers<T>& r = registers<T>();
  r.fit(program);
  int32_t score = -1;  // instructions are unique, so there is one at most
  for (int32_t i = 0; i < size; ++i) {
    if (program.code()[static_cast<size_t>(i)].op == Op::score) score = i;
  }
  if (kDerivative) {
    // Only what depends on the score writes a derivative; the others are zero.
    for (int32_t i = 0; i < size; ++i) {
      if (!program.is_active(i)) std::fill_n(r.slope(i), kBlock, T(0));
    }
    if (score >= 0) std::fill_n(r.slope(score), kBlock, T(1));
  }
  const auto load = [&](const Place& at, int64_t k, int64_t q) __attribute__((always_inline)) {
    if (score >= 0) load_block(tile.scores + k * tile.stride + q, tile.stride, at, r.value(score));
  };
  const auto store = [&](const Place& at, int64_t k, int64_t q) __attribute__((always_inline)) {
    const int64_t offset = k * tile.stride + q;
    store_block(r.value(size - 1), at, tile.scores + offset, tile.stride);
    if (kDerivative) store_block(r.slope(size - 1), at, derivative + offset, tile.stride);
  };
  for_each_block<kDerivative>(program, tile, r, load, store);
}

MH_INLINE void fill_tile(const ScoreProgram& program, const kernels::KeepTile& tile) {
  const auto size = static_cast<int32_t>(program.code().size());
  Registers<float>& r = registers<float>();
  r.fit(program);
  const auto store = [&](const Place& at, int64_t k, int64_t q) __attribute__((always_inline)) {
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
  for_each_block<false>(
      program, tile, r, [](const Place&, int64_t, int64_t) {}, store);
}

// The same loops for each instruction set. No FMA contraction: all give the same bits.
#if defined(__x86_64__) && defined(__GNUC__)
#define MH_AVX2 __attribute__((target("avx2")))
#if defined(__clang__)
#define MH_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw"), min_vector_width(512)))
#else
#define MH_AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")))
#endif
#else
#define MH_AVX2
#define MH_AVX512
#endif

template <bool kDerivative, class T>
void apply_baseline(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  apply_tile<kDerivative>(p, t, d);
}
template <bool kDerivative, class T>
MH_AVX2 void apply_avx2(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  apply_tile<kDerivative>(p, t, d);
}
template <bool kDerivative, class T>
MH_AVX512 void apply_avx512(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  apply_tile<kDerivative>(p, t, d);
}
void fill_baseline(const ScoreProgram& p, const kernels::KeepTile& t) { fill_tile(p, t); }
MH_AVX2 void fill_avx2(const ScoreProgram& p, const kernels::KeepTile& t) { fill_tile(p, t); }
MH_AVX512 void fill_avx512(const ScoreProgram& p, const kernels::KeepTile& t) { fill_tile(p, t); }

template <bool kDerivative, class T>
void dispatch_apply(const ScoreProgram& p, const kernels::ScoreTile<T>& t, T* d) {
  switch (kernels::current_isa()) {
    case kernels::Isa::avx512:
      return apply_avx512<kDerivative>(p, t, d);
    case kernels::Isa::avx2:
      return apply_avx2<kDerivative>(p, t, d);
    default:
      return apply_baseline<kDerivative>(p, t, d);
  }
}

}  // namespace

template <class T>
void ScoreProgram::apply(const kernels::ScoreTile<T>& tile, T* derivative) const {
  if (derivative != nullptr) {
    dispatch_apply<true>(*this, tile, derivative);
  } else {
    dispatch_apply<false>(*this, tile, derivative);
  }
}
template void ScoreProgram::apply(const kernels::ScoreTile<float>&, float*) const;
template void ScoreProgram::apply(const kernels::ScoreTile<double>&, double*) const;

void ScoreProgram::fill(const kernels::KeepTile& tile) const {
  switch (kernels::current_isa()) {
    case kernels::Isa::avx512:
      return fill_avx512(*this, tile);
    case kernels::Isa::avx2:
      return fill_avx2(*this, tile);
    default:
      return fill_baseline(*this, tile);
  }
}

}  // namespace multihead::python
