// Bad input: each case with the type and the words of its error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <thread>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/composed.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/testing/float_mode.h"

namespace multihead {
namespace {

using ::testing::HasSubstr;

template <class Error, class F>
void expect_error(F&& f, const std::string& words) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(words));
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error; expected: " << words;
}

Tensor ones(const Shape& shape, Dtype dtype = Dtype::f32) { return Tensor::ones(shape, dtype); }

// A good call with one thing replaced.
Tensor with(const AttentionOptions& options) {
  return attention(ones({2, 4, 5, 8}), ones({2, 2, 7, 8}), ones({2, 2, 7, 3}), options);
}

TEST(AttentionErrorsTest, Shapes) {
  const Tensor q = ones({2, 8, 128, 64});
  expect_error<ShapeError>(
      [&] {
        attention(q, ones({2, 8, 128, 32}), q);
      },
      "attention: key must be [B=2, Hkv, Tk, D=64] to match query [2, 8, 128, 64], got "
      "[2, 8, 128, 32]");
  expect_error<ShapeError>(
      [&] {
        attention(ones({8, 128, 64}), q, q);
      },
      "attention: query must be [B, H, Tq, D], got [8, 128, 64]");
  expect_error<ShapeError>([&] { attention(q, ones({3, 8, 128, 64}), q); }, "key must be [B=2,");
  expect_error<ShapeError>(
      [&] {
        attention(q, q, ones({2, 8, 127, 64}));
      },
      "value must be [B=2, Hkv=8, Tk=128, Dv] to match key [2, 8, 128, 64], got [2, 8, 127, 64]");
  expect_error<ShapeError>(
      [&] {
        attention(q, ones({2, 3, 5, 64}), ones({2, 3, 5, 64}));
      },
      "the number of query heads must be a multiple of the number of key heads, got H=8 and "
      "Hkv=3");
  expect_error<ShapeError>(
      [&] {
        attention(q, ones({2, 0, 5, 64}), ones({2, 0, 5, 64}));
      },
      "got H=8 and Hkv=0");
  expect_error<ShapeError>(
      [&] {
        attention(ones({2, 8, 3, 0}), ones({2, 8, 3, 0}), ones({2, 8, 3, 4}));
      },
      "head_dim must be > 0, got query [2, 8, 3, 0]");
  const AttentionOptions swapped = {.layout = Layout::bthd};
  expect_error<ShapeError>(
      [&] {
        attention(q, ones({2, 128, 64, 32}), q, swapped);
      },
      "key must be [B=2, Tk, Hkv, D=64] to match query [2, 8, 128, 64], got [2, 128, 64, 32]");
}

TEST(AttentionErrorsTest, ACenterWithoutATable) {
  const std::string words = "relative_center is a row of relative_bias, relative_key or relative_value";
  const AttentionOptions options = {.relative_center = 2};
  const Tensor q = ones({1, 2, 3, 4}), rows = ones({3, 2, 4});
  expect_error<ValueError>([&] { attention(q, q, q, options); }, "attention: " + words);
  expect_error<ValueError>([&] { attention_composed(q, q, q, options); }, words);
  expect_error<ValueError>([&] { attention_packed(ones({1, 3, 24}), {.num_heads = 2}, options); }, words);
  expect_error<ValueError>(
      [&] {
        attention_ragged(rows, rows, rows, ints({0, 3}), ints({0, 3}), options);
      },
      words);
}

TEST(AttentionErrorsTest, Dtypes) {
  const Tensor q = ones({1, 1, 2, 4});
  expect_error<DtypeError>(
      [&] {
        attention(ones({1, 1, 2, 4}, Dtype::i64), q, q);
      },
      "attention: query must be f32, f64, bf16 or f16, got i64");
  expect_error<DtypeError>(
      [&] {
        attention(q, ones({1, 1, 2, 4}, Dtype::f64), q);
      },
      "attention: key must be f32 like query, got f64");
  expect_error<DtypeError>(
      [&] {
        attention(q, q, ones({1, 1, 2, 4}, Dtype::bf16));
      },
      "attention: value must be f32 like query, got bf16");
  expect_error<DtypeError>(
      [&] {
        with({.bias = ones({5, 7}, Dtype::f64)});
      },
      "attention: bias must be f32, got f64");
  expect_error<DtypeError>(
      [&] {
        with({.bias = ones({5, 7}, Dtype::boolean)});
      },
      "a bool tensor is a mask: keep(tensor)");
  expect_error<DtypeError>([&] { with({.alibi_slopes = ones({4}, Dtype::i32)}); },
                           "alibi_slopes must be f32");
  expect_error<DtypeError>(
      [&] {
        with({.relative_bias = ones({4, 3}, Dtype::f16)});
      },
      "relative_bias must be f32");
  expect_error<DtypeError>(
      [&] {
        with({.relative_key = ones({1, 3, 8}, Dtype::f64)});
      },
      "relative_key must be f32, got f64");
  expect_error<ValueError>([&] { attention(Tensor(), q, q); },
                           "query, key and value must be defined tensors");
}

