#include "multihead/core/tensor/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <locale>
#include <ostream>
#include <sstream>
#include <type_traits>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/tensor/convert-inl.h"
#include "multihead/core/tensor/copy-inl.h"
#include "multihead/core/tensor/gradient_lock-inl.h"

namespace multihead {

using detail::convert;

namespace {

// A view's elements lie in [begin, end), counted from where its tensor's first does.
void check_view(const Shape& shape, const Shape& strides, int64_t offset, int64_t begin, int64_t end) {
  MH_CHECK(shape.rank() == strides.rank(), ShapeError, "as_strided: shape ", shape, " and strides ", strides,
           " differ in rank");
  for (const int64_t size : shape) MH_CHECK(size >= 0, ValueError, "as_strided: negative size in ", shape);
  if (shape.numel() == 0) return;
  int64_t first = offset, last = offset;
  bool fits = true;
  for (int axis = 0; axis < shape.rank() && fits; ++axis) {
    int64_t length = 0;
    int64_t& side = strides[axis] < 0 ? first : last;
    fits = !__builtin_mul_overflow(shape[axis] - 1, strides[axis], &length) &&
           !__builtin_add_overflow(side, length, &side);
  }
  MH_CHECK(fits && first >= begin && last < end, ValueError, "as_strided: ", shape, " with strides ", strides,
           " and offset ", offset, " leaves the memory of the tensor, elements ", begin, " to ", end,
           " from its first");
}

// Numbers that an integer cannot hold.
template <class T>
void check_holds(double value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr double kBeyond = -static_cast<double>(std::numeric_limits<T>::min());
    MH_CHECK(value >= -kBeyond && value < kBeyond, ValueError, "tensor: ", dtype_of<T>, " does not hold ",
             value);
  }
}

}  // namespace

Tensor::Impl& Tensor::impl() const {
  MH_CHECK(impl_ != nullptr, ValueError,
           "tensor: undefined (such as an absent bias, or a gradient before backward())");
  return *impl_;
}

Tensor Tensor::make(std::shared_ptr<Storage> storage, void* data, const Shape& shape, const Shape& strides,
                    Dtype dtype) {
  auto impl = std::make_shared<Impl>();
  impl->storage = std::move(storage);
  impl->data = data;
  impl->numel = shape.numel();
  impl->dtype = dtype;
  impl->shape = shape;
  impl->strides = strides;
  return Tensor(std::move(impl));
}

Tensor Tensor::empty(const Shape& shape, Dtype dtype) {
  for (const int64_t size : shape) MH_CHECK(size >= 0, ValueError, "tensor: negative size in ", shape);
  const int64_t bytes = checked_multiply(shape.numel(), static_cast<int64_t>(size_of(dtype)), "tensor");
  auto storage = std::make_shared<Storage>(static_cast<size_t>(bytes));
  void* data = storage->data();
  return make(std::move(storage), data, shape, contiguous_strides(shape), dtype);
}

Tensor Tensor::zeros(const Shape& shape, Dtype dtype) {
  Tensor result = empty(shape, dtype);
  if (result.numel() > 0) std::memset(result.raw(), 0, result.bytes());
  return result;
}

Tensor Tensor::ones(const Shape& shape, Dtype dtype) { return full(shape, 1, dtype); }

Tensor Tensor::full(const Shape& shape, double value, Dtype dtype) {
  Tensor result = empty(shape, dtype);
  result.fill(value);
  return result;
}

Tensor Tensor::arange(int64_t count, Dtype dtype) {
  Tensor result = empty({count}, dtype);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; ++i) result.data<T>()[i] = convert<T>(i);
  });
  return result;
}

template <Element T>
Tensor Tensor::of(const Shape& shape, std::span<const T> values) {
  MH_CHECK(shape.numel() == static_cast<int64_t>(values.size()), ShapeError, "tensor: shape ", shape,
           " needs ", shape.numel(), " values, got ", values.size());
  Tensor result = empty(shape, dtype_of<T>);
  std::copy(values.begin(), values.end(), result.data<T>());
  return result;
}

