#include "multihead/embed/nearest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/pooling.h"
#include "multihead/embed/vector_index.h"
#include "multihead/kernels/quantized/format.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead::embed {
namespace {

using ::testing::HasSubstr;

SparseRows random_sparse(int64_t rows, int64_t width, Rng& rng) {
  const std::vector<float> dense = randn({rows, width}, rng).to_vector<float>();
  std::vector<int64_t> ends = {0}, columns;
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const float value = dense[static_cast<size_t>(r * width + c)];
      if (value < 1) continue;
      columns.push_back(c), values.push_back(value);
    }
    ends.push_back(std::ssize(columns));
  }
  return {Tensor::of({rows + 1}, ends), Tensor::of({std::ssize(columns)}, columns),
          Tensor::of({std::ssize(values)}, values), width};
}

Tensor dense_of(const SparseRows& rows) {
  Tensor x = Tensor::zeros({rows.size(), rows.width});
  for (int64_t r = 0; r < rows.size(); ++r) {
    for (int64_t i = rows.ends.data<int64_t>()[r]; i < rows.ends.data<int64_t>()[r + 1]; ++i) {
      x.data<float>()[r * rows.width + rows.columns.data<int64_t>()[i]] = rows.values.data<float>()[i];
    }
  }
  return x;
}

TEST(NearestTest, SparseRowsAreFoundAsDenseOnes) {
  Rng rng(3);
  const SparseRows queries = random_sparse(7, 31, rng), corpus = random_sparse(50, 31, rng);
  const auto got = nearest(queries, corpus, 60), want = nearest(dense_of(queries), dense_of(corpus), 60);
  ASSERT_EQ(got.size(), 7U);
  for (size_t q = 0; q < got.size(); ++q) {
    ASSERT_EQ(got[q].size(), 50U);
    for (size_t i = 0; i < 50; ++i) EXPECT_NEAR(got[q][i].score, want[q][i].score, 1e-5);
    EXPECT_EQ(got[q][0].row, want[q][0].row);
  }
  SparseRows wrong = corpus;
  wrong.width = 30;
  EXPECT_THROW(nearest(queries, wrong, 1), ShapeError);
  EXPECT_THROW(nearest(wrong, wrong, 1), ValueError);
}

TEST(NearestTest, ComparesAsAsked) {
  const Tensor queries = Tensor::of<float>({1, 2}, {2, 1});
  const Tensor corpus = Tensor::of<float>({4, 2}, {9, 0, 2, 2, 4, 2.5, 0, 0});
  const std::vector<std::pair<Similarity, std::vector<float>>> wanted = {
      {Similarity::dot, {18, 6, 10.5, 0}},
      {Similarity::cosine, {.894427F, .948683F, .995495F, 0}},
      {Similarity::euclidean, {-7.071068F, -1, -2.5, -2.236068F}},
      {Similarity::manhattan, {-8, -1, -3.5, -3}}};
  const SparseRows few_queries = {Tensor::of<int64_t>({2}, {0, 2}), Tensor::of<int64_t>({2}, {0, 1}),
                                  Tensor::of<float>({2}, {2, 1}), 2};
  const SparseRows few = {Tensor::of<int64_t>({5}, {0, 1, 3, 5, 5}),
                          Tensor::of<int64_t>({5}, {0, 0, 1, 0, 1}),
                          Tensor::of<float>({5}, {9, 2, 2, 4, 2.5}), 2};
  for (const auto& [by, scores] : wanted) {
    for (const auto& found : {nearest(queries, corpus, 9, by), nearest(few_queries, few, 9, by)}) {
      ASSERT_EQ(found[0].size(), 4U);
      for (size_t i = 0; i < 4; ++i) {
        const Match& match = found[0][i];
        EXPECT_NEAR(match.score, scores[static_cast<size_t>(match.row)], 1e-6) << word_of(by) << match.row;
        if (i > 0) {
          EXPECT_LE(match.score, found[0][i - 1].score) << word_of(by);
        }
      }
    }
  }
  EXPECT_EQ(Prompts{.similarity = "euclidean"}.compared_by(Similarity::dot), Similarity::euclidean);
  EXPECT_EQ(Prompts{}.compared_by(Similarity::dot), Similarity::dot);
  EXPECT_THROW(Prompts{.similarity = "tanimoto"}.compared_by(Similarity::dot), ValueError);
}

