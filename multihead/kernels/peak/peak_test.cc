#include "multihead/kernels/peak/peak.h"

#include <gtest/gtest.h>

#include <vector>

#include "multihead/kernels/cpu/isa.h"

namespace multihead::kernels {
namespace {

// How fast anything is depends on who else has the machine: what is asked here holds on any.
TEST(PeakTest, EveryInstructionSetIsMeasured) {
  for (const Isa isa : kIsas) {
    if (isa > best_isa()) break;
    set_isa(isa);
    EXPECT_GT(fma_gflops(1e-4), 0);
  }
  set_isa(best_isa());
}

TEST(PeakTest, BrainFloatUnitsFollowTheInstructionSet) {
  EXPECT_EQ(bf16_unit().empty(), bf16_gflops(1e-4) == 0);
  for (const Isa isa : kIsas) {
    if (isa == best_isa()) break;
    set_isa(isa);
    EXPECT_EQ(bf16_unit(), "");
    EXPECT_EQ(bf16_gflops(1e-4), 0);
  }
  set_isa(best_isa());
}

TEST(PeakTest, BandwidthsCountWhatWasReadAndCopied) {
  std::vector<float> from(1 << 16, 1.0f), to(1 << 16, 0.0f);
  const size_t bytes = from.size() * sizeof(float);
  EXPECT_GT(read_gbps(from.data(), bytes, 1e-4), 0);
  EXPECT_GT(copy_gbps(to.data(), from.data(), bytes, 1e-4), 0);
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace multihead::kernels
