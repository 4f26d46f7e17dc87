// Encoders in GGUF files beside the folders that they were made of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/io/gguf.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/nn/packed_linear.h"
#include "multihead/testing/files.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::embed {
namespace {

using ::testing::HasSubstr;

constexpr std::pair<const char*, const char*> kBertNames[] = {
    {"embeddings.word_embeddings", "token_embd"},
    {"embeddings.position_embeddings", "position_embd"},
    {"embeddings.token_type_embeddings", "token_types"},
    {"embeddings.LayerNorm", "token_embd_norm"},
    {"encoder.layer.", "blk."},
    {"attention.self.query", "attn_q"},
    {"attention.self.key", "attn_k"},
    {"attention.self.value", "attn_v"},
    {"attention.output.dense", "attn_output"},
    {"attention.output.LayerNorm", "attn_output_norm"},
    {"intermediate.dense", "ffn_up"},
    {"output.dense", "ffn_down"},
    {"output.LayerNorm", "layer_output_norm"}};

// A BERT in a folder and in a file, its matrices as `type`, with words of a text.
class BertFile {
 public:
  explicit BertFile(const char* type = "F32", int64_t width = 24) {
    models::EncoderConfig c;
    c.vocab_size = 80, c.context = 40, c.num_layers = 2, c.num_heads = 2, c.embed_dim = width,
    c.pooler = false;
    c.init_std = 1.5 / std::sqrt(static_cast<double>(width));
    Rng rng(7);
    models::Encoder encoder(models::resolved(c), rng);
    models::save_encoder(encoder, folder());
    const text::Tokenizer tokenizer =
        text::Tokenizer::train_wordpiece("the cats sat on the mat , and the cat sat .", {.vocab_size = 50});
    tokenizer.save(folder());
    contents_.metadata = {{"general.architecture", "bert"},
                          {"bert.block_count", c.num_layers},
                          {"bert.context_length", c.context},
                          {"bert.embedding_length", c.embed_dim},
                          {"bert.feed_forward_length", 4 * c.embed_dim},
                          {"bert.attention.head_count", c.num_heads},
                          {"bert.attention.layer_norm_epsilon", 1e-12},
                          {"bert.attention.causal", false},
                          {"bert.pooling_type", 2},
                          {"tokenizer.ggml.model", "bert"},
                          {"tokenizer.ggml.pre", "bert-bge"},
                          {"tokenizer.ggml.normalizer.lowercase", true}};
    add_words(tokenizer, c.vocab_size);
    for (const auto& [name, tensor] : models::encoder_tensors(encoder)) {
      std::string theirs = name;
      for (const auto& [from, to] : kBertNames) {
        if (const size_t at = theirs.find(from); at != theirs.npos) theirs.replace(at, std::strlen(from), to);
      }
      const bool is_table = theirs.starts_with("position_embd") || theirs.starts_with("token_types");
      const char* stored = tensor.rank() == 2 && !is_table ? type : "F32";
      contents_.tensors.push_back({theirs, tensor, &io::writable_gguf_type(stored)});
    }
  }

  std::string folder() const { return folder_ / "model"; }
  std::string file() const {
    io::write_gguf(folder_ / "model.gguf", contents_);
    return folder_ / "model.gguf";
  }
  void set(const std::string& key, const io::GgufValue& value) {
    std::erase_if(contents_.metadata, [&](const auto& entry) { return entry.first == key; });
    contents_.metadata.emplace_back(key, value);
  }
  std::string error() const {
    try {
      SentenceEncoder::load(file());
    } catch (const FormatError& error) {
      return error.what();
    }
    return "loaded";
  }

 private:
  // llama.cpp marks what begins a word, not what continues one.
  void add_words(const text::Tokenizer& tokenizer, int64_t size) {
    std::vector<std::string> tokens;
    std::vector<int64_t> types;
    for (int32_t id = 0; id < size; ++id) {
      const std::string token =
          id < tokenizer.vocab_size() ? tokenizer.token(id) : concat("[unused", id, "]");
      const bool special = id < 5;
      tokens.push_back(special ? token : token.starts_with("##") ? token.substr(2) : "\u2581" + token);
      types.push_back(special ? 3 : 1);
    }
    set("tokenizer.ggml.tokens", tokens);
    set("tokenizer.ggml.token_type", types);
    for (const auto& [role, id] :
         {std::pair("padding", 0), {"unknown", 1}, {"cls", 2}, {"seperator", 3}, {"mask", 4}}) {
      set(concat("tokenizer.ggml.", role, "_token_id"), id);
    }
  }