TEST(NearestTest, MaxSimAddsEachQueryVectorsLargest) {
  const auto vectors = [](std::initializer_list<float> values, std::vector<int64_t> ends) {
    return MultiVectors{Tensor::of<float>({ends.back(), 2}, values), Tensor::of({std::ssize(ends)}, ends)};
  };
  const MultiVectors queries = vectors({1, 0, 0, 1, 2, 2}, {0, 2, 3});
  const MultiVectors corpus = vectors({1, 0, .5, .25, 0, 3}, {0, 2, 2, 3});
  const auto best = nearest(queries, corpus, 5);
  ASSERT_EQ(best.size(), 2U);
  EXPECT_EQ(best[0][0].row, 2);
  EXPECT_EQ(best[0][0].score, 3.0F);  // 0 + 3
  EXPECT_EQ(best[0][1].score, 1.25F);
  EXPECT_EQ(best[0][2].score, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(best[1][0].score, 6.0F);
  EXPECT_EQ(best[1][1].score, 2.0F);
}

TEST(NearestTest, MaxSimHasTheSameBitsInPartsAndOnAnyNumberOfThreads) {
  Rng rng(5);
  std::vector<int64_t> ends = {0};
  for (int64_t i = 0; i < 300; ++i) ends.push_back(ends.back() + 1 + i % 41);
  const MultiVectors all = {randn({ends.back(), 24}, rng), Tensor::of({std::ssize(ends)}, ends)};
  const auto together = nearest(all, all, 3);
  const MultiVectors single = {slice(all.vectors, 0, ends[7], ends[8]), Tensor::of<int64_t>({2}, {0, 8})};
  const int threads = num_threads();
  for (const int count : {1, 3}) {
    set_num_threads(count);
    const auto alone = nearest(single, all, 3);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(alone[0][i].row, together[7][i].row);
      EXPECT_EQ(alone[0][i].score, together[7][i].score);
    }
  }
  set_num_threads(threads);
}

TEST(NearestTest, FindsTheLargestProductsInOrder) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  constexpr int64_t kRows = 9000, kDim = 5;
  std::vector<float> corpus(kRows * kDim), query(2 * kDim);
  for (float& x : corpus) x = normal(rng);
  for (float& x : query) x = normal(rng);
  std::copy_n(corpus.begin(), kDim, corpus.end() - kDim);  // the last row is the first
  std::copy_n(corpus.begin(), kDim, query.begin());
  for (int64_t i = 0; i < kDim; ++i) corpus[i] *= 100, corpus[corpus.size() - kDim + i] *= 100;
  const auto best = nearest(Tensor::of<float>({2, kDim}, query), Tensor::of<float>({kRows, kDim}, corpus), 7);
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0][0].row, 0);
  EXPECT_EQ(best[0][1].row, kRows - 1);
  for (const auto& list : best) {
    ASSERT_EQ(list.size(), 7u);
    for (size_t i = 1; i < list.size(); ++i) EXPECT_GE(list[i - 1].score, list[i].score);
  }
  EXPECT_THROW(nearest(Tensor::zeros({1, 3}), Tensor::zeros({1, 4}), 1), ShapeError);
}

// They would have no place in an order, and spoil that of others.
TEST(NearestTest, NanAndInfAreRefusedByRow) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf}) {
    for (const int64_t row : {0, 6000}) {
      Tensor corpus = Tensor::full({6001, 3}, 0.5), queries = Tensor::full({2, 3}, 0.5);
      corpus.data<float>()[row * 3 + 1] = bad;
      EXPECT_THAT(
          [&] { nearest(queries, corpus, 4); },
          ThrowsMessage<ValueError>(HasSubstr(concat("row ", row, " of the corpus holds NaN or Inf"))));
      queries.data<float>()[4] = bad;
      EXPECT_THAT(
          [&] {
            nearest(queries, Tensor::full({5, 3}, 0.5), 4);
          },
          ThrowsMessage<ValueError>(HasSubstr("row 1 of the queries holds NaN or Inf")));
    }
  }
  const Tensor large = Tensor::of<float>({1, 2}, std::vector<float>{3e38F, 3e38F});
  EXPECT_THAT([&] { nearest(large, large, 1); },
              ThrowsMessage<ValueError>(HasSubstr("a score is not finite")));
  EXPECT_EQ(nearest(large, Tensor::full({1, 2}, 0.25), 1)[0][0].row, 0);
}