TEST(AttentionErrorsTest, Masks) {
  const auto flags = [](const Shape& s) { return keep(ones(s, Dtype::boolean)); };
  expect_error<ShapeError>(
      [&] {
        with({.mask = flags({5, 6})});
      },
      "attention: mask must broadcast to [B=2, H=4, Tq=5, Tk=7], got [5, 6]");
  // Three axes are heads, queries, keys: a batch of masks needs a head axis of 1.
  expect_error<ShapeError>([&] { with({.mask = flags({2, 5, 7})}); }, "got [2, 5, 7]");
  EXPECT_NO_THROW(with({.mask = flags({2, 1, 5, 7})}));
  EXPECT_NO_THROW(with({.mask = flags({4, 5, 7})}));
  expect_error<ShapeError>(
      [&] {
        with({.mask = lengths(ints({1, 2, 3}))});
      },
      "lengths must be [B=2] or [B, Tq], got [3]");
  expect_error<ShapeError>(
      [&] {
        with({.mask = lengths(Tensor::ones({2, 7}, Dtype::i64))});
      },
      "lengths must be [B=2] or [B, Tq=5], got [2, 7]");
  expect_error<ValueError>(
      [&] {
        with({.mask = lengths(ints({7, 8}))});
      },
      "lengths must be in [0, Tk=7], got 8 for sample 1");
  expect_error<ValueError>([&] { with({.mask = lengths(ints({-1, 3}))}); }, "got -1 for sample 0");
  expect_error<ValueError>(
      [&] {
        with({.mask = lengths(Tensor::full({2, 5}, 9, Dtype::i32))});
      },
      "lengths must be in [0, Tk=7], got 9 for query 0 of sample 0");
  expect_error<ValueError>(
      [&] {
        with({.mask = query_lengths(ints({5, 6}))});
      },
      "query_lengths must be in [0, Tq=5], got 6 for sample 1");
  expect_error<ValueError>([&] { with({.mask = prefix(8)}); }, "prefix must be in [0, Tk=7], got 8");
  expect_error<ShapeError>(
      [&] {
        with({.mask = causal_offset(ints({1, 2, 3}))});
      },
      "offsets must be [B=2], got [3]");
  expect_error<ValueError>([&] { with({.mask = causal_offset(std::numeric_limits<int64_t>::max())}); },
                           "offset 9223372036854775807 is out of range");
  expect_error<ShapeError>(
      [&] {
        with({.mask = documents(ints({1, 1, 2, 2, 2}))});
      },
      "document ids must be [7] or [B=2, 7], got [5]");
  expect_error<ShapeError>(
      [&] {
        with({.mask = blocks(ones({3, 3}, Dtype::boolean), 2, 2)});
      },
      "blocks must broadcast to [B=2, H=4, Tq=3, Tk=4], got [3, 3]");
  EXPECT_NO_THROW(with({.mask = window(std::numeric_limits<int64_t>::max(), 0)}));
}