Tensor Tensor::of(const Shape& shape, const std::vector<bool>& values) {
  const auto bytes = std::make_unique<bool[]>(values.size());
  std::copy(values.begin(), values.end(), bytes.get());
  return of(shape, std::span<const bool>(bytes.get(), values.size()));
}

template <Element T>
std::vector<T> Tensor::to_vector() const {
  const Tensor values = to(dtype_of<T>);
  return std::vector<T>(values.data<T>(), values.data<T>() + values.numel());
}

#define MH_INSTANTIATE(T)                                          \
  template Tensor Tensor::of<T>(const Shape&, std::span<const T>); \
  template std::vector<T> Tensor::to_vector<T>() const;
MH_INSTANTIATE(float)
MH_INSTANTIATE(double)
MH_INSTANTIATE(BFloat16)
MH_INSTANTIATE(Float16)
MH_INSTANTIATE(int64_t)
MH_INSTANTIATE(int32_t)
MH_INSTANTIATE(bool)
#undef MH_INSTANTIATE

Tensor Tensor::borrow(void* data, const Shape& shape, const Shape& strides, Dtype dtype,
                      std::shared_ptr<void> owner) {
  MH_CHECK(shape.rank() == strides.rank(), ShapeError, "tensor: shape ", shape, " and strides ", strides,
           " differ in rank");
  MH_CHECK(data != nullptr || shape.numel() == 0, ValueError, "tensor: ", shape, " elements of no memory");
  const int64_t bytes = checked_multiply(shape.numel(), static_cast<int64_t>(size_of(dtype)), "tensor");
  auto storage = std::make_shared<Storage>(data, static_cast<size_t>(bytes), std::move(owner));
  return make(std::move(storage), data, shape, strides, dtype);
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (size(i) != 1 && strides()[i] != expected) return numel() == 0;
    expected *= size(i);
  }
  return true;
}

double Tensor::item() const {
  MH_CHECK(numel() == 1, ShapeError, "item: expected one element, got shape ", shape());
  return dispatch(dtype(), [&](auto zero) { return convert<double>(data<decltype(zero)>()[0]); });
}

double Tensor::at(std::initializer_list<int64_t> index) const {
  MH_CHECK(static_cast<int>(index.size()) == rank(), ShapeError, "at: expected ", rank(), " indices, got ",
           index.size());
  int64_t offset = 0;
  int axis = 0;
  for (const int64_t i : index) {
    MH_CHECK(i >= 0 && i < size(axis), ValueError, "at: index ", i, " outside axis ", axis, " of ", shape());
    offset += i * strides()[axis++];
  }
  return as_strided({}, {}, offset).item();
}

Tensor Tensor::as_strided(const Shape& shape, const Shape& strides, int64_t offset) const {
  const Impl& self = impl();
  const auto size = static_cast<int64_t>(size_of(self.dtype));
  // How far borrowed memory goes, nobody has said.
  if (!self.storage->is_borrowed()) {
    const int64_t before = (static_cast<std::byte*>(self.data) - self.storage->data()) / size;
    check_view(shape, strides, offset, -before, static_cast<int64_t>(self.storage->bytes()) / size - before);
  }
  auto* data = static_cast<std::byte*>(self.data) + offset * size;
  return make(self.storage, data, shape, strides, self.dtype);
}

Tensor Tensor::detach() const {
  const Impl& self = impl();
  return make(self.storage, self.data, self.shape, self.strides, self.dtype);
}

Tensor Tensor::contiguous() const { return is_contiguous() ? detach() : clone(); }

Tensor Tensor::clone() const {
  Tensor result = empty(shape(), dtype());
  result.copy_from(*this);
  return result;
}

Tensor Tensor::to(Dtype target) const {
  if (target == dtype()) return contiguous();
  Tensor result = empty(shape(), target);
  result.copy_from(*this);
  return result;
}

namespace {

// The bytes that a tensor's elements lie in.
std::pair<std::intptr_t, std::intptr_t> extent(const Tensor& x) {
  int64_t first = 0, last = 0;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const int64_t reach = (x.size(axis) - 1) * x.strides()[axis];
    (reach < 0 ? first : last) += reach;
  }
  const auto base = reinterpret_cast<std::intptr_t>(x.raw()),
             size = static_cast<std::intptr_t>(size_of(x.dtype()));
  return {base + first * size, base + (last + 1) * size};
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || (a.raw() == b.raw() && a.strides() == b.strides() && a.dtype() == b.dtype()))
    return false;
  const auto x = extent(a), y = extent(b);
  return x.first < y.second && y.first < x.second;
}

}  // namespace

