// Whether this compiler has the instructions of tiles, MH_TILES, and their names if so. Internal.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define MH_TILES 1
#pragma GCC diagnostic push
#if !defined(__clang__)  // GCC 12 takes the undefined operands of intrinsics for uninitialised ones
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#define MH_TILES 0
#endif
