// A product in the words of an engine (micro_kernel-inl.h).

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_PRODUCT_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_PRODUCT_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_PRODUCT_INL_H_
#endif

#include "multihead/kernels/matmul/blocking-inl.h"
#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// A product as an engine reads it.
template <class Engine>
struct Product {
  using Args = typename Engine::Args;

  explicit Product(const Args& args)
      : g(args),
        words(ceil_div(g.k, Engine::kDepth)),
        a(Engine::InPlace(g.a, g.a16, g.lda, g.ta == Transpose::no, g.k)),
        b(Engine::InPlace(g.b, g.b16, g.ldb, g.tb == Transpose::yes, g.k)) {}

  const Args& g;
  int64_t words;  // along k
  WordsInPlace<typename Engine::Real> a, b;
};

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
