#include "multihead/kernels/cpu/isa.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "hwy/targets.h"

namespace multihead::kernels {
namespace {

TEST(IsaTest, NamesAndLevelsAgree) {
  for (Isa isa : kIsas) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_THROW(parse_isa("AVX2"), std::invalid_argument);
  EXPECT_THROW(parse_isa(""), std::invalid_argument);
  EXPECT_FALSE(cpu_name().empty());
}

TEST(IsaTest, SetIsaCapsAndRestores) {
  const Isa before = current_isa();
  std::set<size_t> chosen;  // what kernels run
  for (Isa isa : kIsas) {
    if (isa <= best_isa()) {
      set_isa(isa);
      EXPECT_EQ(current_isa(), isa);
      const bool is_new = chosen.insert(hwy::GetChosenTarget().GetIndex()).second;
      EXPECT_TRUE(is_new || isa == Isa::neon) << "runs as another: " << isa_name(isa);
    } else {
      EXPECT_THROW(set_isa(isa), std::invalid_argument);
    }
    EXPECT_LE(current_isa(), best_isa());
  }
  set_isa(before);
  EXPECT_EQ(current_isa(), before);
}

TEST(IsaTest, ABuildWithVectorsLacksNone) {
  if (best_isa() == Isa::baseline) GTEST_SKIP() << missing_vectors();
  EXPECT_EQ(missing_vectors(), "");
}

}  // namespace
}  // namespace multihead::kernels
