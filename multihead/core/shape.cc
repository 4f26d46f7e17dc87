#include "multihead/core/shape.h"

#include <algorithm>
#include <ostream>

#include "multihead/core/error.h"

namespace multihead {

Shape::Shape(std::initializer_list<int64_t> sizes)
    : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const int64_t> sizes) {
  MH_CHECK(sizes.size() <= kMaxRank, ShapeError, "shape: at most ", kMaxRank, " axes, got ", sizes.size());
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  rank_ = static_cast<int>(sizes.size());
}

Shape Shape::filled(int rank, int64_t value) {
  Shape shape;
  for (int i = 0; i < rank; ++i) shape.push_back(value);
  return shape;
}

void Shape::no_such_axis(int axis) const {
  throw ShapeError(concat("axis ", axis, " of a shape with ", rank_, " axes"));
}

int64_t Shape::numel() const {
  // A zero anywhere makes the product zero, whatever the other sizes are.
  int64_t count = 1;
  for (const int64_t size : *this) {
    if (size == 0) return 0;
  }
  for (const int64_t size : *this) count = checked_multiply(count, size, "shape");
  return count;
}

void Shape::push_back(int64_t size) {
  MH_CHECK(rank_ < kMaxRank, ShapeError, "shape: at most ", kMaxRank, " axes");
  sizes_[static_cast<size_t>(rank_++)] = size;
}

Shape Shape::erased(int axis) const {
  const int skipped = normalize(axis);
  Shape result;
  for (int i = 0; i < rank_; ++i) {
    if (i != skipped) result.push_back((*this)[i]);
  }
  return result;
}

Shape Shape::inserted(int axis, int64_t size) const {
  const int at = axis < 0 ? axis + rank_ + 1 : axis;
  MH_CHECK(at >= 0 && at <= rank_, ShapeError, "axis ", axis, " to insert into ", *this);
  Shape result;
  for (int i = 0; i <= rank_; ++i) {
    if (i == at) result.push_back(size);
    if (i < rank_) result.push_back((*this)[i]);
  }
  return result;
}

bool Shape::operator==(const Shape& other) const {
  return std::equal(begin(), end(), other.begin(), other.end());
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = Shape::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<int64_t>(shape[i + 1], 1);
  return strides;
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result = Shape::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a[-i] : 1;
    const int64_t y = i <= b.rank() ? b[-i] : 1;
    MH_CHECK(x == y || x == 1 || y == 1, ShapeError, "shapes ", a, " and ", b, " do not broadcast");
    result[-i] = x == 1 ? y : x;
  }
  return result;
}

int64_t checked_multiply(int64_t a, int64_t b, const char* who) {
  int64_t product = 0;
  MH_CHECK(a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, &product), ValueError, who, ": size ", a, " x ",
           b, " is negative or overflows 63 bits");
  return product;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }

}  // namespace multihead
