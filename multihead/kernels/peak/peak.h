// Measures what this core can do right now: the yardstick that benchmarks divide by.
//
// Clocks of shared machines drift within a second, so run a burst of about a millisecond right before or
// after each piece of work it is compared with, and look at the median of the ratios.
#pragma once

#include <cstddef>
#include <string_view>

namespace multihead::kernels {

/// CPU time of the calling thread: unlike the wall's, it stands still while another process has the core.
double thread_seconds();

/// GFLOP/s of f32 multiply-adds in registers on the calling thread, with the vectors of current_isa().
double fma_gflops(double seconds = 1e-3);

/// The unit that multiplies bf16 on this CPU, as far as MULTIHEAD_ISA allows: "tiles" (AMX), "dots"
/// (AVX512_BF16), "squares" (ARM's bfmmla) or "".
std::string_view bf16_unit();

/// GFLOP/s of bf16 products summed in f32 that bf16_unit() reaches in registers, on random numbers; 0 if
/// there is none.
double bf16_gflops(double seconds = 1e-3);

/// GB/s at which the calling thread reads `bytes` bytes, measured over at least `seconds`.
double read_gbps(const float* data, size_t bytes, double seconds = 1e-3);

/// GB/s copied (counting each byte once) from one array to another that does not overlap it.
double copy_gbps(float* to, const float* from, size_t bytes, double seconds = 1e-3);

}  // namespace multihead::kernels
