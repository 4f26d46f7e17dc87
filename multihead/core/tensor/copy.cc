// The axes are sorted by their steps in the target and merged. What then lies in runs on both sides is copied
// or converted run by run. If the source has its runs along another axis than the target, squares of 64 x 64
// elements are transposed, so that both sides are read and written in whole cache lines; a square that is
// converted as well goes through memory of its own.
#include "multihead/core/tensor/copy-inl.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "multihead/core/tensor/convert-inl.h"
#include "multihead/core/tensor/element_loops-inl.h"
#include "multihead/core/tensor/strided_walk-inl.h"
#include "multihead/core/threads/parallel.h"

namespace multihead::detail {
namespace {

constexpr int64_t kGrain = 1 << 17;  // bytes written by a task: fewer are not worth waking a thread
constexpr int64_t kPiece = 512;      // elements gathered at a time
constexpr int64_t kTile = 64;        // rows and columns of a square at most
constexpr int64_t kAhead = 8;        // runs from a run to the one fetched meanwhile

template <class F>
void with_width(size_t element_bytes, F&& f) {
  switch (element_bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

template <class T>
void copy_run_of(const T* from, int64_t step_from, T* to, int64_t step_to, int64_t count) {
  if (step_to != 1 || (step_from != 1 && step_from != 0)) {
    for (int64_t i = 0; i < count; ++i) to[i * step_to] = from[i * step_from];
  } else if (step_from == 1) {
    std::memmove(to, from, static_cast<size_t>(count) * sizeof(T));
  } else {  // repeats one element
    constexpr int64_t kFew = 64 / sizeof(T);
    T few[kFew];
    std::fill(few, few + kFew, *from);
    int64_t i = 0;
    for (; i + kFew <= count; i += kFew) std::memcpy(to + i, few, sizeof(few));
    std::memcpy(to + i, few, static_cast<size_t>(count - i) * sizeof(T));
  }
}

void convert_run(Dtype from_type, const void* from, Dtype to_type, void* to, int64_t count) {
  if (element_loops.convert(from_type, from, to_type, to, count)) return;
  dispatch(to_type, [&](auto to_zero) {
    using To = decltype(to_zero);
    dispatch(from_type, [&](auto from_zero) {
      using From = decltype(from_zero);
      for (int64_t i = 0; i < count; ++i) {
        static_cast<To*>(to)[i] = convert<To>(static_cast<const From*>(from)[i]);
      }
    });
  });
}

// Runs of this many cache lines. A run far ahead is fetched meanwhile: short ones show the CPU no pattern.
struct Runs {
  const std::byte* from;
  std::byte* to;
  int64_t step_from, step_to, ahead, rows;  // bytes, bytes, bytes, runs
};
template <int64_t kLines>
void copy_lines(Runs r) {
  for (; r.rows > 0; --r.rows, r.from += r.step_from, r.to += r.step_to) {
    for (int64_t i = 0; i < kLines && r.ahead != 0; ++i) __builtin_prefetch(r.from + r.ahead + i * 64);
    for (int64_t i = 0; i < kLines; ++i) std::memcpy(r.to + i * 64, r.from + i * 64, 64);
  }
}

// Whether the runs are that short, as those of heads are.
bool copy_short_runs(const Runs& r, size_t bytes) {
  constexpr void (*kCopies[])(Runs) = {copy_lines<1>, copy_lines<2>, copy_lines<3>, copy_lines<4>,
                                       copy_lines<5>, copy_lines<6>, copy_lines<7>, copy_lines<8>};
  if (bytes == 0 || bytes % 64 != 0 || bytes / 64 > std::size(kCopies)) return false;
  kCopies[bytes / 64 - 1](r);
  return true;
}

// to[to + j · step_to + i] is what comes of from[from + i · step_from + j], for `rows` i and `columns` j.
struct Tile {
  int64_t from, step_from, to, step_to, rows, columns;
};

class Copy {
 public:
  Copy(const StridedElements& from, const StridedElements& to)
      : from_(static_cast<const std::byte*>(from.data)),
        to_(static_cast<std::byte*>(to.data)),
        from_type_(from.dtype),
        to_type_(to.dtype),
        from_bytes_(size_of(from.dtype)),
        to_bytes_(size_of(to.dtype)) {}

  // Offsets, steps and counts are in elements.
  void run(int64_t from, int64_t step_from, int64_t to, int64_t step_to, int64_t count) const {
    const std::byte* source = at_from(from);
    std::byte* target = at_to(to);
    if (from_type_ == to_type_ && step_from == 1 && step_to == 1) {
      std::memmove(target, source, static_cast<size_t>(count) * to_bytes_);
      return;
    }
    if (from_type_ == to_type_) return copy_run(to_bytes_, source, step_from, target, step_to, count);
    if (step_from == 1 && step_to == 1) return convert_run(from_type_, source, to_type_, target, count);
    alignas(64) std::byte gathered[kPiece * 8], converted[kPiece * 8];
    for (int64_t i = 0; i < count; i += kPiece) {
      const int64_t n = std::min(kPiece, count - i);
      copy_run(from_bytes_, at_from(from + i * step_from), step_from, gathered, 1, n);
      convert_run(from_type_, gathered, to_type_, converted, n);
      copy_run(to_bytes_, converted, 1, at_to(to + i * step_to), step_to, n);
    }
  }

  // Rows of walk (a is the target, b the source); the two do not overlap.
  void block(const StridedWalk& walk, int64_t to, int64_t from, int64_t rows, int64_t count) const {
    const int64_t step_to = walk.a.back(), step_from = walk.b.back();
    const int64_t ahead = kAhead * walk.row_b();  // of runs too short for the CPU to see a pattern
    const bool plain = from_type_ == to_type_ && step_from == 1 && step_to == 1;
    const size_t bytes = static_cast<size_t>(count) * from_bytes_;
    if (plain) {
      const auto size = static_cast<int64_t>(from_bytes_);
      const Runs runs{at_from(from), at_to(to), walk.row_b() * size, walk.row_a() * size, ahead * size, rows};
      if (copy_short_runs(runs, bytes)) return;
    }
    for (; rows > 0; --rows, from += walk.row_b(), to += walk.row_a()) {
      if (step_from == 1 && ahead != 0 && count <= kPiece) {
        const std::byte* next = at_from(from + ahead);
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i);
      }
      plain ? copy_bytes(at_to(to), at_from(from), bytes) : run(from, step_from, to, step_to, count);
    }
  }

  void tile(const Tile& t) const {
    if (from_type_ == to_type_) {
      return element_loops.transpose(
          to_bytes_, {at_from(t.from), at_to(t.to), t.step_from, t.step_to, t.rows, t.columns});
    }
    alignas(64) std::byte transposed[kTile * kTile * 8];
    element_loops.transpose(from_bytes_,
                            {at_from(t.from), transposed, t.step_from, kTile, t.rows, t.columns});
    for (int64_t j = 0; j < t.columns; ++j) {
      convert_run(from_type_, transposed + j * kTile * static_cast<int64_t>(from_bytes_), to_type_,
                  at_to(t.to + j * t.step_to), t.rows);
    }
  }

  // Whether the first byte of one side lies within the other.
  bool overlaps(const Shape& shape, const Shape& strides_from, const Shape& strides_to) const {
    const std::byte* end_from = at_from(extent(shape, strides_from));
    const std::byte* end_to = at_to(extent(shape, strides_to));
    return from_ < end_to && to_ < end_from;
  }

  int64_t grain() const { return kGrain / static_cast<int64_t>(to_bytes_); }

 private:
  const std::byte* at_from(int64_t i) const { return from_ + i * static_cast<int64_t>(from_bytes_); }
  std::byte* at_to(int64_t i) const { return to_ + i * static_cast<int64_t>(to_bytes_); }

  static int64_t extent(const Shape& shape, const Shape& strides) {
    int64_t last = 0;
    for (int i = 0; i < shape.rank(); ++i) last += (shape[i] - 1) * strides[i];
    return last + 1;
  }

  static void copy_run(size_t bytes, const std::byte* from, int64_t step_from, std::byte* to, int64_t step_to,
                       int64_t count) {
    with_width(bytes, [&](auto zero) {
      using T = decltype(zero);
      copy_run_of(reinterpret_cast<const T*>(from), step_from, reinterpret_cast<T*>(to), step_to, count);
    });
  }

  const std::byte* from_;
  std::byte* to_;
  Dtype from_type_, to_type_;
  size_t from_bytes_, to_bytes_;
};

// The axes by falling step in the target, and merged: a is the target, b the source.
StridedWalk sorted_walk(const Shape& shape, const Shape& to, const Shape& from) {
  std::array<int, Shape::kMaxRank> order = {};
  for (int i = 0; i < shape.rank(); ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.begin() + shape.rank(), [&](int i, int j) { return to[i] > to[j]; });
  Shape sizes, steps_to, steps_from;
  for (int i = 0; i < shape.rank(); ++i) {
    const int axis = order[static_cast<size_t>(i)];
    sizes.push_back(shape[axis]);
    steps_to.push_back(to[axis]);
    steps_from.push_back(from[axis]);
  }
  return {sizes, steps_to, steps_from};
}

// The axis along which the source, but not the target, has its runs; -1 if there is none.
int crossing_axis(const StridedWalk& walk) {
  if (walk.a.back() != 1 || walk.b.back() <= 1) return -1;
  for (int axis = 0; axis < walk.shape.rank() - 1; ++axis) {
    if (walk.b[axis] == 1) return axis;
  }
  return -1;
}

// If the source has its runs along another axis than the target: f on squares that cover both, on several
// threads if there are `grain` elements for each. Else false.
bool walk_tiles(const StridedWalk& sorted, int64_t grain, FunctionRef<void(const Tile&)> f) {
  const int crossing = crossing_axis(sorted);
  if (crossing < 0) return false;
  StridedWalk walk = sorted;
  const auto tiles = [](int64_t size) { return (size + kTile - 1) / kTile; };
  const int last = walk.shape.rank() - 1;
  const int64_t columns = walk.shape[crossing], rows = walk.shape[last];
  const int64_t step_to = walk.a[crossing], step_from = walk.b[last];
  walk.shape[crossing] = tiles(columns);
  walk.shape[last] = tiles(rows);
  walk.a[crossing] *= kTile, walk.b[crossing] *= kTile;
  walk.a[last] *= kTile, walk.b[last] *= kTile;
  int64_t after = 1;
  for (int axis = crossing + 1; axis <= last; ++axis) after *= walk.shape[axis];
  const int64_t tiles_across = walk.shape[crossing], tiles_down = walk.shape[last];
  const int64_t in_task = std::max<int64_t>(1, grain / (std::min(columns, kTile) * std::min(rows, kTile)));
  parallel_ranges(walk.shape.numel(), in_task, [&](int64_t begin, int64_t end) {
    walk.pieces(begin, end, [&](int64_t at_to, int64_t at_from, int64_t tile, int64_t length) {
      const int64_t column = tile / after % tiles_across * kTile, width = std::min(kTile, columns - column);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t row = (tile + i) % tiles_down * kTile;
        f({at_from + i * walk.b[last], step_from, at_to + i * kTile, step_to, std::min(kTile, rows - row),
           width});
      }
    });
  });
  return true;
}

}  // namespace

void transpose_plain(size_t element_bytes, const TransposeArgs& t) {
  with_width(element_bytes, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < t.rows; ++i) {
      const T* row = static_cast<const T*>(t.from) + i * t.from_step;
      T* column = static_cast<T*>(t.to) + i;
      for (int64_t j = 0; j < t.columns; ++j) column[j * t.to_step] = row[j];
    }
  });
}

void copy_elements(const Shape& shape, const StridedElements& from, const StridedElements& to) {
  const int64_t count = shape.numel();
  if (count == 0) return;
  const Copy copy(from, to);
  const StridedWalk walk = sorted_walk(shape, to.strides, from.strides);
  if (walk_tiles(walk, copy.grain(), [&](const Tile& t) { copy.tile(t); })) return;
  if (copy.overlaps(shape, from.strides, to.strides)) {  // what is copied onto itself is copied in order
    return walk.pieces(0, count, [&](int64_t at_to, int64_t at_from, int64_t, int64_t length) {
      copy.run(at_from, walk.b.back(), at_to, walk.a.back(), length);
    });
  }
  parallel_ranges(count, copy.grain(), [&](int64_t begin, int64_t end) {
    walk.blocks(begin, end, [&](int64_t at_to, int64_t at_from, int64_t, int64_t rows, int64_t length) {
      copy.block(walk, at_to, at_from, rows, length);
    });
  });
}

}  // namespace multihead::detail
