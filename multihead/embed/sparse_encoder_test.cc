#include "multihead/embed/sparse_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"

namespace multihead::embed {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<std::string> kSparseTexts = {"the cat", "a dog sat on the mat and the cat sat on the dog",
                                               "m", "the dog"};

text::Tokenizer small_tokenizer() {
  return text::Tokenizer::train_bpe("the cat sat on the mat and the dog sat on the cat", {.vocab_size = 270});
}

models::Encoder small_encoder(models::EncoderHead head) {
  models::EncoderConfig c;
  c.vocab_size = 280, c.context = 90, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 24, c.init_std = .4;
  c.head = head;
  Rng rng(11);
  return {models::resolved(c), rng};
}

std::vector<float> row_of_sparse(const SparseRows& rows, int64_t r) {
  std::vector<float> dense(static_cast<size_t>(rows.width));
  for (int64_t i = rows.ends.data<int64_t>()[r]; i < rows.ends.data<int64_t>()[r + 1]; ++i) {
    dense[static_cast<size_t>(rows.columns.data<int64_t>()[i])] = rows.values.data<float>()[i];
  }
  return dense;
}

TEST(SparseEncoderTest, WeightsAreThePooledLogits) {
  const models::Encoder model = small_encoder(models::EncoderHead::masked_lm);
  const text::Tokenizer tokenizer = small_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode(kSparseTexts[1]);
  const std::vector<float> logits =
      model.logits(models::TokenRows::of(std::vector<std::vector<int32_t>>{ids})).to_vector<float>();
  for (const bool sums : {false, true}) {
    for (const bool logs_twice : {false, true}) {
      const SparseEncoder encoder(model, tokenizer, {sums, logs_twice});
      const std::vector<float> got = row_of_sparse(encoder.encode(kSparseTexts), 1);
      for (size_t c = 0; c < got.size(); ++c) {
        double want = 0;
        for (size_t t = 0; t < ids.size(); ++t) {
          double one = std::log1p(std::max<double>(logits[t * got.size() + c], 0));
          if (logs_twice) one = std::log1p(one);
          want = sums ? want + one : std::max(want, one);
        }
        EXPECT_NEAR(got[c], want, 1e-5) << c;
      }
    }
  }
}

TEST(SparseEncoderTest, TheLargestWeightsAreKept) {
  const SparseEncoder encoder(small_encoder(models::EncoderHead::masked_lm), small_tokenizer());
  const SparseRows all = encoder.encode(kSparseTexts), few = encoder.encode(kSparseTexts, {}, 5);
  for (int64_t r = 0; r < 4; ++r) {
    std::vector<float> weights = row_of_sparse(all, r), kept = row_of_sparse(few, r);
    EXPECT_EQ(std::ranges::count_if(kept, [](float w) { return w != 0; }), 5);
    std::vector<float> sorted = weights;
    std::ranges::sort(sorted, std::greater());
    for (size_t c = 0; c < kept.size(); ++c) EXPECT_EQ(kept[c], weights[c] >= sorted[4] ? weights[c] : 0.0F);
  }
}

TEST(SparseEncoderTest, WeightsHaveTheSameBitsInAnyBatchOnAnyThreads) {
  for (const nn::WeightDtype dtype : {nn::WeightDtype::f32, nn::WeightDtype::int8}) {
    models::Encoder model = small_encoder(models::EncoderHead::masked_lm);
    model.pack_weights(dtype);
    const SparseEncoder encoder(std::move(model), small_tokenizer());
    const SparseRows together = encoder.encode(kSparseTexts);
    const int threads = num_threads();
    for (const int count : {1, 2, 8}) {
      set_num_threads(count);
      for (size_t i = 0; i < kSparseTexts.size(); ++i) {
        EXPECT_EQ(row_of_sparse(encoder.encode(std::span(&kSparseTexts[i], 1)), 0),
                  row_of_sparse(together, static_cast<int64_t>(i)));
      }
    }
    set_num_threads(threads);
  }
}

TEST(SparseEncoderTest, RefusesWhatHasNoWeights) {
  EXPECT_THAT([] { SparseEncoder(small_encoder(models::EncoderHead::none), small_tokenizer()); },
              ThrowsMessage<ValueError>(HasSubstr("needs a masked_lm head")));
  const SparseEncoder encoder(small_encoder(models::EncoderHead::masked_lm), small_tokenizer());
  EXPECT_THAT([&] { encoder.encode(kSparseTexts, {.truncate_dim = 3}); },
              ThrowsMessage<ValueError>(HasSubstr("truncate_dim")));
  EXPECT_EQ(encoder.encode({}).size(), 0);
}

}  // namespace
}  // namespace multihead::embed
