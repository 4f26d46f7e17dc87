// Epilogue of a block of C: bias, the copy before the activation, activation, factor, residual.

// Toggles per target: this file is included once for each by foreach_target.h.
#if defined(MULTIHEAD_KERNELS_MATMUL_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_MATMUL_EPILOGUE_INL_H_
#undef MULTIHEAD_KERNELS_MATMUL_EPILOGUE_INL_H_
#else
#define MULTIHEAD_KERNELS_MATMUL_EPILOGUE_INL_H_
#endif

#include "multihead/kernels/matmul/engine_args.h"
#include "multihead/kernels/matmul/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

template <class T>
bool HasEpilogue(const GemmArgs<T>& g) {
  return g.bias != nullptr || g.pre_activation != nullptr || g.activation != Activation::none ||
         g.factor != nullptr || g.residual != nullptr;
}

// All of it for a block of C that has just been written and is still in L1. In epilogue.cc.
void Finish(const GemmArgs<float>& g, int64_t row, int64_t rows, int64_t column, int64_t columns);

// Finishes each block of C when the next one has been written: a tile's own sums are still on their way to
// the cache (3 % of a training step).
template <class F, class Real = float>
class Late {
 public:
  explicit Late(F finish) : finish_(finish) {}
  Late(const Late&) = delete;
  Late& operator=(const Late&) = delete;
  ~Late() { flush(); }

  void operator()(const BlockOf<Real>& block) {
    flush();
    next_ = block;
  }

 private:
  void flush() {
    if (next_.rows > 0) finish_(next_);
  }

  F finish_;
  BlockOf<Real> next_;
};

struct FinishBlock {
  const GemmArgs<float>& g;
  bool wanted = HasEpilogue(g);

  void operator()(const Block& b) const {
    if (wanted) Finish(g, b.row, b.rows, b.column, b.columns);
  }
};
using LateFinish = Late<FinishBlock>;

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
