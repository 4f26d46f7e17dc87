// Which instruction set the kernels dispatch to.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace multihead::kernels {

/// Ordered: on one kind of processor each level includes the ones before. `baseline` is what the compiler's target
/// promises: SSE2; on ARM NEON, too, but for attention, which runs in plain loops there.
enum class Isa { baseline, neon, avx2, avx512 };
/// The levels of this kind of processor.
#if defined(__aarch64__)
inline constexpr auto kIsas = {Isa::baseline, Isa::neon};
#else
inline constexpr auto kIsas = {Isa::baseline, Isa::avx2, Isa::avx512};
#endif

/// The best level that this CPU has and MULTIHEAD_ISA / set_isa() allow.
Isa current_isa();
/// The best level of this CPU.
Isa best_isa();
/// Caps dispatch for every later kernel call of the process; a build without `isa` (MULTIHEAD_TARGETS) takes
/// the best below. Throws ValueError if the CPU, or this build, has nothing as good.
/// Not to be called while kernels run.
void set_isa(Isa isa);

/// Whether bf16 products run on pairs: AVX512_BF16's dots need current_isa() avx512 and a CPU where they are twice as
/// fast as f32 (AMD's; Intel's run at half the f32 rate), ARM's (FEAT_BF16: bfdot, bfmmla) `neon`. Else bf16 is widened
/// to f32. The three round differently in the last bits.
bool bf16_dots();
/// Forbids them, and products of bf16 on tiles, or allows them again. Not to be called while kernels run.
void set_bf16_dots(bool allowed);
/// As set; whether the CPU has any is another matter.
bool bf16_dots_allowed();

/// Whether int8 products add four at once (AVX512_VNNI, which needs current_isa() avx512; ARM's dot products, `neon`):
/// if the CPU can. Else int8 is widened; the sums are integers, so the bits are the same.
bool int8_dots();
/// Whether they moreover take two rows by two columns at once (ARM's int8 matrix products), eight values of each.
bool int8_squares();
/// Forbids both, or allows them again. Not to be called while kernels run.
void set_int8_dots(bool allowed);

/// What to tell users if the CPU has AVX2 but this build, made for another CPU alone, no vectors for it; else "".
std::string missing_vectors();

std::string_view isa_name(Isa isa);
/// "baseline", "avx2", "avx512", on ARM "neon"; throws ValueError unless it is one of kIsas.
Isa parse_isa(std::string_view name);

/// The CPU's own name, e.g. "AMD EPYC".
std::string_view cpu_name();

}  // namespace multihead::kernels
