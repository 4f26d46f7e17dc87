// Matrix product with the epilogues a Transformer needs.
#pragma once

#include <cstdint>

#include "multihead/core/dtype.h"
#include "multihead/kernels/elementwise/activation.h"

namespace multihead::kernels {

enum class Transpose { no, yes };

/// Operands of one product; every matrix is row-major and its leading dimension is the distance between rows.
template <class T>
struct GemmArgs {
  const T* a = nullptr;  ///< [m, k], or [k, m] if transposed
  int64_t lda = 0;
  Transpose ta = Transpose::no;
  const T* b = nullptr;  ///< [k, n], or [n, k] if transposed
  int64_t ldb = 0;
  Transpose tb = Transpose::no;
  T* c = nullptr;  ///< [m, n]
  int64_t ldc = 0;
  int64_t m = 0, n = 0, k = 0;

  bool accumulate = false;      ///< the sum over k starts from c instead of zero
  const T* bias = nullptr;      ///< [n]
  T* pre_activation = nullptr;  ///< [m, n] with rows ldc apart: what the activation is applied to
  Activation activation = Activation::none;
  const T* factor = nullptr;    ///< [m, n] with rows ldc apart
  const T* residual = nullptr;  ///< [m, n] with rows ldc apart
};

/// c = activation(op(a)·op(b) [+ c] + bias) · factor + residual, on up to num_threads() threads.
///
/// Each element is a sum of chains of fused multiply-adds over k in increasing order, one for every 128
/// values of k, added up in order. In f32 its bits therefore depend on its own row of a and column of b
/// alone: not on m, n, the leading dimensions, the threads, nor on the instruction set among those with FMA
/// (AVX2, AVX-512). f64 likewise; its activations are those of the C library.
///
/// Memory   thread-local packing buffers of at most a few MiB, which only ever grow
/// Aliases  c overlaps none of the others (to add onto c itself, accumulate)
void gemm(const GemmArgs<float>& args);
void gemm(const GemmArgs<double>& args);

/// The elements of a matrix. As with Operand, what is input is not written to.
struct GemmMatrix {
  GemmMatrix() = default;
  GemmMatrix(void* first, Dtype type) : data(first), dtype(type) {}
  template <class T>
  GemmMatrix(const T* first) : GemmMatrix(const_cast<T*>(first), dtype_of<T>) {}

  /// The matrix that begins `elements` further on; none stays none.
  GemmMatrix operator+(int64_t elements) const {
    return data == nullptr
               ? *this
               : GemmMatrix(static_cast<char*>(data) + elements * static_cast<int64_t>(size_of(dtype)),
                            dtype);
  }

  void* data = nullptr;
  Dtype dtype = Dtype::f32;
};

/// GemmArgs of any type: a, b and c are f32 or bf16 each, pre_activation and residual as c, bias and factor
/// f32. Or all are f64.
struct MixedGemmArgs {
  GemmMatrix a;
  int64_t lda = 0;
  Transpose ta = Transpose::no;
  GemmMatrix b;
  int64_t ldb = 0;
  Transpose tb = Transpose::no;
  GemmMatrix c;
  int64_t ldc = 0;
  int64_t m = 0, n = 0, k = 0;

  bool accumulate = false;  ///< not with a bf16 c
  GemmMatrix bias = {};
  GemmMatrix pre_activation = {};
  Activation activation = Activation::none;
  GemmMatrix factor = {};
  GemmMatrix residual = {};
};

/// gemm() of the matrices as f32, bit for bit (or as f64); where c is bf16, it and pre_activation are rounded
/// once. But where a or b is bf16 and bf16_dots() or bf16_tiles() holds, neighbours in k are multiplied in
/// pairs or on tiles, which rounds the sums differently, and the other operand is rounded to bf16 if it is
/// f32.
void gemm_mixed(const MixedGemmArgs& args);

/// `count` products whose operands lie at a fixed distance from each other; 0 shares an operand.
struct GemmBatch {
  int64_t count = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

/// The products of a batch, each as gemm_mixed() computes it. pre_activation, factor and residual move with
/// stride_c.
void gemm_batched(const MixedGemmArgs& args, const GemmBatch& batch);

}  // namespace multihead::kernels
