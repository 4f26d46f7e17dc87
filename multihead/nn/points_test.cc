// Named points: nothing changes by looking; what is kept is what the formulas say; edits do what they say.
#include "multihead/nn/points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/transformer.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"
#include "multihead/testing/matchers.h"
#include "multihead/testing/option_cases.h"
#include "multihead/testing/tensors.h"

namespace multihead::nn {
namespace {

using testing::expect_near;
using ::testing::HasSubstr;
using testing::SameBits;
using ::testing::ThrowsMessage;

constexpr int64_t kSamples = 2, kTokens = 7, kModelWidth = 24, kModelHeads = 4;

TransformerLayerOptions options_of(Block block, bool norm_first) {
  TransformerLayerOptions options;
  options.attention = {.embed_dim = kModelWidth, .num_heads = kModelHeads, .num_kv_heads = 2};
  options.feed_forward = {.embed_dim = kModelWidth, .hidden_dim = 40, .gated = block == Block::sandwich};
  options.block = block, options.norm_first = norm_first;
  return options;
}

struct BlockCase {
  Block block = Block::sequential;
  bool norm_first = true;
};

Tensor input(uint64_t seed = 5) { return testing::normal({kSamples, kTokens, kModelWidth}, seed); }

LayerCall causal_call() {
  LayerCall call;
  call.attention.mask = causal();
  return call;
}

std::vector<float> values(const Tensor& x) { return contiguous(x).to_vector<float>(); }

class PointsTest : public ::testing::TestWithParam<BlockCase> {
 protected:
  Rng rng{3};
  TransformerLayer layer{options_of(GetParam().block, GetParam().norm_first), rng};
};

INSTANTIATE_TEST_SUITE_P(Blocks, PointsTest,
                         ::testing::Values(BlockCase{}, BlockCase{.norm_first = false},
                                           BlockCase{Block::parallel}, BlockCase{Block::parallel_shared},
                                           BlockCase{Block::sandwich}, BlockCase{Block::output_norms},
                                           BlockCase{Block::attention_only}));

TEST_P(PointsTest, LookingChangesNoBit) {
  const Tensor x = input(), y = layer(x, causal_call());
  Points points;
  points.keep("*.z").keep("resid_*");
  {
    const PointScope scope(points);
    EXPECT_EQ(values(layer(x, causal_call())), values(y));
  }
  EXPECT_EQ(points.kept().at("self_attn.z").shape(),
            (Shape{kSamples, kTokens, kModelHeads, kModelWidth / kModelHeads}));
  EXPECT_EQ(values(points.kept().at("resid_pre")), values(x));
  EXPECT_NO_THROW(points.check());
}

// Also of f64, whose activation functions are not the vectors' of f32.
TEST_P(PointsTest, NoKeptPointChangesABit) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    Rng own(3);
    TransformerLayer wide(options_of(GetParam().block, GetParam().norm_first), own);
    to(wide, dtype);
    const Tensor x = input().to(dtype), y = wide(x, causal_call());
    Points all;
    all.keep("*");
    {
      const PointScope scope(all);
      wide(x, causal_call());
    }
    for (const std::string& name : all.seen()) {
      Points one;
      one.keep(name);
      const PointScope scope(one);
      EXPECT_THAT(wide(x, causal_call()), SameBits(y)) << name << " in " << dtype;
    }
  }
}

TEST_P(PointsTest, TheStreamAddsUp) {
  Points points;
  points.keep("*");
  const PointScope scope(points);
  const Tensor y = layer(input(), causal_call());
  const auto& at = points.kept();
  Tensor stream = add(at.at("resid_pre"), at.at("attn_out"));
  if (GetParam().block == Block::sequential || layer.has_post_norms()) {
    expect_near(at.at("resid_mid"), stream);
  }
  if (!GetParam().norm_first) stream = layer.norm1(at.at("resid_mid"));
  if (GetParam().block != Block::attention_only) stream = add(stream, at.at("mlp_out"));
  expect_near(at.at("resid_post"), stream);
  if (GetParam().norm_first) expect_near(y, stream);
  if (!layer.has_post_norms()) {
    expect_near(at.at("attn_out"), add(sum(at.at("self_attn.result"), 2), layer.self_attn.out_proj.bias));
  }
  expect_near(at.at("self_attn.pattern"), softmax(at.at("self_attn.scores")));
}

