// Sizes (or strides) of a tensor: up to eight int64, no allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

namespace multihead {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);
  explicit Shape(std::span<const int64_t> sizes);
  /// `rank` entries of `value`.
  static Shape filled(int rank, int64_t value);

  int rank() const { return rank_; }
  /// Axis -1 is the last. Throws ShapeError outside [-rank, rank).
  int64_t operator[](int axis) const { return sizes_[static_cast<size_t>(normalize(axis))]; }
  int64_t& operator[](int axis) { return sizes_[static_cast<size_t>(normalize(axis))]; }
  int64_t back() const { return (*this)[-1]; }
  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + rank_; }

  /// The non-negative index of an axis. Throws ShapeError outside [-rank, rank).
  int normalize(int axis) const {
    const int index = axis < 0 ? axis + rank_ : axis;
    if (index < 0 || index >= rank_) no_such_axis(axis);
    return index;
  }
  /// Product of the sizes (1 for rank 0). Throws ValueError past 2^63.
  int64_t numel() const;

  void push_back(int64_t size);
  /// This shape without / with one axis.
  Shape erased(int axis) const;
  Shape inserted(int axis, int64_t size) const;

  bool operator==(const Shape& other) const;

 private:
  [[noreturn]] void no_such_axis(int axis) const;

  std::array<int64_t, kMaxRank> sizes_ = {};
  int rank_ = 0;
};

/// Row-major strides in elements.
Shape contiguous_strides(const Shape& shape);

/// NumPy broadcasting: right-aligned, sizes equal or 1. Throws ShapeError naming both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b);

/// a * b, or ValueError "who: size overflows" past 2^63.
int64_t checked_multiply(int64_t a, int64_t b, const char* who);

std::string to_string(const Shape& shape);  ///< "[2, 3]"
std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace multihead