TEST(AttentionErrorsTest, ScoreTerms) {
  expect_error<ShapeError>(
      [&] {
        with({.bias = Tensor::full({5, 8}, 0.5)});
      },
      "attention: bias must broadcast to [B=2, H=4, Tq=5, Tk=7], got [5, 8]");
  expect_error<ShapeError>(
      [&] {
        with({.bias = Tensor::full({1, 1, 1, 1, 1}, 0.5)});
      },
      "bias must broadcast");
  expect_error<ShapeError>([&] { with({.alibi_slopes = ones({3})}); },
                           "alibi_slopes must be [H=4] or [B=2, H=4], got [3]");
  expect_error<ShapeError>(
      [&] {
        with({.relative_bias = ones({2, 9})});
      },
      "relative_bias must be [H=4, span] or [1, span], got [2, 9]");
  expect_error<ShapeError>([&] { with({.relative_bias = ones({4, 0})}); }, "got [4, 0]");
  expect_error<ValueError>(
      [&] {
        with({.relative_bias = ones({4, 3}), .relative_center = 3});
      },
      "relative_center must be in [0, 3), the span of relative_bias, got 3");
  for (const Shape& shape :
       {Shape{9, 8}, Shape{2, 9, 8}, Shape{4, 0, 8}, Shape{4, 9, 7}, Shape{1, 4, 9, 8}}) {
    expect_error<ShapeError>([&] { with({.relative_key = ones(shape)}); },
                             concat("relative_key must be [H=4, span, D=8] or [1, span, D], got ", shape));
  }
  expect_error<ValueError>(
      [&] {
        with({.relative_bias = ones({4, 9}), .relative_key = ones({1, 5, 8}), .relative_center = 6});
      },
      "relative_center must be in [0, 5), the span of relative_key, got 6");
  // A mask in disguise.
  Tensor binary = ones({5, 7});
  binary.as_strided({3}, {1}).fill(0);
  expect_error<ValueError>([&] { with({.bias = binary}); }, "bias holds only zeros and ones");
  EXPECT_NO_THROW(with({.bias = binary, .allow_binary_bias = true}));
  EXPECT_NO_THROW(with({.bias = binary.clone().set_requires_grad()}));
  EXPECT_NO_THROW(with({.bias = Tensor::zeros({5, 7})}));
}

TEST(AttentionErrorsTest, Numbers) {
  for (const float scale : {NAN, INFINITY, -INFINITY}) {
    expect_error<ValueError>([&] { with({.scale = scale}); }, "attention: scale must be finite, got");
  }
  expect_error<ValueError>([&] { with({.scale = 1e39}); }, "in f32");  // finite in f64 alone
  EXPECT_NO_THROW(with({.scale = 0.0f}));
  EXPECT_NO_THROW(with({.scale = -2.0f}));
  for (const float cap : {-1.0f, NAN, INFINITY}) {
    expect_error<ValueError>([&] { with({.softcap = cap}); },
                             "softcap must be >= 0 and finite (0 = none), got");
  }
  Rng rng(3);
  for (const float p : {-0.1f, 1.5f, NAN}) {
    expect_error<ValueError>([&] { with({.dropout_p = p, .rng = &rng}); },
                             "dropout_p must be in [0, 1], got");
  }
  EXPECT_EQ(rng.drawn(), 0u) << "an error moved the generator";
  expect_error<ShapeError>([&] { with({.alibi_slopes = ones({3}), .dropout_p = 0.5f, .rng = &rng}); },
                           "alibi");
  EXPECT_EQ(rng.drawn(), 0u);
}

TEST(AttentionErrorsTest, Captures) {
  AttentionCapture capture;
  capture.heads = {4};
  expect_error<ValueError>([&] { with({.capture = &capture}); }, "capture.heads must be in [-H, H=4), got 4");
  capture.heads = {};
  capture.query_rows = {-6};
  expect_error<ValueError>([&] { with({.capture = &capture}); },
                           "capture.query_rows must be in [-Tq, Tq=5), got -6");
  capture.query_rows = {};
  capture.top_k = -1;
  expect_error<ValueError>([&] { with({.capture = &capture}); }, "capture.top_k must be >= 0, got -1");
  for (const AttentionCapture& none : {AttentionCapture{.want_weights = false, .stage = CaptureStage::scores},
                                       AttentionCapture{.want_weights = false, .heads = {0}},
                                       AttentionCapture{.want_weights = false, .query_rows = {0}}}) {
    capture = none;
    expect_error<ValueError>([&] { with({.capture = &capture}); }, "choose among the weights");
  }
}

TEST(AttentionErrorsTest, EmptyRowNamesTheRow) {
  expect_error<ValueError>(
      [&] {
        with({.mask = lengths(Tensor::of<int64_t>({2, 5}, {1, 1, 1, 1, 1, 1, 1, 0, 1, 1})),
              .empty_row = EmptyRow::error});
      },
      "attention: query 2 of head 0 in sample 1 has no key to attend to");
}

