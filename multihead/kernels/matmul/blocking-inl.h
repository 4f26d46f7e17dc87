// How a product is cut. Lengths along k and sizes are in words (micro_kernel-inl.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "multihead/core/threads/per_thread-inl.h"
#include "multihead/kernels/cpu/scratch-inl.h"

namespace multihead::kernels {

template <class Real>
inline constexpr int64_t kBlockWords = (1 << 19) /
                                       sizeof(Real);  // of A that one task multiplies at once: half of an L2
inline constexpr int64_t kChunkK = 1024;              // longest chunk of k: a panel of B is 256 KiB
inline constexpr int64_t kShortChunkK = 256;          // of a transposed A, where C stays in L2
inline constexpr int64_t kInPlaceChunkK = 512;        // shorter where rows of B may lie a power of two apart
template <class Real>
inline constexpr int64_t kPackedWords = (1 << 24) / sizeof(Real);  // of B packed at once
inline constexpr int64_t kInPlaceRows = 192;  // rows of C below which packing a row-major B does not pay
inline constexpr int64_t kStreamK = 256;      // below, panels and rows are too short to be worth prefetching
inline constexpr int64_t kStreamRows = 96;
template <class Real>
inline constexpr int64_t kLine = 64 / sizeof(Real);  // words of a cache line
inline constexpr int64_t kSerialFlops = 2'000'000;   // below, starting threads costs more than it saves
inline constexpr int64_t kTasksPerThread = 4;
inline constexpr int64_t kShortChunkFlops = 15'000'000;  // of a thread between the barriers of a short chunk
inline constexpr int64_t kPackHere =
    1 << 15;  // floats of B that the caller packs alone rather than wait for others

inline constexpr int64_t kReadCost = 32;  // flops that take as long as reading a float of B from memory
inline constexpr int64_t kFewRows = 8;    // up to this many rows of C, reading B is what takes the time

inline thread_local PerThread<Scratch> shared_scratch;   // packed B, read by every thread of one product
inline thread_local PerThread<Scratch> private_scratch;  // this thread's packed A

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace multihead::kernels
