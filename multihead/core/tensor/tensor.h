// The one tensor type: a cheap handle to typed, strided memory, with an optional gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/dtype.h"
#include "multihead/core/memory/storage.h"
#include "multihead/core/shape.h"

namespace multihead {

class Tensor;

/// A tensor's gradient slot, shared with the tape.
struct GradientSlot;
class Tape;

/// A handle: copies share memory, shape and gradient. A default-constructed tensor is undefined.
class Tensor {
 public:
  Tensor() = default;

  /// Uninitialised memory. Throws ValueError for negative or overflowing sizes.
  static Tensor empty(const Shape& shape, Dtype dtype = Dtype::f32);
  static Tensor zeros(const Shape& shape, Dtype dtype = Dtype::f32);
  static Tensor ones(const Shape& shape, Dtype dtype = Dtype::f32);
  static Tensor full(const Shape& shape, double value, Dtype dtype = Dtype::f32);
  /// 0, 1, … count-1.
  static Tensor arange(int64_t count, Dtype dtype = Dtype::i64);
  /// A copy of `values` in row-major order; throws ShapeError unless there are shape.numel().
  template <Element T>
  static Tensor of(const Shape& shape, std::span<const T> values);
  /// Vectors, arrays and other spans.
  template <std::ranges::contiguous_range Range>
  requires Element<std::ranges::range_value_t<Range>>
  static Tensor of(const Shape& shape, const Range& values) {
    using T = std::ranges::range_value_t<Range>;
    return of(shape, std::span<const T>(std::ranges::data(values), std::ranges::size(values)));
  }
  template <Element T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    return of(shape, std::span<const T>(values.begin(), values.size()));
  }
  static Tensor of(const Shape& shape, const std::vector<bool>& values);  // whose elements are bits
  /// Borrowed memory; `owner` is kept until the last handle is gone.
  static Tensor borrow(void* data, const Shape& shape, const Shape& strides, Dtype dtype,
                       std::shared_ptr<void> owner = nullptr);

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  Dtype dtype() const { return impl().dtype; }
  const Shape& shape() const { return impl().shape; }
  /// In elements.
  const Shape& strides() const { return impl().strides; }
  int rank() const { return shape().rank(); }
  int64_t size(int axis) const { return shape()[axis]; }
  int64_t numel() const { return impl().numel; }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype()); }
  bool is_contiguous() const;

  /// The first element. Throws DtypeError unless T is the tensor's type.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>);
    return static_cast<T*>(raw());
  }
  void* raw() const { return impl().data; }
  /// The elements of a contiguous tensor.
  template <class T>
  std::span<T> span() const {
    check_contiguous();
    return {data<T>(), static_cast<size_t>(numel())};
  }
  /// The value of a tensor with one element, converted to double.
  double item() const;
  /// One element, by its indices, converted to double.
  double at(std::initializer_list<int64_t> index) const;
  /// All elements in row-major order, converted.
  template <Element T>
  std::vector<T> to_vector() const;

  /// Another view of the same memory, without gradient. `offset` in elements from this tensor's first. Throws ValueError
  /// for a view that leaves the library's memory; that of borrow() is not checked.
  Tensor as_strided(const Shape& shape, const Shape& strides, int64_t offset = 0) const;
  /// Same memory, no gradient.
  Tensor detach() const;
  /// Row-major copy, or the same memory if already row-major. No gradient.
  Tensor contiguous() const;
  /// Row-major copy. No gradient.
  Tensor clone() const;
  /// Converted copy (or this memory, if the dtype is the same and it is contiguous). No gradient.
  Tensor to(Dtype dtype) const;

  /// Overwrites the elements with those of `source` (same shape; dtype converted). Tapes keep no copies: what one has
  /// recorded changes with it, so change tensors before they are used or after backward().
  void copy_from(const Tensor& source) const;
  /// As copy_from(). Throws ValueError for a number that an integer dtype does not hold.
  void fill(double value) const;

  /// Leaf tensors with requires_grad get .grad() from Tape::backward().
  bool requires_grad() const;
  Tensor& set_requires_grad(bool value = true);
  /// Undefined until backward() has reached this tensor. A leaf's gradient is row-major, in its own memory.
  Tensor grad() const;
  void set_grad(Tensor gradient) const;
  const std::shared_ptr<GradientSlot>& gradient_slot() const { return impl().slot; }
  void set_gradient_slot(std::shared_ptr<GradientSlot> slot) const { impl().slot = std::move(slot); }

  /// True if the library owns the memory and no other handle or view shares it.
  bool is_unique() const;
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    void* data = nullptr;
    int64_t numel = 0;
    Dtype dtype = Dtype::f32;
    Shape shape;
    Shape strides;
    std::shared_ptr<GradientSlot> slot;
  };

  explicit Tensor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl& impl() const;
  void check_dtype(Dtype expected) const;
  void check_contiguous() const;
  static Tensor make(std::shared_ptr<Storage> storage, void* data, const Shape& shape, const Shape& strides,
                     Dtype dtype);

  std::shared_ptr<Impl> impl_;
};

struct GradientSlot {
  Tensor gradient;
  bool leaf = false;
  const Tape* tape = nullptr;       // that recorded it and can still reach it
  std::function<Tensor()> rebuild;  // recomputes the same bits to save memory (Kept in ops/dispatch-inl.h)
};

inline Tensor empty_like(const Tensor& x) { return Tensor::empty(x.shape(), x.dtype()); }
inline Tensor zeros_like(const Tensor& x) { return Tensor::zeros(x.shape(), x.dtype()); }

/// Shape, dtype and the elements in nested brackets, a few from the ends of long axes.
std::string to_string(const Tensor& tensor);
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace multihead
