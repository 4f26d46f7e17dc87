#include <algorithm>
#include <atomic>
#include <bit>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/models/files/finite_weights-inl.h"

namespace multihead::models::detail {
namespace {

// Exponents of all ones. The loop has no branch, so that it runs as fast as memory is read.
bool is_finite(const float* x, int64_t count) {
  uint32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= (std::bit_cast<uint32_t>(x[i]) & 0x7f800000) + 0x00800000;
  return found >> 31 == 0;
}

bool is_finite(const Tensor& tensor) {
  if (!is_floating(tensor.dtype())) return true;
  const Tensor x = tensor.detach().to(Dtype::f32).contiguous();
  constexpr int64_t kRange = 1 << 18;
  const int64_t count = x.numel(), ranges = (count + kRange - 1) / kRange;
  const float* values = x.data<float>();
  std::atomic<bool> finite = true;
  parallel_for(ranges, [&](int64_t range, int) {
    const int64_t begin = range * kRange;
    if (!is_finite(values + begin, std::min(kRange, count - begin))) finite = false;
  });
  return finite;
}

void check(bool finite, const std::string& file, const std::string& name) {
  MH_CHECK(finite, FormatError, file, ": tensor ", quote(name), " holds NaN or Inf");
}

}  // namespace

bool is_finite(const nn::PackedLinear& packed) {
  return is_finite(packed(Tensor::ones({1, packed.in_features()}), {}));
}

void check_finite(const std::string& file, const std::string& name, const Tensor& tensor) {
  check(is_finite(tensor), file, name);
}

void check_finite(const std::string& file, const std::string& name, const nn::PackedLinear& packed) {
  check(is_finite(packed), file, name);
}

}  // namespace multihead::models::detail
