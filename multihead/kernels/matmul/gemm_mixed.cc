// Products of any types, and batches.
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/matmul/gemm_amx-inl.h"

namespace multihead::kernels {
namespace {

template <class T>
T* elements(const GemmMatrix& x) {
  return x.dtype == dtype_of<T> ? static_cast<T*>(x.data) : nullptr;
}

// The matrices of type T.
template <class T>
GemmArgs<T> plain_args(const MixedGemmArgs& x) {
  return {.a = elements<T>(x.a),
          .lda = x.lda,
          .ta = x.ta,
          .b = elements<T>(x.b),
          .ldb = x.ldb,
          .tb = x.tb,
          .c = elements<T>(x.c),
          .ldc = x.ldc,
          .m = x.m,
          .n = x.n,
          .k = x.k,
          .accumulate = x.accumulate,
          .bias = elements<T>(x.bias),
          .pre_activation = elements<T>(x.pre_activation),
          .activation = x.activation,
          .factor = elements<T>(x.factor),
          .residual = elements<T>(x.residual)};
}

}  // namespace

EngineArgs engine_args(const MixedGemmArgs& x) {
  return {plain_args<float>(x),
          elements<BFloat16>(x.a),
          elements<BFloat16>(x.b),
          elements<BFloat16>(x.c),
          elements<BFloat16>(x.pre_activation),
          elements<BFloat16>(x.residual)};
}

// The engine of a product is chosen here.
void gemm_mixed(const MixedGemmArgs& x) {
  if (x.c.dtype == Dtype::f64) return gemm(plain_args<double>(x));
  const EngineArgs args = engine_args(x);
  if (args.a != nullptr && args.b != nullptr && args.c != nullptr) return gemm(args);
  const bool narrow = x.a.dtype == Dtype::bf16 || x.b.dtype == Dtype::bf16;
  const bool empty = x.m == 0 || x.n == 0 || x.k == 0;
  if (narrow && !empty && bf16_tiles()) return gemm_on_tiles(args, {}, TileUnit::amx);
  if (narrow && !empty && bf16_dots()) return multiply_pairs(args);
  multiply_widened(args);
}

void gemm_batched(const MixedGemmArgs& args, const GemmBatch& batch) {
  const auto multiply = [&](int64_t i) {
    MixedGemmArgs one = args;
    one.a = one.a + i * batch.stride_a;
    one.b = one.b + i * batch.stride_b;
    for (GemmMatrix* x : {&one.c, &one.pre_activation, &one.factor, &one.residual})
      *x = *x + i * batch.stride_c;
    gemm_mixed(one);
  };
  if (batch.count < num_threads()) {
    for (int64_t i = 0; i < batch.count; ++i) multiply(i);
  } else {
    parallel_for(batch.count, [&](int64_t i, int) { multiply(i); });
  }
}

}  // namespace multihead::kernels