TEST(AttentionErrorsTest, Packed) {
  expect_error<ShapeError>(
      [] {
        attention_packed(ones({2, 5, 25}), {.num_heads = 4, .num_kv_heads = 2});
      },
      "attention_packed: qkv must be [B, T, (H + 2·Hkv)·D] with H + 2·Hkv = 8, got [2, 5, 25]");
  expect_error<ShapeError>([] { attention_packed(ones({2, 5, 0}), {.num_heads = 4}); }, "got [2, 5, 0]");
  expect_error<ShapeError>([] { attention_packed(ones({5, 24}), {.num_heads = 4}); }, "got [5, 24]");
  expect_error<ValueError>([] { attention_packed(ones({2, 5, 24}), {}); }, "must be > 0, got 0 and 0");
  expect_error<ValueError>([] { attention_packed(ones({2, 5, 24}), {.num_heads = -4}); }, "must be > 0");
  expect_error<ShapeError>(
      [] {
        attention_packed(ones({2, 5, 24}), {.num_heads = 4, .num_kv_heads = 3});
      },
      "multiple");
  expect_error<DtypeError>(
      [] {
        attention_packed(ones({2, 5, 24}, Dtype::i32), {.num_heads = 4});
      },
      "got i32");
}

TEST(AttentionErrorsTest, Ragged) {
  const Tensor x = ones({7, 2, 4});
  const auto call = [&](const Tensor& cu_q, const Tensor& cu_k, const AttentionOptions& options = {}) {
    attention_ragged(x, x, x, cu_q, cu_k, options);
  };
  EXPECT_NO_THROW(call(ints({0, 3, 3, 7}), ints({0, 0, 5, 7})));
  expect_error<ValueError>(
      [&] {
        call(ints({0, 3, 8}), ints({0, 3, 7}));
      },
      "attention_ragged: cu_seqlens_q must run from 0 to 7 (the packed rows), got 0 to 8");
  expect_error<ValueError>([&] { call(ints({1, 7}), ints({0, 7})); }, "got 1 to 7");
  expect_error<ValueError>(
      [&] {
        call(ints({0, 7}), ints({0, 9, 7}));
      },
      "cu_seqlens_k must not decrease, got 9 then 7");
  expect_error<ShapeError>(
      [&] {
        call(ints({0, 7}), ints({0, 3, 7}));
      },
      "must have one length, got [2] and [3]");
  expect_error<ShapeError>(
      [&] {
        call(Tensor::zeros({0}, Dtype::i64), ints({0, 7}));
      },
      "must be [S + 1], got [0]");
  expect_error<DtypeError>([&] { call(ones({2}), ints({0, 7})); }, "must be i64 or i32");
  expect_error<ShapeError>(
      [&] {
        attention_ragged(ones({1, 7, 2, 4}), x, x, ints({0, 7}), ints({0, 7}));
      },
      "query must be [N, H, D]");
  expect_error<ShapeError>(
      [&] {
        attention_ragged(x, ones({7, 2, 5}), x, ints({0, 7}), ints({0, 7}));
      },
      "key must be");
  expect_error<ShapeError>(
      [&] {
        attention_ragged(x, x, ones({6, 2, 4}), ints({0, 7}), ints({0, 7}));
      },
      "value must be [M=7, Hkv=2, Dv]");
  expect_error<ValueError>(
      [&] {
        call(ints({0, 7}), ints({0, 7}), {.mask = documents(ints({1}))});
      },
      "never attend to each other");
  expect_error<ValueError>(
      [&] {
        call(ints({0, 3, 7}), ints({0, 3, 7}), {.mask = lengths(ints({3, 5}))});
      },
      "lengths must be in [0, Tk=4], got 5 for sample 1");
}

TEST(AttentionErrorsTest, Merge) {
  const AttentionPart part = {ones({2, 3, 4}), ones({2, 3})};
  expect_error<ShapeError>(
      [&] {
        merge_attention(part, {ones({2, 3, 5}), ones({2, 3})});
      },
      "must have one shape");
  expect_error<ShapeError>(
      [&] {
        merge_attention(part, {ones({2, 3, 4}), ones({2, 4})});
      },
      "lse must have the shape of out [2, 3, 4] without its last axis, got [2, 4]");
  expect_error<DtypeError>(
      [&] {
        merge_attention(part, {ones({2, 3, 4}, Dtype::f64), ones({2, 3})});
      },
      "must be f32");
  expect_error<ValueError>([&] { merge_attention(part, {}); }, "must be defined");
}

TEST(AttentionErrorsTest, SizesPastTheAddressSpace) {
  // Stride 0 makes a huge shape without memory; the output cannot exist.
  const int64_t huge = int64_t{1} << 30;
  const Tensor one = ones({1, 1, 1, 1});
  const Tensor q = one.as_strided({huge, 1, huge, 1}, {0, 0, 0, 1});
  const Tensor k = one.as_strided({huge, 1, 1, 1}, {0, 0, 0, 1});
  expect_error<ValueError>([&] { attention(q, k, k); }, "beyond the address space");
  const Tensor wide = ones({16}).as_strided({huge, 1, 1, 16}, {0, 0, 0, 1});
  expect_error<ValueError>([&] { attention(q, k, wide); }, "overflows");
}

