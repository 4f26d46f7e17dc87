// A weight matrix packed for inference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "multihead/core/tensor/tensor.h"
#include "multihead/kernels/quantized/packed_linear.h"
#include "multihead/nn/module.h"
#include "multihead/ops/linear.h"

namespace multihead::nn {

using kernels::StoredWeight;
using kernels::WeightDtype;

/// A weight matrix packed in the order in which products read it. Copies share memory, which is immutable.
class PackedLinear {
 public:
  PackedLinear() = default;
  /// A weight [out, in]. Throws ValueError (a dtype that f32 weights cannot be packed as, a longer row or
  /// larger weights than it takes: kernels/quantized/format.h).
  PackedLinear(const Tensor& weight, WeightDtype dtype);
  /// A weight [out, in] as GGUF files store it. Throws ValueError unless a packed format takes it over.
  PackedLinear(const StoredWeight& weight, int64_t out, int64_t in);
  /// From the bytes of packed(), for a dtype whose packing is the same on every machine. Throws ValueError,
  /// ShapeError.
  PackedLinear(const Tensor& packed, int64_t out, int64_t in, WeightDtype dtype);

  /// linear(x, weight, bias, fused) without a gradient.
  ///
  /// Shapes    x [..., in], bias [out] or undefined -> [..., out]
  /// Dtypes    f32
  /// Throws    ShapeError, DtypeError, ValueError (a tape would record it: packed weights cannot be trained)
  Tensor operator()(const Tensor& x, const Tensor& bias, const multihead::LinearOptions& fused = {}) const;
  /// Rows of the weight as f32: ids (i64 or i32) of any shape -> [..., in]. Throws ValueError (an id outside
  /// [0, out), a format without has_rows()), DtypeError.
  Tensor rows(const Tensor& ids) const;

  bool defined() const { return packed_.defined(); }
  WeightDtype dtype() const { return dtype_; }
  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }
  size_t bytes() const { return packed_.bytes(); }
  const Tensor& packed() const { return packed_; }

 private:
  Tensor packed_;  // i32: bytes in units of 4
  int64_t out_ = 0, in_ = 0;
  WeightDtype dtype_ = WeightDtype::f32;
};

/// While it is alive, weights that this thread packs are placed consecutively in blocks that are large enough
/// for huge pages: products of one row then read them at memory bandwidth, from one matrix to the next.
class PackedBlocks {
 public:
  PackedBlocks() : before_(current_) { current_ = this; }
  ~PackedBlocks() { current_ = before_; }
  PackedBlocks(const PackedBlocks&) = delete;
  PackedBlocks& operator=(const PackedBlocks&) = delete;
  /// Uninitialised, of i32.
  static Tensor empty(int64_t words);
  /// The same numbers.
  static Tensor taken(const Tensor& packed);

 private:
  static bool takes(int64_t words);
  static inline thread_local PackedBlocks* current_ = nullptr;
  PackedBlocks* before_;
  Tensor block_;
  int64_t used_ = 0;  // words
};

/// Replaces a module's matrices by make(name, weight), a PackedLinear; where that is undefined, the matrix
/// stays. The f32 weights are released unless they are shared.
template <class Module, class Make>
void pack_matrices(Module& module, Make&& make) {
  const PackedBlocks blocks;
  const auto pack = [&](const std::string& name, Tensor& weight, PackedLinear& packed) {
    if (packed.defined()) return;
    packed = make(name, weight);
    if (packed.defined()) weight = Tensor();
  };
  Visitor visitor = Visitor::of_matrices(pack);
  module.visit(visitor);
}

}  // namespace multihead::nn
