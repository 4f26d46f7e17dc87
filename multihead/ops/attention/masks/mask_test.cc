#include "multihead/ops/attention/masks/mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/inspect/explain.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/attention/testing-inl.h"

namespace multihead {
namespace {

using ::testing::HasSubstr;

// A tensor must never become a mask without saying which way round it is.
static_assert(!std::is_convertible_v<Tensor, Mask>);
static_assert(!std::is_constructible_v<Mask, Tensor>);
static_assert(!std::is_convertible_v<int64_t, Diagonal>);

template <class Error, class F>
std::string message(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing or something else was thrown";
  return "";
}

// keep matrix [Tq][Tk] as seen through attention with all-equal scores: 1 where the weight is not zero.
std::vector<std::string> seen(const Mask& mask, int64_t queries, int64_t keys) {
  AttentionCapture capture;
  attention(Tensor::zeros({1, 1, queries, 2}), Tensor::zeros({1, 1, keys, 2}), Tensor::zeros({1, 1, keys, 2}),
            {.mask = mask, .capture = &capture});
  std::vector<std::string> rows;
  for (int64_t i = 0; i < queries; ++i) {
    rows.emplace_back();
    for (int64_t j = 0; j < keys; ++j) rows.back() += capture.weights.at({0, 0, i, j}) > 0 ? '1' : '.';
  }
  return rows;
}

using Rows = std::vector<std::string>;

TEST(MaskTest, CausalAlignsAtTheEnd) {
  EXPECT_EQ(seen(causal(), 2, 4), (Rows{"111.", "1111"}));
  EXPECT_EQ(seen(causal(Align::start), 2, 4), (Rows{"1...", "11.."}));
  EXPECT_EQ(seen(causal(), 4, 2), (Rows{"..", "..", "1.", "11"}));
  EXPECT_EQ(seen(causal_offset(1), 2, 4), (Rows{"11..", "111."}));
  EXPECT_EQ(seen(causal_offset(ints({-1})), 2, 4), (Rows{"....", "1..."}));
}

TEST(MaskTest, WindowsCountKeysAroundTheDiagonal) {
  EXPECT_EQ(seen(window(1, 0), 3, 3), (Rows{"1..", "11.", ".11"}));
  EXPECT_EQ(seen(window(-1, 1), 3, 3), (Rows{"11.", "111", "111"}));
  EXPECT_EQ(seen(window(0, 0, Align::start), 2, 4), (Rows{"1...", ".1.."}));
  EXPECT_EQ(seen(window(0, 0), 2, 4), (Rows{"..1.", "...1"}));
  EXPECT_EQ(seen(causal() & window(1, 1, Align::start), 2, 4), (Rows{"11..", "111."}));
}

TEST(MaskTest, TheNarrowerOfTwoWindowsCounts) {
  const Rows expected = {"11..", "111.", ".111", "..11"};
  EXPECT_EQ(seen(window(1, 3) & window(2, 1), 4, 4), expected);
  EXPECT_EQ(seen(window(1, -1) & window(-1, 1), 4, 4), expected);
}

TEST(MaskTest, PrefixIsVisibleToAll) {
  EXPECT_EQ(seen(prefix(2), 4, 4), (Rows{"11..", "11..", "111.", "1111"}));
  EXPECT_EQ(seen(prefix(ints({3}), Align::start), 2, 4), (Rows{"111.", "111."}));
}

TEST(MaskTest, LengthsCutKeysAndQueries) {
  EXPECT_EQ(seen(lengths(ints({2})), 2, 3), (Rows{"11.", "11."}));
  EXPECT_EQ(seen(lengths(Tensor::of<int32_t>({1, 2}, {0, 3})), 2, 3), (Rows{"...", "111"}));
  EXPECT_EQ(seen(query_lengths(ints({1})), 2, 3), (Rows{"111", "..."}));
  EXPECT_EQ(seen(lengths(ints({3})) & lengths(ints({1})), 1, 3), (Rows{"1.."}));
}

TEST(MaskTest, DocumentsSeeThemselves) {
  EXPECT_EQ(seen(documents(ints({4, 4, 9})), 3, 3), (Rows{"11.", "11.", "..1"}));
  EXPECT_EQ(seen(documents(ints({4, 9, 4})), 3, 3), (Rows{"1.1", ".1.", "1.1"}));
  EXPECT_EQ(seen(documents(ints({7, 4}), ints({4, 4, 5})), 2, 3), (Rows{"...", "11."}));
}

TEST(MaskTest, FlagsKeepOrDrop) {
  const Tensor flags = Tensor::of<bool>({2, 3}, {true, false, true, false, false, true});
  EXPECT_EQ(seen(keep(flags), 2, 3), (Rows{"1.1", "..1"}));
  EXPECT_EQ(seen(drop(flags), 2, 3), (Rows{".1.", "11."}));
  EXPECT_EQ(seen(keep(flags) & drop(Tensor::of<bool>({3}, {true, false, false})), 2, 3),
            (Rows{"..1", "..1"}));
  EXPECT_EQ(seen(blocks(Tensor::of<bool>({2, 2}, {true, false, false, true}), 1, 2), 2, 3),
            (Rows{"11.", "..1"}));
}

TEST(MaskTest, FlagsMayHaveAnyStrides) {
  const Tensor flags = Tensor::of<bool>({3, 2}, {true, false, false, false, true, true});
  const Tensor transposed = flags.as_strided({2, 3}, {1, 2});
  EXPECT_EQ(seen(keep(transposed), 2, 3), (Rows{"1.1", "..1"}));
  EXPECT_EQ(seen(drop(transposed), 2, 3), (Rows{".1.", "11."}));
  // Sizes of 1 may have any stride.
  EXPECT_EQ(seen(keep(flags.as_strided({1, 1, 2, 3}, {999, -77, 1, 2})), 2, 3), (Rows{"1.1", "..1"}));
}

TEST(MaskTest, BlocksOfEverySizeMeetTiles) {
  for (const auto& [query_block, key_block] :
       {std::pair<int64_t, int64_t>{1, 16}, {3, 5}, {100, 7}, {64, 64}, {999, 1}}) {
    const Tensor flags = Tensor::empty(
        {(150 + query_block - 1) / query_block, (150 + key_block - 1) / key_block}, Dtype::boolean);
    for (int64_t i = 0; i < flags.numel(); ++i) flags.data<bool>()[i] = i * i % 7 < 3;
    const Tensor pairs = Tensor::empty({150, 150}, Dtype::boolean);
    for (int64_t i = 0; i < 150 * 150; ++i) {
      pairs.data<bool>()[i] = flags.at({i / 150 / query_block, i % 150 / key_block}) != 0;
    }
    EXPECT_EQ(seen(blocks(flags, query_block, key_block), 150, 150), seen(keep(pairs), 150, 150))
        << key_block;
  }
}

TEST(MaskTest, FunctionsSeePositions) {
  const auto even = mask_mod([](ScoreIndex at) { return (at.query + at.key) % 2 == 0; });
  EXPECT_EQ(seen(even, 2, 3), (Rows{".1.", "1.1"}));  // the queries are at positions 1 and 2
  const auto rows = mask_mod([](ScoreIndex at) { return at.row == 0; });
  EXPECT_EQ(seen(rows & causal(), 2, 3), (Rows{"11.", "..."}));
}

TEST(MaskTest, ClassifiedBlocksAreNotEvaluated) {
  if (kernels::current_isa() == kernels::Isa::baseline) GTEST_SKIP() << "the plain loops have no blocks";
  std::atomic<int64_t> calls{0};
  const auto triangle = [&calls](ScoreIndex at) {
    ++calls;
    return at.key <= at.query;
  };
  const auto classify = [](const MaskBlock& block) {
    if (block.key_begin >= block.query_end) return BlockClass::empty;
    return block.key_end <= block.query_begin + 1 ? BlockClass::full : BlockClass::partial;
  };
  Rng rng(1);
  const Tensor x = randn({1, 1, 1024, 8}, rng);
  const Tensor y = attention(x, x, x, {.mask = mask_mod(triangle, classify)});
  EXPECT_GT(calls, 0);
  EXPECT_LT(calls, 1024 * 1024 / 2) << "only blocks on the diagonal need the function";
  const std::vector<float> expected = attention(x, x, x, {.mask = causal()}).to_vector<float>();
  const std::vector<float> got = y.to_vector<float>();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-6);
}

// A block that a function turns out to leave empty is skipped as one that is known to be.
TEST(MaskTest, BlocksThatAFunctionLeavesEmptyChangeNoBit) {
  const auto window = [](ScoreIndex at) {
    return at.query != 5 && at.key <= at.query && (at.key < 4 || at.query - at.key < 100);
  };
  const auto classify = [](const MaskBlock& block) {
    const bool behind = block.key_begin >= 4 && block.query_begin - (block.key_end - 1) >= 100;
    return block.key_begin >= block.query_end || behind ? BlockClass::empty : BlockClass::partial;
  };
  const auto run = [](const Mask& mask) {
    Rng rng(3);
    std::vector<std::vector<float>> results;
    const Tensor q = randn({1, 2, 1031, 8}, rng), k = randn({1, 2, 1031, 8}, rng),
                 v = randn({1, 2, 1031, 8}, rng);
    for (Tensor x : {q, k, v}) x.set_requires_grad();
    Tape tape;
    const Tensor y = attention(q, k, v, {.mask = mask});
    tape.backward(y, randn(y.shape(), rng));
    for (const Tensor& x : {y, q.grad(), k.grad(), v.grad()}) results.push_back(x.to_vector<float>());
    return results;
  };
  const auto skipped = run(mask_mod(window)), known = run(mask_mod(window, classify));
  EXPECT_EQ(skipped, known);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(skipped[0][5 * 8 + i], 0) << "query 5 sees nothing";
}

TEST(MaskTest, ConjunctionIsSymmetricAndKeepsItsOperands) {
  Mask a = causal();
  const Mask b = a & lengths(ints({2}));
  EXPECT_EQ(a.parts().size(), 1u);
  EXPECT_EQ(seen(b, 3, 3), seen(lengths(ints({2})) & a, 3, 3));
  const Mask& same = a;
  a &= same;
  EXPECT_EQ(a.parts().size(), 2u);
  EXPECT_EQ(seen(a, 3, 3), seen(causal(), 3, 3));
}

TEST(MaskTest, PrintsItself) {
  EXPECT_EQ(Mask().to_string(), "all");
  EXPECT_THROW(Mask(std::shared_ptr<const MaskPart>()), ValueError);
  const Mask mask = causal(Align::start) & window(3, -1) & lengths(Tensor::zeros({2, 5}, Dtype::i64)) &
                    causal_offset(-4) & keep(Tensor::ones({7}, Dtype::boolean));
  EXPECT_EQ(mask.to_string(),
            "causal(start) & window(3, -1, end) & lengths([2, 5]) & causal(offset=-4) & keep([7])");
}

TEST(MaskTest, RefusesWrongTypes) {
  const Tensor floats = Tensor::ones({2, 3}), ints64 = Tensor::ones({2, 3}, Dtype::i64);
  EXPECT_THAT(message<DtypeError>([&] { keep(floats); }),
              HasSubstr("keep: flags must be bool, got f32; numbers to add to the scores are a bias"));
  EXPECT_THAT(message<DtypeError>([&] { drop(ints64); }), HasSubstr("drop: flags must be bool, got i64"));
  EXPECT_THAT(message<DtypeError>([&] { lengths(floats); }),
              HasSubstr("lengths: valid_lens must be i64 or i32, got f32"));
  EXPECT_THAT(message<ShapeError>([&] {
                lengths(Tensor::ones({1, 2, 3}, Dtype::i64));
              }),
              HasSubstr("must be [B] or [B, Tq], got [1, 2, 3]"));
  EXPECT_THAT(message<ShapeError>([&] { query_lengths(ints64); }), HasSubstr("must be [B], got [2, 3]"));
  EXPECT_THAT(message<ShapeError>([&] {
                keep(Tensor::ones({1, 1, 1, 1, 1}, Dtype::boolean));
              }),
              HasSubstr("must broadcast to [B, H, Tq, Tk]"));
  EXPECT_THAT(message<ValueError>([&] { window(-2, 0); }),
              HasSubstr("left must be >= 0, or -1 for all, got -2"));
  EXPECT_THAT(message<ValueError>([&] { window(0, -3); }), HasSubstr("right must be >= 0"));
  EXPECT_THAT(message<ValueError>([&] { blocks(Tensor::ones({1}, Dtype::boolean), 0, 2); }),
              HasSubstr("block sizes must be > 0, got 0 and 2"));
  EXPECT_THROW(keep(Tensor()), ValueError);
  EXPECT_THROW(lengths(Tensor()), ValueError);
  EXPECT_THROW(causal_offset(Tensor()), ValueError);
}

// A function that says the same for every head, with and without the leave to be run once for all of them.
using Sees = bool (*)(int64_t query, int64_t key);
class ForEveryHead final : public detail::FunctionMask {
 public:
  ForEveryHead(Sees sees, bool once) : FunctionMask(Align::start), sees_(sees), once_(once) {}
  bool classifies() const override { return true; }
  bool every_head() const override { return once_; }
  void fill(const kernels::KeepTile& tile, int64_t) const override {
    for (int64_t k = 0; k < tile.key_count; ++k) {
      for (int64_t q = 0; q < tile.query_count; ++q) {
        tile.keep[k * tile.stride + q] = sees_(tile.query_begin + q, tile.key_begin + k);
      }
    }
  }

