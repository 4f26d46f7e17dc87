// Matrix products on bf16 tiles: operands packed as sums of bf16 parts, and strips of them multiplied.
// Internal; gemm and attention come here.
//
// A number is x = x1 + x2 + x3, each part bf16, each the rest of the parts before rounded to nearest even:
//   1 product   x1 y1
//   3 products  x1 y1 + x1 y2 + x2 y1
//   6 products  … + x1 y3 + x2 y2 + x3 y1
// all into the same f32 sums. A tile of C is 16 x 16; one instruction adds 32 products to each of its
// elements. A packed strip is 16 rows of A, or 16 columns of B with neighbours in k side by side, 32 of k
// after the other, the parts of one step together.
#pragma once

#include <cstdint>

#include "multihead/kernels/amx/precision.h"

namespace multihead::kernels {

/// Who multiplies tiles: the CPU's AMX unit, or plain loops that follow the instruction's description.
enum class TileUnit { amx, emulated };

inline constexpr int64_t kAmxLines = 16, kAmxStep = 32;  // rows and columns; k of one instruction
inline constexpr int64_t kAmxWords = kAmxLines * kAmxStep;

struct PartScheme {
  int parts = 1, products = 1;
};
PartScheme part_scheme(MatmulPrecision precision);

constexpr int64_t amx_steps(int64_t count) { return (count + kAmxStep - 1) / kAmxStep; }
constexpr int64_t amx_strips(int64_t lines) { return (lines + kAmxLines - 1) / kAmxLines; }

/// `lines` rows of A or columns of B with `count` numbers each; `before` zeros precede them in k. One of the
/// strides (in elements) is 1.
struct AmxOperand {
  const void* data = nullptr;
  bool bf16 = false;
  int64_t line_stride = 1, k_stride = 1, lines = 0, count = 0, before = 0;
};

enum class AmxSide { rows, columns };
/// Inf times the second part of a number may be Inf times zero, so numbers that are not finite are packed as
/// zeros and the caller adds their products; or they are kept (NaN stays NaN in any sum).
enum class NotFinite { zero, keep };

/// Distances in words between packed pairs of strips, the strips of one, steps of k, and parts of a step.
struct AmxPlaces {
  uint16_t* first = nullptr;
  int64_t pair = 0, strip = 0, step = 0, part = 0;
};

/// Writes each strip's tiles where `to` says, zeros beyond the ends. True if a number was not finite.
bool amx_pack(const AmxOperand& from, AmxSide side, int parts, NotFinite rule, const AmxPlaces& to);
/// to = [strip][step][part][kAmxWords].
bool amx_pack(const AmxOperand& from, AmxSide side, int parts, NotFinite rule, uint16_t* to);

/// to[j][i] = from[i][j] of 16 x 16 floats, rows at such distances.
void transpose_tile(const float* from, int64_t from_stride, float* to, int64_t to_stride);

/// This thread's tile registers, all eight 16 rows of 64 bytes, while alive. Not to be nested.
class AmxRegisters {
 public:
  explicit AmxRegisters(bool wanted);
  ~AmxRegisters();
  AmxRegisters(const AmxRegisters&) = delete;
  AmxRegisters& operator=(const AmxRegisters&) = delete;

 private:
  bool wanted_;
};

}  // namespace multihead::kernels