TEST_P(PointsTest, EditedCopiesGiveTheSame) {
  const Tensor x = input(), y = layer(x, causal_call());
  Points points;
  points.edit("*", [](const std::string&, const Tensor& t) { return t.clone(); });
  const PointScope scope(points);
  expect_near(layer(x, causal_call()), y);
}

TEST_P(PointsTest, GradientsAtPointsAreThoseOfDifferences) {
  const Tensor x = input();
  const std::string name = "attn_out";
  Points points;
  points.keep(name).keep_gradient(name);
  {
    Tape tape;
    const PointScope scope(points);
    tape.backward(sum(square(layer(x, causal_call()))));
  }
  const Tensor gradient = points.gradients().at(name), direction = input(9);
  const auto loss = [&](double step) {
    Points moved;
    moved.edit(name, [&](const std::string&, const Tensor& t) { return add(t, scale(direction, step)); });
    const PointScope scope(moved);
    return sum(square(layer(x, causal_call()))).item();
  };
  const double expected = (loss(1e-2) - loss(-1e-2)) / 2e-2;
  EXPECT_NEAR(sum(mul(gradient, direction)).item(), expected, 2e-3 * std::abs(expected) + 1e-2);
}

// The tests below are the same for all blocks.
class AttentionPointsTest : public ::testing::Test {
 protected:
  Rng rng{3};
  TransformerLayer layer{options_of(Block::sequential, true), rng};
  Tensor x = input();
  Tensor run(Points& points) const {
    const PointScope scope(points);
    return layer(x, causal_call());
  }
};

TEST_F(AttentionPointsTest, KeepsChosenHeadsAndRows) {
  Points all, some;
  all.keep("self_attn.*");
  some.keep("self_attn.pattern", {.heads = {2, 0}, .rows = {-1, 3}})
      .keep("self_attn.z", {.heads = {2, 0}, .rows = {-1, 3}});
  run(all), run(some);
  const Tensor z = some.kept().at("self_attn.z"), pattern = some.kept().at("self_attn.pattern");
  ASSERT_EQ(z.shape(), (Shape{kSamples, 2, 2, kModelWidth / kModelHeads}));
  ASSERT_EQ(pattern.shape(), (Shape{kSamples, 2, 2, kTokens}));
  const Tensor whole_z = all.kept().at("self_attn.z"), whole = all.kept().at("self_attn.pattern");
  const auto piece = [](const Tensor& t, int axis, int64_t at) { return slice(t, axis, at, at + 1); };
  EXPECT_EQ(values(piece(piece(z, 1, 0), 2, 1)), values(piece(piece(whole_z, 1, kTokens - 1), 2, 0)));
  EXPECT_EQ(values(piece(piece(pattern, 1, 0), 2, 1)), values(piece(piece(whole, 1, 2), 2, 3)));
}

TEST_F(AttentionPointsTest, EditedRowsChangeThoseRowsAlone) {
  Points kept, edited;
  kept.keep("self_attn.z");
  edited.edit("self_attn.pattern", [](const std::string&, const Tensor& p) { return scale(p, 0); },
              {.heads = {1}, .rows = {-2}});
  edited.keep("self_attn.z");
  run(kept), run(edited);
  const Tensor before = kept.kept().at("self_attn.z"), after = edited.kept().at("self_attn.z");
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kModelHeads; ++h) {
      const Tensor was = slice(slice(before, 1, t, t + 1), 2, h, h + 1);
      const Tensor is = slice(slice(after, 1, t, t + 1), 2, h, h + 1);
      expect_near(is, t == kTokens - 2 && h == 1 ? scale(was, 0) : was);
    }
  }
}

TEST_F(AttentionPointsTest, GradientsFlowThroughEditedPatterns) {
  const auto gradient = [&](bool open) {
    Points points;
    if (open)
      points.edit("self_attn.pattern", [](const std::string&, const Tensor& p) { return scale(p, 1); });
    const Tensor leaf = x.clone().set_requires_grad();
    Tape tape;
    const PointScope scope(points);
    tape.backward(sum(square(layer(leaf, causal_call()))));
    return leaf.grad();
  };
  expect_near(gradient(true), gradient(false), 2e-4F);
}

