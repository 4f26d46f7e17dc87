#include "multihead/kernels/cpu/peak.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "multihead/kernels/cpu/isa.h"

namespace multihead::kernels {
namespace {

TEST(PeakTest, WiderVectorsDoNotComputeSlower) {
  double previous = 0;
  for (Isa isa : {Isa::baseline, Isa::avx2}) {
    if (isa > best_isa()) continue;
    set_isa(isa);
    double best = 0;
    for (int i = 0; i < 5; ++i) best = std::max(best, fma_gflops());
    EXPECT_GT(best, previous);
    EXPECT_LT(best, 1e4);
    previous = best;
  }
  set_isa(best_isa());
}

TEST(PeakTest, BrainFloatUnitsAreFasterThanNothing) {
  EXPECT_EQ(bf16_unit().empty(), bf16_gflops() == 0);
  if (!bf16_unit().empty()) {
    EXPECT_GT(bf16_gflops(), 10);
    set_isa(Isa::avx2);
    EXPECT_EQ(bf16_unit(), "");
    EXPECT_EQ(bf16_gflops(), 0);
    set_isa(best_isa());
  }
}

TEST(PeakTest, BandwidthsAreSane) {
  std::vector<float> from(1 << 16, 1.0f), to(1 << 16, 0.0f);
  const size_t bytes = from.size() * sizeof(float);
  for (double gbps : {read_gbps(from.data(), bytes), copy_gbps(to.data(), from.data(), bytes)}) {
    EXPECT_GT(gbps, 0.1);
    EXPECT_LT(gbps, 1e5);
  }
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace multihead::kernels
