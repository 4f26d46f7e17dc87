// A sequence over several ranks: the bits of attention() on the whole, and no byte more than the formula.
#include "multihead/ops/attention/ring/ring.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/distributed/local_group.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"
#include "multihead/testing/sanitizers.h"

namespace multihead {
namespace {

using distributed::Group;
using testing::same_bits;

constexpr int64_t kQueryHeads = 3, kKvHeads = 1, kShardDim = 8, kShardValueDim = 12;

struct RingInputs {
  Tensor query, key, value, d_out, d_lse;
};

RingInputs make_inputs(int64_t length, Dtype dtype = Dtype::f32, Layout layout = Layout::bhtd) {
  Rng rng(41);
  const auto make = [&](int64_t heads, int64_t dim) {
    return layout == Layout::bthd ? randn({kBatch, length, heads, dim}, rng)
                                  : randn({kBatch, heads, length, dim}, rng);
  };
  const Tensor d_lse =
      randn({kBatch, kQueryHeads, length}, rng, dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32);
  return {make(kQueryHeads, kShardDim).to(dtype), make(kKvHeads, kShardDim).to(dtype),
          make(kKvHeads, kShardValueDim).to(dtype), make(kQueryHeads, kShardValueDim).to(dtype), d_lse};
}

// On whole tensors: f(query, key, value, options), its gradients and those of `terms`.
template <class F>
Result run(const RingInputs& in, AttentionOptions options, const std::vector<Tensor>& terms, F f) {
  Result r;
  std::vector<Tensor> leaves;
  for (const Tensor& x : {in.query, in.key, in.value}) leaves.push_back(x.detach().set_requires_grad());
  Rng rng(7);
  options.rng = &rng, options.lse = &r.lse;
  Tape tape;
  r.out = f(leaves[0], leaves[1], leaves[2], options);
  const Tensor both = record({r.out, r.lse}, Tensor::zeros({}), [&](const Tensor&) -> Gradients {
    return {in.d_out, in.d_lse};
  });
  tape.backward(both);
  EXPECT_EQ(rng.drawn(), options.dropout_p > 0 ? 1u : 0u);
  for (const Tensor& x : leaves) r.gradients.push_back(x.grad());
  for (const Tensor& x : terms) r.gradients.push_back(x.grad());
  return r;
}

Result whole(const RingInputs& in, const AttentionOptions& options, const ScoreMod& mod) {
  return run(in, options, {}, [&](const auto& q, const auto& k, const auto& v, const auto& o) {
    return attention(q, k, v, o, mod);
  });
}

struct RingCase {
  int ranks = 1, chunks = 2;
  int64_t bytes = 0;  // sent by all
};

// The same on a group of threads, the ranks' rows put together.
Result ring(const RingInputs& in, const AttentionOptions& options, const ScoreMod& mod, RingCase& ring) {
  const int axis = options.layout == Layout::bthd ? 1 : 2;
  const int64_t length = in.query.size(axis);
  const SequenceShards shards(length, ring.ranks, ring.chunks);
  const auto nan_like = [](const Tensor& x, Dtype dtype) {
    return Tensor::full(x.shape(), std::numeric_limits<double>::quiet_NaN(), dtype);
  };
  const Dtype wide = in.query.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  Result all{nan_like(in.d_out, in.query.dtype()), Tensor::full({kBatch, kQueryHeads, length}, 9, wide), {}};
  for (const Tensor& x : {in.query, in.key, in.value}) all.gradients.push_back(nan_like(x, wide));
  std::vector<int64_t> bytes(static_cast<size_t>(ring.ranks));
  distributed::run_local_group(ring.ranks, [&](Group& group) {
    const auto own = [&](const Tensor& x) { return shards.take(x, axis, group.rank()); };
    const RingInputs mine = {own(in.query), own(in.key), own(in.value), own(in.d_out),
                             shards.take(in.d_lse, 2, group.rank())};
    const Result r = run(mine, options, {}, [&](const auto& q, const auto& k, const auto& v, const auto& o) {
      return ring_attention(group, shards, q, k, v, o, mod);
    });
    shards.put(r.out, axis, group.rank(), all.out);
    shards.put(r.lse, 2, group.rank(), all.lse);
    for (size_t n = 0; n < 3; ++n) shards.put(r.gradients[n], axis, group.rank(), all.gradients[n]);
    bytes[static_cast<size_t>(group.rank())] = group.bytes_sent();
  });
  ring.bytes = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  return all;
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << "out";
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
  const char* names[] = {"query", "key", "value"};
  for (size_t n = 0; n < 3; ++n) EXPECT_TRUE(same_bits(a.gradients[n], b.gradients[n])) << names[n];
}

void expect_same_on_ranks(const RingInputs& in, const AttentionOptions& options, const ScoreMod& mod = {}) {
  const Result one = whole(in, options, mod);
  std::vector<std::pair<int, int>> groups = {{1, 2}, {2, 2}, {3, 1}, {4, 2}};
  if (testing::kSanitized) groups = {{3, 2}};
  for (const auto& [ranks, chunks] : groups) {
    SCOPED_TRACE(concat(ranks, " ranks, ", chunks, " chunks each"));
    RingCase many{ranks, chunks};
    expect_same(ring(in, options, mod, many), one);
  }
}

Tensor document_ids(int64_t length) {
  const Tensor ids = Tensor::empty({length}, Dtype::i64);
  for (int64_t i = 0; i < length; ++i) ids.data<int64_t>()[i] = i / 450 + (i > 777 ? 1 : 0);
  return ids;
}

TEST(SequenceShards, DealsChunksThereAndBack) {
  const SequenceShards shards(9 * 256 - 10, 2, 3);
  ASSERT_EQ(shards.chunks(), 5);  // of 512 rows
  EXPECT_EQ(shards.chunks_of(0), (std::vector<int>{0, 3, 4}));
  EXPECT_EQ(shards.chunks_of(1), (std::vector<int>{1, 2}));
  EXPECT_EQ(shards.rows(0), 512 * 2 + 246);
  EXPECT_EQ(shards.rows(0) + shards.rows(1), shards.length());
  EXPECT_EQ(shards.own_rows(4).begin, 1024);
  const Tensor positions = shards.positions(0);
  EXPECT_EQ(positions.at({511}), 511);
  EXPECT_EQ(positions.at({512}), 3 * 512);
  const Tensor back = Tensor::full({shards.length()}, -1, Dtype::i64);
  for (int rank : {0, 1}) shards.put(shards.positions(rank), 0, rank, back);
  EXPECT_TRUE(same_bits(back, Tensor::arange(shards.length())));
  EXPECT_EQ(SequenceShards(0, 3).chunks(), 0);
  EXPECT_EQ(SequenceShards(1, 3).rows(2), 0);
}

TEST(RingAttention, HasTheBitsOfOneRank) {
  for (const int64_t length : {1, 255, 257, 1100, 2050}) {
    if (testing::kSanitized && length > 1100) continue;
    SCOPED_TRACE(length);
    const RingInputs in = make_inputs(length);
    expect_same_on_ranks(in, {});
    expect_same_on_ranks(in, {.mask = causal()});
  }
}

TEST(RingAttention, HasThemUnderEveryMask) {
  const int64_t length = 1300;
  const RingInputs in = make_inputs(length);
  Rng rng(3);
  const Tensor flags = Tensor::empty({kBatch, 1, 1, length}, Dtype::boolean);
  for (int64_t i = 0; i < flags.numel(); ++i) flags.data<bool>()[i] = rng.next().bits(0) % 3 != 0;
  const Tensor lens = Tensor::of<int64_t>({2}, {1201, 300}), queries = Tensor::of<int64_t>({2}, {1300, 514});
  const Tensor tiles = Tensor::empty({1, 1, 13, 13}, Dtype::boolean);
  for (int64_t i = 0; i < 169; ++i) tiles.data<bool>()[i] = i % 5 != 2;
  const std::pair<const char*, Mask> masks[] = {
      {"window", window(200, 0)},
      {"both sides", window(100, 260)},
      {"causal window", causal() & window(511, -1)},
      {"lengths", lengths(lens) & query_lengths(queries)},
      {"documents", documents(document_ids(length)) & causal()},
      {"prefix", prefix(333)},
      {"offset", causal_offset(-40)},
      {"keep", keep(flags) & causal()},
      {"blocks", blocks(tiles, 100, 100)},
  };
  for (const auto& [name, mask] : masks) {
    SCOPED_TRACE(name);
    expect_same_on_ranks(in, {.mask = mask});
  }
}

TEST(RingAttention, HasThemWithEveryTermOfTheScore) {
  const int64_t length = testing::kSanitized ? 600 : 1100;
  const RingInputs in = make_inputs(length);
  Rng rng(9);
  const Tensor slopes = rand({kQueryHeads}, rng), sinks = randn({kQueryHeads}, rng);
  expect_same_on_ranks(in, {.mask = causal(), .alibi_slopes = slopes});
  expect_same_on_ranks(in, {.scale = 0.1, .softcap = 5, .bias = randn({kQueryHeads, 1, length}, rng)});
  expect_same_on_ranks(in, {.mask = causal(), .relative_bias = randn({kQueryHeads, 129}, rng)});
  expect_same_on_ranks(in, {.relative_key = randn({1, 65, kShardDim}, rng)});
  expect_same_on_ranks(in, {.mask = causal(), .sinks = sinks});
  const Tensor some = Tensor::of<int64_t>({kBatch}, {0, 5});  // rows of the sink alone
  expect_same_on_ranks(in, {.mask = causal() & lengths(some), .sinks = sinks});
  expect_same_on_ranks(in, {.mask = causal(), .dropout_p = 0.2f});
  expect_same_on_ranks(in, {.mask = window(300, 0), .softcap = 3, .alibi_slopes = slopes, .dropout_p = 0.5f});
  expect_same_on_ranks(in, {.mask = causal()}, score_mod([](auto score, ScoreIndex at) {
                         return score + 0.01f * static_cast<float>(at.query - at.key);
                       }));
}

TEST(RingAttention, HasThemInEveryTypeAndLayout) {
  Rng rng(5);
  const Tensor sinks = randn({kQueryHeads}, rng);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    expect_same_on_ranks(make_inputs(700, dtype), {.mask = causal()});
    expect_same_on_ranks(make_inputs(700, dtype), {.mask = causal(), .sinks = sinks});
  }
  expect_same_on_ranks(make_inputs(300, Dtype::f64), {.mask = causal()});
  expect_same_on_ranks(make_inputs(900, Dtype::f32, Layout::bthd),
                       {.mask = causal(), .layout = Layout::bthd});
}

TEST(RingAttention, HasThemWhereAWholeRowsScoresAreLarge) {
  const int64_t length = 600;
  const RingInputs in = make_inputs(length);
  for (const double large : {-1e4, -1e9}) {
    const Tensor bias = Tensor::zeros({length, 1});
    for (int64_t row = 0; row < length; row += 2) bias.data<float>()[row] = static_cast<float>(large);
    expect_same_on_ranks(in, {.bias = bias});
  }
  const Tensor slopes = Tensor::full({kQueryHeads}, 0.9);  // keys that are far before the last queries
  expect_same_on_ranks(in, {.mask = lengths(Tensor::of<int64_t>({1}, {90})), .alibi_slopes = slopes});
}

TEST(RingAttention, HasThemWhereNothingIsFinite) {
  RingInputs in = make_inputs(700);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  slice(in.key, 2, 600, 700).fill(nan), slice(in.value, 2, 600, 700).fill(nan);  // padding
  expect_same_on_ranks(in, {.mask = lengths(Tensor::of<int64_t>({1}, {600})), .dropout_p = 0.1f});
  expect_same_on_ranks(make_inputs(300), {.mask = causal_offset(-9), .empty_row = EmptyRow::uniform});
}

TEST(RingAttention, GradientsOfTermsAreWholeOnEveryRank) {
  const RingInputs in = make_inputs(600);
  Rng rng(4);
  const Tensor slopes = rand({kQueryHeads}, rng), sinks = randn({kQueryHeads}, rng);
  const auto gradients = [&](const RingInputs& x, auto&& f) {
    const Tensor a = slopes.detach().set_requires_grad(), b = sinks.detach().set_requires_grad();
    return run(x, {.mask = causal(), .alibi_slopes = a, .sinks = b}, {a, b}, f).gradients;
  };
  const auto one = gradients(
      in, [](const auto& q, const auto& k, const auto& v, const auto& o) { return attention(q, k, v, o); });
  const SequenceShards shards(600, 2);
  distributed::run_local_group(2, [&](Group& group) {
    const auto own = [&](const Tensor& x) { return shards.take(x, 2, group.rank()); };
    const auto many = gradients({own(in.query), own(in.key), own(in.value), own(in.d_out), own(in.d_lse)},
                                [&](const auto& q, const auto& k, const auto& v, const auto& o) {
                                  return ring_attention(group, shards, q, k, v, o);
                                });
    EXPECT_TRUE(same_bits(many[0], own(one[0])));
    EXPECT_TRUE(same_bits(many[3], one[3]));
    EXPECT_TRUE(same_bits(many[4], one[4]));
  });
}

// In a ContextScope the ops of a Transformer's layer have the rows of the whole.
TEST(RingAttention, AScopeMakesItsOpsThoseOfTheWhole) {
  const int64_t length = 1280, heads = 3,
                width = 8;  // a multiple of 128, or each sample's dropout is its own
  Rng numbers(8);
  const Tensor qkv = randn({kBatch, length, (heads + 2) * width}, numbers),
               d_out = randn({kBatch, length, heads * width}, numbers);
  const auto layer = [&](const Tensor& x, const Tensor& dy) -> std::array<Tensor, 2> {
    const Tensor leaf = x.detach().set_requires_grad();
    Rng rng(5);
    Tape tape;
    const Tensor out = attention_packed(dropout(leaf, 0.3, &rng), {.num_heads = heads, .num_kv_heads = 1},
                                        {.mask = causal(), .dropout_p = 0.1f, .rng = &rng});
    const Tensor y = add_dropout(out, activate_dropout(out, Activation::gelu, 0.2, &rng), 0.4, &rng);
    tape.backward(y, dy);
    return {y, leaf.grad()};
  };
  const auto whole = layer(qkv, d_out);
  for (const int ranks : {2, 3}) {
    distributed::run_local_group(ranks, [&](Group& group) {
      const ContextScope scope(group, SequenceShards(length, ranks, 2));
      EXPECT_EQ(ContextScope::current(), &scope);
      const auto own = layer(scope.take(qkv, 1), scope.take(d_out, 1));
      for (size_t n : {0, 1}) EXPECT_TRUE(same_bits(own[n], scope.take(whole[n], 1))) << ranks << ' ' << n;
      Rng rng(1);
      EXPECT_THROW(dropout(qkv, 0.5, &rng), ShapeError);
      EXPECT_THROW(attention(own[0], own[0], own[0]), ShapeError);
    });
    EXPECT_EQ(ContextScope::current(), nullptr);
  }
}

// The bytes that ring.h promises, `rows` · `others` summed.
int64_t bytes_of(int64_t passed, int ranks) {
  const int64_t keys = kBatch * kKvHeads * (kShardDim + kShardValueDim) * 4;
  const int64_t queries = kBatch * kQueryHeads * (kShardDim + kShardValueDim + 2) * 4;
  return passed * (2 * keys + queries) + 2 * 2 * (ranks - 1);
}

TEST(RingAttention, SendsTheBytesOfTheFormula) {
  if (kernels::current_isa() == kernels::Isa::baseline) GTEST_SKIP() << "everything is gathered";
  for (const int ranks : {2, 3, 4}) {
    if (testing::kSanitized && ranks > 2) continue;
    const int64_t length = 2 * ranks * 256;
    const RingInputs in = make_inputs(length);
    RingCase all{ranks}, causal_mask{ranks}, near{ranks};
    ring(in, {}, {}, all);
    EXPECT_EQ(all.bytes, bytes_of(length * (ranks - 1), ranks));
    ring(in, {.mask = causal()}, {}, causal_mask);  // 1 - 1/(2n) with n = 2 chunks a rank
    EXPECT_EQ(causal_mask.bytes, bytes_of(length * (ranks - 1) * 3 / 4, ranks));
    ring(in, {.mask = window(256, 0)}, {}, near);  // a chunk's neighbour alone needs it, or it is one's own
    EXPECT_EQ(near.bytes, bytes_of(256 * (2 * ranks - 2), ranks));
  }
}

TEST(RingAttention, NamesWhatDoesNotFit) {
  const RingInputs in = make_inputs(300);
  const auto error = [&](int64_t length, int ranks) -> std::string {
    try {
      distributed::run_local_group(2, [&](Group& group) {
        ring_attention(group, SequenceShards(length, ranks), in.query, in.key, in.value);
      });
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error(600, 3), ::testing::HasSubstr("shards are for 3 ranks, the group has 2"));
  EXPECT_THAT(error(500, 2), ::testing::HasSubstr("of 500 rows, got 300 queries"));
  EXPECT_THROW(SequenceShards(10, 0), ValueError);
}

}  // namespace
}  // namespace multihead
