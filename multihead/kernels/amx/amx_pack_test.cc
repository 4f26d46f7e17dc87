// Packing for tiles against plain loops.
#include <gtest/gtest.h>

#include <vector>

#include "multihead/core/dtype.h"
#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::normal_floats;

// Parts against a plain splitting, in both layouts, from both types, at edges and with zeros before.
TEST(AmxPackTest, PartsAndPlaces) {
  const auto round = [](float x) { return static_cast<float>(BFloat16(x)); };
  for (int parts : {1, 2, 3}) {
    for (int kind = 0; kind < 8; ++kind) {
      const bool rows = kind & 1, k_first = kind & 2, bf16 = kind & 4;
      const int64_t lines = 37, count = 71, before = kind % 3 == 0 ? 0 : 13;
      const std::vector<float> x = normal_floats(lines * count, 3);
      const std::vector<BFloat16> narrow(x.begin(), x.end());
      const AmxOperand from{bf16 ? static_cast<const void*>(narrow.data()) : x.data(),
                            bf16,
                            k_first ? count : 1,
                            k_first ? 1 : lines,
                            lines,
                            count,
                            before};
      const int64_t steps = amx_steps(before + count), strips = amx_strips(lines);
      std::vector<uint16_t> to(static_cast<size_t>(strips * steps * parts * kAmxWords), 0xFFFF);
      EXPECT_FALSE(
          amx_pack(from, rows ? AmxSide::rows : AmxSide::columns, parts, NotFinite::zero, to.data()));
      for (int64_t line = 0; line < strips * 16; ++line) {
        for (int64_t k = 0; k < steps * 32; ++k) {
          const bool inside = line < lines && k >= before && k < before + count;
          float value =
              inside
                  ? x[static_cast<size_t>(k_first ? line * count + k - before : (k - before) * lines + line)]
                  : 0.0f;
          if (bf16) value = round(value);
          const int64_t i = line % 16, j = k % 32;
          const int64_t at = rows ? i * 32 + j : (j / 2 * 16 + i) * 2 + j % 2;
          for (int part = 0; part < parts; ++part) {
            const int64_t tile = (line / 16 * steps + k / 32) * parts + part;
            ASSERT_EQ(to[static_cast<size_t>(tile * kAmxWords + at)], BFloat16(value).bits) << kind;
            value -= round(value);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace multihead::kernels