 private:
  Sees sees_;
  bool once_;
};

Mask for_every_head(Sees sees, bool once) { return Mask(std::make_shared<ForEveryHead>(sees, once)); }

TEST(MaskTest, FunctionsThatGiveRunsOfKeysRunOnceForAllHeads) {
  const Sees documents = [](int64_t q, int64_t k) { return q / 37 == k / 37; };
  const Sees strided = [](int64_t q, int64_t k) { return (q + k) % 3 == 0; };
  const Sees nothing = [](int64_t q, int64_t k) { return q == 5 && k > 70; };
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{1, 131}, {63, 64}, {131, 67}, {193, 193}}) {
    for (const auto f : {documents, strided, nothing}) {
      EXPECT_EQ(seen(for_every_head(f, true), queries, keys), seen(for_every_head(f, false), queries, keys));
      // Beside a band, whose outside does not matter.
      EXPECT_EQ(seen(window(20, 3, Align::start) & for_every_head(f, true), queries, keys),
                seen(for_every_head(f, false) & window(20, 3, Align::start), queries, keys));
    }
  }
  const Tensor x = Tensor::zeros({1, 2, 193, 4});
  EXPECT_THAT(explain(x, x, x, {.mask = for_every_head(documents, true)}).to_string(),
              HasSubstr("intervals of keys"));
  EXPECT_THAT(explain(x, x, x, {.mask = for_every_head(strided, true)}).to_string(),
              HasSubstr("blocks classified"));
}

}  // namespace
}  // namespace multihead