TEST(VectorIndexTest, FindsWhatIsNearestInFewerBits) {
  Rng rng(4);
  const Tensor rows = normalized_rows(randn({900, 70}, rng));
  const Tensor queries = normalized_rows(randn({20, 70}, rng));
  const auto want = nearest(queries, rows, 10);
  for (const IndexKind kind : {IndexKind::int8, IndexKind::binary}) {
    const VectorIndex index(rows, kind);
    int64_t found = 0;
    const auto got = index.nearest(queries, 10, Similarity::dot, kind == IndexKind::binary ? 40 : 4);
    for (size_t q = 0; q < want.size(); ++q) {
      EXPECT_NEAR(got[q][0].score, want[q][0].score, 3e-2);
      for (const Match& match : want[q]) {
        for (const Match& other : got[q]) found += static_cast<int64_t>(other.row == match.row);
      }
    }
    EXPECT_GE(found, 190) << word_of(kind);
    const auto itself = index.nearest(slice(rows, 0, 5, 8), 1);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(itself[i][0].row, static_cast<int64_t>(i) + 5);
      EXPECT_NEAR(itself[i][0].score, 1, 1e-2);
    }
  }
  // Rows of many lengths, by other similarities; one without a length.
  Tensor uneven = mul(rows, exp(randn({900, 1}, rng)));
  std::fill_n(uneven.data<float>() + 3 * 70, 70, 0.0F);
  for (const Similarity by : {Similarity::cosine, Similarity::euclidean}) {
    const auto best = nearest(queries, uneven, 10, by);
    const VectorIndex bytes(uneven, IndexKind::int8);
    const auto near = bytes.nearest(queries, 10, by);
    int64_t found = 0;
    for (size_t q = 0; q < best.size(); ++q) {
      for (const Match& match : best[q]) {
        for (const Match& other : near[q]) {
          if (other.row != match.row) continue;
          ++found;
          EXPECT_NEAR(other.score, match.score, 3e-2) << word_of(by);
        }
      }
    }
    EXPECT_GE(found, 190) << word_of(by);
    const auto signs = VectorIndex(uneven, IndexKind::binary).nearest(queries, 3, by, 300);
    for (size_t q = 0; q < best.size(); ++q) {
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(signs[q][i].row, near[q][i].row) << word_of(by);
        EXPECT_EQ(signs[q][i].score, near[q][i].score) << word_of(by);
      }
    }
  }
  EXPECT_EQ(VectorIndex(Tensor::zeros({1, 70}), IndexKind::int8)
                .nearest(queries, 1, Similarity::cosine)[0][0]
                .score,
            0);
  EXPECT_THROW(VectorIndex(rows, IndexKind::int8).nearest(queries, 1, Similarity::manhattan), ValueError);
  // Parts of many rows, a last panel that is not full, columns that fill no group: each row finds itself.
  const Tensor many = normalized_rows(randn({4200, 67}, rng));
  for (const IndexKind kind : {IndexKind::int8, IndexKind::binary}) {
    const VectorIndex index(many, kind);
    const auto all = index.nearest(slice(many, 0, 4050, 4200), 2);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i][0].row, static_cast<int64_t>(i) + 4050);
      EXPECT_NEAR(all[i][0].score, 1, 1e-2);
    }
    const auto alone = index.nearest(slice(many, 0, 4199, 4200), 2)[0];
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(alone[i].row, all[149][i].row);
      EXPECT_EQ(alone[i].score, all[149][i].score);
    }
  }
  EXPECT_THROW(VectorIndex(Tensor::zeros({1, kernels::kLongestInt8Sum + 1}), IndexKind::int8), ValueError);
  EXPECT_EQ(VectorIndex(Tensor::zeros({2, 3}), IndexKind::int8).nearest(Tensor::ones({1, 3}), 5)[0].size(),
            2U);
  EXPECT_THROW(VectorIndex(Tensor::full({2, 3}, NAN), IndexKind::int8), ValueError);
  const Tensor large = Tensor::full({2, 3}, 1e18), too_large = Tensor::full({2, 3}, 3e19);
  EXPECT_MESSAGE(VectorIndex(too_large, IndexKind::int8), ValueError,
                 "row 0's numbers are too large for f32");
  for (const auto by : {Similarity::dot, Similarity::cosine, Similarity::euclidean}) {
    EXPECT_EQ(VectorIndex(large, IndexKind::int8).nearest(large, 1, by)[0].size(), 1u);
    EXPECT_MESSAGE(VectorIndex(large, IndexKind::int8).nearest(Tensor::full({2, 3}, 3e38), 1, by), ValueError,
                   "is not finite: their numbers are too large for f32");
  }
  EXPECT_THROW(VectorIndex(rows, IndexKind::int8).nearest(Tensor::ones({1, 3}), 5), ShapeError);
}

}  // namespace
}  // namespace multihead::embed
