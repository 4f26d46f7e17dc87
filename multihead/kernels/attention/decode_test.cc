// Few queries on a long cache: a way of its own on AVX-512, with the bits of the tiles that AVX2 runs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/kernels/attention/attention.h"
#include "multihead/testing/attention_case.h"

namespace multihead {
namespace {

using kernels::Isa;
using testing::AttentionCase;
using testing::CaseOptions;

struct IsaGuard {
  Isa before = kernels::current_isa();
  ~IsaGuard() { kernels::set_isa(before); }
};

struct Size {
  int64_t group, queries, keys, head_dim, value_dim;
};

// 1 to 8 rows, ends inside runs of 16 keys and blocks of 256, dimensions on and off multiples of 32 and 64.
std::vector<CaseOptions> cases() {
  const Size sizes[] = {{1, 1, 257, 64, 64},  {2, 1, 531, 128, 128}, {4, 1, 300, 128, 64},
                        {8, 1, 271, 48, 112}, {3, 1, 1025, 16, 16},  {5, 1, 15, 256, 256},
                        {1, 7, 97, 80, 48},   {2, 3, 512, 32, 240},  {1, 1, 1, 16, 32}};
  std::vector<CaseOptions> list;
  for (const Size& s : sizes) {
    CaseOptions o;
    o.batch = 2, o.kv_heads = 2, o.heads = 2 * s.group, o.queries = s.queries, o.keys = s.keys;
    o.head_dim = s.head_dim, o.value_dim = s.value_dim, o.causal = true;
    list.push_back(o);
    o.layout = testing::Layout::bthd, o.key_lengths = true, o.seed = 2;
    list.push_back(o);
    o.window_left = 37, o.causal = false, o.key_lengths = false;
    list.push_back(o);
  }
  return list;
}

std::string describe(const CaseOptions& o) {
  return concat("heads ", o.heads, " queries ", o.queries, " keys ", o.keys, " dims ", o.head_dim, " ",
                o.value_dim, " window ", o.window_left);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST(AttentionDecodeTest, F32HasTheBitsOfTheTiles) {
  if (kernels::best_isa() < Isa::avx512) GTEST_SKIP() << "needs AVX-512";
  const IsaGuard guard;
  for (const CaseOptions& o : cases()) {
    SCOPED_TRACE(describe(o));
    AttentionCase c(o);
    kernels::set_isa(Isa::avx512);
    const auto few = c.fused(false);
    kernels::set_isa(Isa::avx2);
    const auto tiles = c.fused(false);
    EXPECT_TRUE(same_bits(few.out, tiles.out));
    EXPECT_TRUE(same_bits(few.lse, tiles.lse));
  }
}

// bf16 values that are exact in f32, so that only the output is rounded.
TEST(AttentionDecodeTest, WidenedBrainFloatHasTheBitsOfF32) {
  kernels::set_bf16_dots(false);
  for (const CaseOptions& o : cases()) {
    SCOPED_TRACE(describe(o));
    AttentionCase c(o);
    const auto round = [](std::vector<float>& x) {
      std::vector<BFloat16> y(x.begin(), x.end());
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(y[i]);
      return y;
    };
    const auto q = round(c.query), k = round(c.key), v = round(c.value);
    const auto f32 = c.fused(false);
    std::vector<BFloat16> out(f32.out.size(), BFloat16(std::nanf("")));
    std::vector<BFloat16> expected(f32.out.begin(), f32.out.end());
    std::vector<float> lse(f32.lse.size(), std::nanf(""));
    kernels::attention_forward(c.problem, c.terms<float>(), c.input(q, k, v), c.output(out, lse));
    EXPECT_TRUE(same_bits(out, expected));
    EXPECT_TRUE(same_bits(lse, f32.lse));
  }
  kernels::set_bf16_dots(true);
}

}  // namespace
}  // namespace multihead