TEST_F(AttentionPointsTest, PatternsOf16BitModelsCanBeEdited) {
  to(layer, Dtype::bf16);
  x = x.to(Dtype::bf16);
  const Tensor y = layer(x, causal_call());
  Points points;
  points.edit("self_attn.pattern", [](const std::string&, const Tensor& p) { return p.clone(); },
              {.rows = {2}});
  expect_near(run(points).to(Dtype::f32), y.to(Dtype::f32), 0.05F);
}

// Excluded pairs have no number for a backward to multiply: -inf times a gradient of 0 would be NaN.
TEST_F(AttentionPointsTest, EditsOfScoresHaveGradientsUnderAMask) {
  const Tensor factor = Tensor::ones({1}).set_requires_grad();
  const auto loss = [&](double by) {
    Points points;
    points.edit("self_attn.scores", [&](const std::string&, const Tensor& s) { return scale(s, by); });
    const PointScope scope(points);
    return sum(square(layer(x, causal_call()))).item();
  };
  const double expected = (loss(1 + 1e-2) - loss(1 - 1e-2)) / 2e-2;
  Points points;
  points.edit("self_attn.scores", [&](const std::string&, const Tensor& s) { return mul(s, factor); });
  const PointScope scope(points);
  Tape tape;
  const Tensor y = sum(square(layer(x, causal_call())));
  EXPECT_NEAR(y.item(), loss(1), 1e-3 * std::abs(y.item()));
  tape.backward(y);
  EXPECT_NEAR(factor.grad().item(), expected, 1e-2 * std::abs(expected));
}

TEST_F(AttentionPointsTest, ExcludedPairsStaySoUnderATape) {
  Points points;
  points.edit("self_attn.scores", [&](const std::string&, const Tensor& s) { return scale(s, 0); });
  const PointScope scope(points);
  Tape tape;
  EXPECT_THAT([&] { layer(x, causal_call()); },
              ThrowsMessage<ValueError>(HasSubstr("must leave excluded pairs")));
}

// Tensors kept under a tape have the gradient that the output has.
TEST_F(AttentionPointsTest, KeptPatternsHaveGradients) {
  const Tensor leaf = x.clone().set_requires_grad();
  Points points;
  points.keep("self_attn.pattern");
  const PointScope scope(points);
  Tape tape;
  layer(leaf, causal_call());
  ASSERT_EQ(points.kept().size(), 1u);
  const Tensor pattern = points.kept().begin()->second;
  ASSERT_TRUE(pattern.requires_grad());
  tape.backward(sum(square(pattern)));
  EXPECT_GT(sum(square(leaf.grad())).item(), 0);
}

// Edits that change nothing leave every gradient as it is.
TEST_F(AttentionPointsTest, NoGradientIsLost) {
  const auto gradients = [&](const char* point) {
    Points points;
    if (point) points.edit(point, [](const std::string&, const Tensor& s) { return scale(s, 1); });
    Rng rng(9);
    LayerCall call = causal_call();
    AttentionOptions& o = call.attention;
    constexpr int64_t kDim = kModelWidth / kModelHeads;
    const AttentionOptions everything = testing::option_cases().back().options(
        {1, kModelHeads, kModelHeads, kTokens, kTokens, kDim, kDim}, Dtype::f32, rng);
    o.softcap = everything.softcap;
    for (const auto option : multihead::detail::kLearnedOptions)
      o.*option = Tensor(everything.*option).set_requires_grad();
    const Tensor leaf = x.clone().set_requires_grad();
    const PointScope scope(points);
    Tape tape;
    tape.backward(sum(square(layer(leaf, call))));
    std::vector<Tensor> all = {leaf.grad()};
    for (const auto option : multihead::detail::kLearnedOptions) all.push_back((o.*option).grad());
    return all;
  };
  const std::vector<Tensor> expected = gradients(nullptr);
  for (const char* point : {"self_attn.scores", "self_attn.pattern"}) {
    const std::vector<Tensor> got = gradients(point);
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(i);
      expect_near(got[i], expected[i], 1e-3F);
    }
  }
}

