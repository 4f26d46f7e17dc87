// The one place where an engine is chosen.

#if defined(MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_INL_H_
#undef MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_INL_H_
#else
#define MULTIHEAD_KERNELS_ATTENTION_ENGINES_ENGINE_INL_H_
#endif

#include <type_traits>

#include "multihead/kernels/attention/engines/engine_f32-inl.h"
#include "multihead/kernels/attention/engines/engine_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

// f(std::type_identity<E>()) for the type E of an engine without tiles.
template <class Body>
HWY_INLINE auto WithEngine([[maybe_unused]] Engine engine, const Body& f) {
#if HWY_TARGET == HWY_AVX3  // a CPU with tiles has it
  if (engine == Engine::pairs) return f(std::type_identity<PairsEngine>());
#endif
  return f(std::type_identity<F32Engine>());
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
