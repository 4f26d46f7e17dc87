#include "multihead/kernels/attention/decode/token_attention.h"

#include <gtest/gtest.h>

#include "multihead/testing/everywhere.h"

namespace multihead::kernels {
namespace {

using testing::normal_floats;
using testing::poisoned;

struct Case {
  int64_t rows, count, heads, head_dim;
  bool interleaved = false;
  int64_t at(int64_t head, int64_t element) const {
    return interleaved ? element * heads + head : head * head_dim + element;
  }
};

// Tokens lie in any order, with gaps, keys after values.
struct Memory {
  explicit Memory(const Case& c) : width(c.heads * c.head_dim), stride(3 * width + 7) {
    data = normal_floats((c.count + 1) * stride, 7);
    for (int64_t t = 0; t < c.count; ++t) tokens.push_back(data.data() + (t * 5 + 3) % c.count * stride);
  }
  int64_t width, stride;
  std::vector<float> data;
  std::vector<const float*> tokens;
};

// `bias` [tokens][heads] may be empty.
std::vector<double> expected(const Case& c, const Memory& m, const std::vector<float>& query, double scale,
                             const std::vector<float>& bias) {
  std::vector<double> out(static_cast<size_t>(c.rows * m.width), 0);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t h = 0; h < c.heads; ++h) {
      std::vector<double> weights;
      double total = 0;
      for (size_t t = 0; t < m.tokens.size(); ++t) {
        const float* token = m.tokens[t];
        double score =
            bias.empty() ? 0 : bias[t * static_cast<size_t>(c.heads) + static_cast<size_t>(h)] / scale;
        for (int64_t i = 0; i < c.head_dim; ++i) {
          score += static_cast<double>(query[static_cast<size_t>(row * m.width + c.at(h, i))]) *
                   token[2 * m.width + c.at(h, i)];
        }
        weights.push_back(std::exp(score * scale));
        total += weights.back();
      }
      for (size_t t = 0; t < weights.size(); ++t) {
        for (int64_t i = 0; i < c.head_dim; ++i) {
          out[static_cast<size_t>(row * m.width + c.at(h, i))] +=
              weights[t] / total * m.tokens[t][c.at(h, i)];
        }
      }
    }
  }
  return out;
}

TokenAttentionArgs args_of(const Case& c, const Memory& m, const std::vector<float>& query, float* out,
                           float* scratch) {
  return {.query = query.data(),
          .query_stride = m.width,
          .rows = c.rows,
          .tokens = m.tokens.data(),
          .count = c.count,
          .key_offset = 2 * m.width,
          .value_offset = 0,
          .heads = c.heads,
          .head_dim = c.head_dim,
          .scale = 0.3f,
          .out = out,
          .out_stride = m.width,
          .scratch = scratch,
          .interleaved = c.interleaved};
}

TEST(TokenAttentionTest, MatchesF64WithTheSameBitsOnEveryTarget) {
  for (const Case& c : {Case{1, 1, 1, 1}, Case{1, 15, 3, 32}, Case{4, 16, 2, 16}, Case{3, 17, 5, 7},
                        Case{9, 31, 2, 48}, Case{2, 67, 3, 33}, Case{5, 129, 2, 64}, Case{2, 0, 3, 8},
                        Case{1, 1, 1, 16, true}, Case{1, 17, 8, 32, true}, Case{4, 16, 2, 8, true},
                        Case{3, 19, 4, 12, true}, Case{9, 31, 16, 3, true}, Case{2, 67, 8, 2, true},
                        Case{5, 129, 4, 36, true}, Case{6, 13, 1, 80, true}, Case{2, 0, 4, 8, true}}) {
    ASSERT_TRUE(!c.interleaved || token_attention_interleaves(c.heads, c.head_dim));
    const Memory m(c);
    const auto query = normal_floats(c.rows * m.width, 8);
    for (const auto& bias : {std::vector<float>(), normal_floats(c.count * c.heads, 9)}) {
      testing::check_everywhere(
          [&] {
            auto out = poisoned(c.rows * m.width),
                 scratch = poisoned(token_attention_scratch(c.count, c.interleaved));
            TokenAttentionArgs args = args_of(c, m, query, out.data(), scratch.data());
            args.bias = bias.empty() ? nullptr : bias.data();
            token_attention(args);
            return testing::Outputs{out};
          },
          {expected(c, m, query, 0.3, bias)}, {.atol = 2e-6, .rtol = 2e-5});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(TokenAttentionTest, ARowDoesNotDependOnItsNeighbours) {
  for (const Case& c : {Case{7, 37, 3, 19}, Case{7, 37, 8, 6, true}}) {
    const Memory m(c);
    const auto query = normal_floats(c.rows * m.width, 9);
    auto all = poisoned(c.rows * m.width),
         scratch = poisoned(token_attention_scratch(c.count, c.interleaved));
    token_attention(args_of(c, m, query, all.data(), scratch.data()));
    for (int64_t row = 0; row < c.rows; ++row) {
      auto one = poisoned(m.width);
      TokenAttentionArgs args = args_of(c, m, query, one.data(), scratch.data());
      args.query += row * m.width;
      args.rows = 1;
      token_attention(args);
      testing::expect_same({one}, {{all.begin() + row * m.width, all.begin() + (row + 1) * m.width}}, "row");
    }
  }
}

TEST(TokenAttentionTest, KnowsWhatCanBeInterleaved) {
  EXPECT_TRUE(token_attention_interleaves(8, 32) && token_attention_interleaves(16, 1));
  EXPECT_FALSE(token_attention_interleaves(3, 16) || token_attention_interleaves(8, 1) ||
               token_attention_interleaves(32, 8) || token_attention_interleaves(0, 16));
}

}  // namespace
}  // namespace multihead::kernels