TEST_F(AttentionPointsTest, EditsAndCapturesExcludeEachOther) {
  AttentionCapture capture;
  LayerCall call = causal_call();
  call.attention.capture = &capture;
  Points points;
  points.edit("self_attn.scores", [](const std::string&, const Tensor& s) { return s; });
  const PointScope scope(points);
  EXPECT_THAT([&] { layer(x, call); }, ThrowsMessage<ValueError>(HasSubstr("has no capture")));
}

TEST_F(AttentionPointsTest, ExcludesPairs) {
  const Tensor flags = Tensor::empty({kTokens, kTokens}, Dtype::boolean);
  flags.fill(1);
  flags.data<bool>()[4 * kTokens + 1] = false;
  Points points;
  points.exclude("self_attn", multihead::keep(flags)).keep("self_attn.pattern");
  run(points);
  const std::vector<float> pattern = values(points.kept().at("self_attn.pattern"));
  for (int64_t row = 0; row < kSamples * kModelHeads; ++row) {
    const float* at = pattern.data() + row * kTokens * kTokens;
    EXPECT_EQ(at[4 * kTokens + 1], 0);
    EXPECT_GT(at[5 * kTokens + 1], 0);
  }
}

TEST_F(AttentionPointsTest, ReplacedNormScalesAreUsed) {
  Points points;
  points.keep("norm1.scale").edit("norm1.scale", [](const std::string&, const Tensor& s) {
    return scale(s, 2);
  });
  points.keep("norm1.normalized");
  run(points);
  const Tensor normalized = points.kept().at("norm1.normalized");
  EXPECT_NEAR(mean(square(normalized)).item(), 0.25F, 1e-3);
}

TEST_F(AttentionPointsTest, RefusesByName) {
  Points wrong_shape, unknown, outside;
  wrong_shape.edit("attn_out", [](const std::string&, const Tensor& t) { return slice(t, 1, 0, 1); });
  EXPECT_THAT([&] { run(wrong_shape); },
              ThrowsMessage<ShapeError>(HasSubstr("the edit of attn_out must return")));
  unknown.keep("self_attn.zz");
  run(unknown);
  EXPECT_THAT([&] { unknown.check(); },
              ThrowsMessage<ValueError>(HasSubstr("nothing is called \"self_attn.zz\"")));
  Points twice;
  twice.edit("attn_out", [](const std::string&, const Tensor& t) { return t.clone(); }, {.rows = {3, -4}});
  EXPECT_THAT([&] { run(twice); }, ThrowsMessage<ValueError>(HasSubstr("names row or head 3 twice")));
  outside.keep("self_attn.z", {.heads = {4}});
  EXPECT_THAT([&] { run(outside); }, ThrowsMessage<ValueError>(HasSubstr("index 4 is out of range")));
}

TEST(PointNamesTest, TransformerLensNames) {
  EXPECT_EQ(Points::name_of("blocks.3.attn.hook_z"), "layers.3.self_attn.z");
  EXPECT_EQ(Points::name_of("blocks.*.hook_resid_pre"), "layers.*.resid_pre");
  EXPECT_EQ(Points::name_of("blocks.0.attn.hook_attn_scores"), "layers.0.self_attn.scores");
  EXPECT_EQ(Points::name_of("blocks.0.mlp.hook_pre_linear"), "layers.0.mlp_pre_linear");
  EXPECT_EQ(Points::name_of("blocks.1.ln2.hook_scale"), "layers.1.norm2.scale");
  EXPECT_EQ(Points::name_of("ln_final.hook_normalized"), "final_norm.normalized");
  EXPECT_EQ(Points::name_of("hook_embed"), "embed");
  EXPECT_EQ(Points::name_of("layers.0.self_attn.z"), "layers.0.self_attn.z");
}

TEST(PointScopeTest, TheInnermostCounts) {
  Rng rng(3);
  const TransformerLayer layer(options_of(Block::sequential, true), rng);
  Points outer, inner;
  outer.keep("attn_out"), inner.keep("attn_out");
  const PointScope outside(outer);
  {
    const PointScope inside(inner);
    layer(input());
  }
  EXPECT_EQ(inner.kept().size(), 1U);
  EXPECT_TRUE(outer.kept().empty());
  layer(input());
  EXPECT_EQ(outer.kept().size(), 1U);
}

}  // namespace
}  // namespace multihead::nn