  TemporaryFolder folder_;
  io::GgufContents contents_;
};

TEST(SentenceEncoderGgufTest, AFileGivesTheVectorsOfItsFolder) {
  const BertFile bert;
  const std::vector<std::string> texts = {"The cats sat.", "and the unknown CAT", "mat"};
  SentenceEncoder folder = SentenceEncoder::load(bert.folder()), file = SentenceEncoder::load(bert.file());
  EXPECT_EQ(file.tokenizer().encode(texts[1]), folder.tokenizer().encode(texts[1]));
  folder.set_pooling(Pooling::cls);
  EXPECT_EQ(file.encode(texts).to_vector<float>(), folder.encode(texts).to_vector<float>());
  EXPECT_TRUE(models::is_encoder_folder(bert.file()));
}

size_t weight_bytes(SentenceEncoder& encoder) {
  size_t total = 0;
  for (const Tensor& parameter : nn::parameters(encoder)) total += parameter.bytes();
  const auto add = [&](const std::string&, Tensor&, nn::PackedLinear& packed) {
    if (packed.defined()) total += packed.bytes();
  };
  nn::Visitor visitor = nn::Visitor::of_matrices(add);
  encoder.visit(visitor);
  return total;
}

// |a - b| / |a|
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) difference += std::pow(a[i] - b[i], 2), size += std::pow(a[i], 2);
  return std::sqrt(difference / size);
}

// Of a type of file: how it is computed, and the bits of a weight.
struct StoredCase {
  const char* type;
  nn::WeightDtype dtype;
  double bits;
};

TEST(SentenceEncoderGgufTest, MatricesAreComputedAsTheyAreStored) {
  const std::vector<std::string> texts = {"The cats sat.", "and the unknown CAT sat on the mat , the mat",
                                          "mat"};
  const int before = num_threads();
  for (const StoredCase& c : {StoredCase{"F16", nn::WeightDtype::f16, 16},
                              {"Q8_0", nn::WeightDtype::q8, 8.5},
                              {"Q4_1", nn::WeightDtype::q4, 5},
                              {"Q4_0", nn::WeightDtype::q4, 5}}) {
    const BertFile bert(c.type, 128);
    const std::string file = bert.file();
    SentenceEncoder stored = SentenceEncoder::load(file),
                    decoded = SentenceEncoder::load(file, nn::WeightDtype::f32);
    EXPECT_EQ(stored.encoder().packed_dtype(), c.dtype) << c.type;
    EXPECT_EQ(decoded.encoder().packed_dtype(), nn::WeightDtype::f32) << c.type;
    EXPECT_EQ(SentenceEncoder::load(file, nn::WeightDtype::int8).encoder().packed_dtype(),
              nn::WeightDtype::int8);
    EXPECT_FALSE(SentenceEncoder::load_to_train(file).encoder().packed_dtype());

    const auto all = stored.encode(texts).to_vector<float>();
    // The weights are the same; integers have inputs rounded to 8 bits besides.
    EXPECT_LT(distance(decoded.encode(texts).to_vector<float>(), all),
              c.dtype == nn::WeightDtype::f16 ? 1e-6 : 0.02)
        << c.type;
    EXPECT_NEAR(static_cast<double>(weight_bytes(stored)) / static_cast<double>(weight_bytes(decoded)),
                c.bits / 32, 0.04)
        << c.type;
    EXPECT_EQ(stored.encode(texts, {.batch_tokens = 1}).to_vector<float>(), all) << c.type;
    set_num_threads(3);
    EXPECT_EQ(stored.encode(texts).to_vector<float>(), all) << c.type;
    set_num_threads(before);
  }
}

TEST(SentenceEncoderGgufTest, ARoleMayBeAPieceOfWords) {
  BertFile bert;
  bert.set("tokenizer.ggml.mask_token_id", 7);
  EXPECT_EQ(bert.error(), "loaded");
}

TEST(SentenceEncoderGgufTest, WhatWouldChangeTheModelIsRefusedByName) {
  const auto error = [](const std::string& key, const io::GgufValue& value) {
    BertFile bert;
    bert.set(key, value);
    return bert.error();
  };
  EXPECT_THAT(error("bert.attention.causal", true), HasSubstr("attention.causal"));
  EXPECT_THAT(error("bert.expert_count", 8), HasSubstr("expert_count is not supported"));
  EXPECT_THAT(error("bert.rope.dimension_count", 12), HasSubstr("rope.dimension_count is not supported"));
  EXPECT_THAT(error("bert.attention.sliding_window", 1), HasSubstr("sliding_window is not supported"));
  EXPECT_EQ(error("bert.attention.key_length", 12), "loaded");
  for (const char* key : {"bert.attention.key_length", "bert.attention.value_length"})
    EXPECT_THAT(error(key, 8), HasSubstr("_length 8 is not supported: expected 12, the size of a head"));
  EXPECT_THAT(error("bert.block_count", 1), HasSubstr("unexpected blk.1."));
  EXPECT_THAT(error("bert.feed_forward_length", 12), HasSubstr("blk.0.ffn_up.weight: expected [12, 24]"));
  EXPECT_THAT(error("tokenizer.ggml.model", "plamo2"), HasSubstr("WordPiece"));
}

}  // namespace
}  // namespace multihead::embed
