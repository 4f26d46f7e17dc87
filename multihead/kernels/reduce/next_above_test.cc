#include "multihead/kernels/reduce/next_above.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

TEST(NextAboveTest, FindsTheFirst) {
  const testing::EverywhereScope scope;
  for (const Isa isa : kernels::kIsas) {
    if (isa > best_isa()) continue;
    set_isa(isa);
    std::vector<float> x(211, 1.0f);
    x[3] = NAN;
    EXPECT_EQ(next_above(x.data(), 0, 211, 1.0f), 211);
    EXPECT_EQ(next_above(x.data(), 5, 211, 0.5f), 5);
    EXPECT_EQ(next_above(x.data(), 7, 7, 0.5f), 7);
    for (const int64_t at : {0, 1, 63, 64, 127, 130, 209, 210}) {
      x[static_cast<size_t>(at)] = 2;
      EXPECT_EQ(next_above(x.data(), 0, 211, 1.0f), at);
      EXPECT_EQ(next_above(x.data(), at + 1, 211, 1.0f), 211);
      x[static_cast<size_t>(at)] = 1;
    }
  }
}

}  // namespace
}  // namespace multihead::kernels