void Tensor::copy_from(const Tensor& source) const {
  MH_CHECK(source.shape() == shape(), ShapeError, "copy_from: expected ", shape(), ", got ", source.shape());
  if (overlap(source, *this)) return copy_from(source.clone());
  detail::copy_elements(shape(), {source.raw(), source.dtype(), source.strides()},
                        {raw(), dtype(), strides()});
}

void Tensor::fill(double value) const {
  dispatch(dtype(), [&](auto zero) {
    check_holds<decltype(zero)>(value);
    auto element = convert<decltype(zero)>(value);
    detail::copy_elements(shape(), {&element, dtype(), Shape::filled(rank(), 0)},
                          {raw(), dtype(), strides()});
  });
}

bool Tensor::requires_grad() const { return defined() && impl_->slot != nullptr; }

Tensor& Tensor::set_requires_grad(bool value) {
  MH_CHECK(!value || is_floating(dtype()), DtypeError, "set_requires_grad: expected a floating dtype, got ",
           dtype());
  if (!value) {
    impl().slot = nullptr;
  } else if (impl().slot == nullptr) {
    impl().slot = std::make_shared<GradientSlot>();
    impl().slot->leaf = true;
  }
  return *this;
}

Tensor Tensor::grad() const {
  if (impl().slot == nullptr) return Tensor();
  const std::lock_guard lock(detail::gradient_mutex(*impl().slot));
  return impl().slot->gradient;
}

void Tensor::set_grad(Tensor gradient) const {
  MH_CHECK(impl().slot != nullptr, ValueError, "set_grad: the tensor does not require a gradient");
  if (gradient.requires_grad()) gradient = gradient.detach();  // x.set_grad(x) would never be freed
  const std::lock_guard lock(detail::gradient_mutex(*impl().slot));
  std::swap(impl().slot->gradient, gradient);  // the old one is released after the lock
}

bool Tensor::is_unique() const {
  return impl_.use_count() == 1 && impl_->storage.use_count() == 1 && !impl_->storage->is_borrowed();
}

void Tensor::check_dtype(Dtype expected) const {
  MH_CHECK(dtype() == expected, DtypeError, "tensor: expected ", expected, ", got ", dtype());
}

void Tensor::check_contiguous() const {
  MH_CHECK(is_contiguous(), ShapeError, "tensor: expected row-major memory, got shape ", shape(),
           " with strides ", strides());
}

namespace {

constexpr int64_t kShownAtEachEnd = 3, kShownWhole = 8;  // of an axis

// The elements of `values`, f64 or i64, from `offset`, nested in brackets from this axis on.
void print_axis(std::ostream& out, const Tensor& values, int axis, int64_t offset) {
  if (axis == values.rank()) {
    if (values.dtype() == Dtype::i64) {
      out << values.data<int64_t>()[offset];
    } else {
      out << values.data<double>()[offset];
    }
    return;
  }
  const int64_t size = values.size(axis);
  const std::string separator =
      axis == values.rank() - 1 ? ", " : ",\n" + std::string(static_cast<size_t>(axis) + 1, ' ');
  out << '[';
  for (int64_t i = 0; i < size; ++i) {
    if (i > 0) out << separator;
    if (size > kShownWhole && i == kShownAtEachEnd) {
      out << "…" << separator;
      i = size - kShownAtEachEnd;
    }
    print_axis(out, values, axis + 1, offset + i * values.strides()[axis]);
  }
  out << ']';
}

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "Tensor(undefined)";
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "Tensor(" << tensor.shape() << ", " << tensor.dtype() << (tensor.rank() < 2 ? ", " : ",\n");
  print_axis(out, tensor.to(is_floating(tensor.dtype()) ? Dtype::f64 : Dtype::i64), 0, 0);
  out << ')';
  return std::move(out).str();
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) { return out << to_string(tensor); }

}  // namespace multihead