// A caller with flush-to-zero or another rounding mode gets good numbers and keeps the mode.
TEST(AttentionErrorsTest, ForeignFloatingPointModes) {
  Rng rng(3);
  const Tensor q = randn({1, 2, 33, 8}, rng), k = randn({1, 2, 65, 8}, rng), v = randn({1, 2, 65, 8}, rng);
  const std::vector<float> exact = attention(q, k, v, {.mask = causal()}).to_vector<float>();
  for (const unsigned mode : testing::kFloatModes) {
    std::vector<float> y;
    {
      const testing::FloatModeScope scope(mode);
      y = attention(q, k, v, {.mask = causal()}).to_vector<float>();
      EXPECT_TRUE(scope.untouched());
    }
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], exact[i], 1e-5) << std::hex << mode;
  }
}

TEST(AttentionErrorsTest, ConcurrentCallersGetTheirOwnResults) {
  Rng rng(3);
  std::vector<Tensor> inputs;
  std::vector<std::vector<float>> expected(4), got(4);
  for (int n = 0; n < 4; ++n) {
    inputs.push_back(randn({1, 2, 40 + n, 8}, rng));
    expected[static_cast<size_t>(n)] =
        attention(inputs.back(), inputs.back(), inputs.back()).to_vector<float>();
  }
  std::vector<std::thread> threads;
  for (size_t n = 0; n < 4; ++n) {
    threads.emplace_back([&, n] {
      for (int i = 0; i < 20; ++i) got[n] = attention(inputs[n], inputs[n], inputs[n]).to_vector<float>();
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(got, expected);
}

TEST(AttentionErrorsTest, ChildAfterForkWorks) {
  Rng rng(3);
  const Tensor x = randn({2, 4, 64, 8}, rng);
  const std::vector<float> expected = attention(x, x, x).to_vector<float>();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    _exit(attention(x, x, x).to_vector<float>() == expected ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The composed form is public as well: the same calls, the same errors.
TEST(AttentionErrorsTest, TheComposedFormRefusesTheSame) {
  struct Case {
    Tensor query, key, value;
    AttentionOptions options = {};
  };
  const Tensor q = ones({2, 4, 5, 8}), k = ones({2, 2, 7, 8}), v = ones({2, 2, 7, 3});
  const std::vector<Case> cases = {
      {ones({1, 2, 3, 8}), ones({1, 3, 3, 8}), ones({1, 3, 3, 8})},
      {q, ones({2, 0, 7, 8}), ones({2, 0, 7, 3})},
      {q, ones({1, 2, 7, 8}), ones({1, 2, 7, 3})},
      {q, ones({2, 2, 7, 4}), v},
      {q, k, ones({2, 2, 6, 3})},
      {q, k, ones({2, 1, 7, 3})},
      {ones({2, 4, 5}), k, v},
      {q, ones({2, 7, 8}), v},
      {q, k, ones({14})},
      {ones({2, 4, 5, 0}), ones({2, 2, 7, 0}), v},
      {Tensor(), k, v},
      {q, k, ones({2, 2, 7, 3}, Dtype::f64)},
      {ones({2, 4, 5, 8}, Dtype::i32), ones({2, 2, 7, 8}, Dtype::i32), ones({2, 2, 7, 3}, Dtype::i32)},
      {q, k, v, {.mask = keep(ones({2, 3, 5, 7}, Dtype::boolean))}},
      {q, k, v, {.mask = lengths(ints({1, 2, 3}))}},
      {q, k, v, {.mask = documents(ints({1, 2, 3}))}},
      {q, k, v, {.bias = ones({3, 5, 7})}},
      {q, k, v, {.alibi_slopes = ones({3})}},
      {q, k, v, {.relative_bias = ones({3, 9})}},
      {q, k, v, {.sinks = ones({5})}},
      {q, k, v, {.softcap = -1}},
      {q, k, v, {.dropout_p = 2}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const auto error = [&](auto&& call) -> std::string {
      try {
        call(c.query, c.key, c.value, c.options, ScoreMod());
      } catch (const std::invalid_argument& e) {
        return e.what();
      }
      return "no error";
    };
    std::string fused = error(attention);
    EXPECT_NE(fused, "no error") << i;
    EXPECT_EQ(error(attention_composed), fused.replace(0, 9, "attention_composed")) << i;
  }
}

}  // namespace
}  // namespace multihead
