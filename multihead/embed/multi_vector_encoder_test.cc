#include "multihead/embed/multi_vector_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::vector<std::string> kColbertTexts = {"the cat .", "a dog sat on the mat , and the cat", "the",
                                                "sat on the dog ."};

/// A folder of sentence-transformers with a random encoder and a projection to 6 columns.
class ColbertFolder {
 public:
  ColbertFolder() : path((fs::temp_directory_path() / concat("multihead_colbert_", ::getpid())).string()) {
    models::EncoderConfig c;
    c.vocab_size = 90, c.context = 40, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 24, c.init_std = .3;
    Rng rng(11);
    models::Encoder encoder(models::resolved(c), rng);
    models::save_encoder(encoder, path);
    text::Tokenizer::train_wordpiece(
        "the cat sat on the mat , and a dog sat on the mat . a dog , and the cat .", {.vocab_size = 60})
        .save(path);
    write(
        "modules.json",
        R"([{"type": "sentence_transformers.models.Transformer", "path": ""}, {"type": "sentence_transformers.models.Dense", "path": "1"},
                              {"type": "sentence_transformers.models.MultiVectorMask", "path": "2"}, {"type": "sentence_transformers.models.Normalize", "path": "3"}])");
    write("1/config.json", R"({"activation_function": "torch.nn.modules.linear.Identity", "bias": false,
                               "module_input_name": "token_embeddings", "module_output_name": "token_embeddings"})");
    io::save_safetensors(path + "/1/model.safetensors", {{"linear.weight", randn({6, 24}, rng)}});
    write("2/config.json", R"({"skiplist_words": ["."], "skiplist_tasks": ["document"]})");
    write("3/config.json", R"({"module_input_name": "token_embeddings"})");
    write("config_sentence_transformers.json",
          R"({"model_type": "MultiVectorEncoder", "prompts": {"query": "a ", "document": "the "}})");
  }
  ~ColbertFolder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& content) const {
    fs::create_directories((fs::path(path) / name).parent_path());
    write_file_atomically((fs::path(path) / name).string(), content);
  }
  void expand(const char* attend) const {
    write("sentence_bert_config.json",
          concat(R"({"query_expansion": {"strategy": "fixed", "length": 12, "attend": )", attend, "}}"));
  }
  const std::string path;
};

std::vector<float> colbert_vectors(const MultiVectors& all, int64_t text) {
  const int64_t* ends = all.ends.data<int64_t>();
  return contiguous(slice(all.vectors, 0, ends[text], ends[text + 1])).to_vector<float>();
}

TEST(MultiVectorEncoderTest, EachTokenHasAProjectedVectorButForSkippedOnes) {
  const ColbertFolder folder;
  const MultiVectorEncoder encoder = MultiVectorEncoder::load(folder.path);
  EXPECT_EQ(encoder.dim(), 6);
  const models::Encoder model = models::load_encoder(folder.path);
  const Tensor weight = io::SafetensorsFile(folder.path + "/1/model.safetensors").load("linear.weight");
  const text::Tokenizer& tokenizer = encoder.tokenizer();
  const auto want = [&](const std::string& text, bool skips) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    std::vector<int64_t> kept;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!skips || ids[i] != *tokenizer.id(".")) kept.push_back(static_cast<int64_t>(i));
    }
    const Tensor x = model.features(models::TokenRows::of(std::vector<std::vector<int32_t>>{ids}));
    return normalized_rows(linear(embedding(x, Tensor::of({std::ssize(kept)}, kept)), weight))
        .to_vector<float>();
  };
  const MultiVectors documents = encoder.encode(kColbertTexts, TextTask::document),
                     queries = encoder.encode(kColbertTexts, TextTask::query);
  for (int64_t i = 0; i < 4; ++i) {
    const std::string& text = kColbertTexts[static_cast<size_t>(i)];
    EXPECT_THAT(colbert_vectors(documents, i),
                ::testing::Pointwise(::testing::FloatNear(1e-5), want("the " + text, true)));
    EXPECT_THAT(colbert_vectors(queries, i),
                ::testing::Pointwise(::testing::FloatNear(1e-5), want("a " + text, false)));
  }
}

TEST(MultiVectorEncoderTest, QueriesAreFilledWithMasks) {
  const ColbertFolder folder;
  for (const char* attend : {"true", "false"}) {
    folder.expand(attend);
    const MultiVectorEncoder encoder = MultiVectorEncoder::load(folder.path);
    const MultiVectors filled = encoder.encode(kColbertTexts, TextTask::query);
    EXPECT_EQ(filled.ends.to_vector<int64_t>(), (std::vector<int64_t>{0, 12, 24, 36, 48}));
    folder.write("sentence_bert_config.json", "{}");
    const MultiVectors plain = MultiVectorEncoder::load(folder.path).encode(kColbertTexts, TextTask::query);
    // Tokens that are not attended to change nothing for the others.
    const std::vector<float> alone = colbert_vectors(plain, 0), among = colbert_vectors(filled, 0);
    float difference = 0;
    for (size_t i = 0; i < alone.size(); ++i)
      difference = std::max(difference, std::fabs(alone[i] - among[i]));
    EXPECT_EQ(difference < 1e-6F, attend[0] == 'f') << difference;
  }
}

TEST(MultiVectorEncoderTest, VectorsHaveTheSameBitsInAnyBatchOnAnyThreads) {
  const ColbertFolder folder;
  for (const nn::WeightDtype dtype : {nn::WeightDtype::f32, nn::WeightDtype::int8}) {
    for (const TextTask task : {TextTask::document, TextTask::query}) {
      folder.expand("false");
      const MultiVectorEncoder encoder = MultiVectorEncoder::load(folder.path, dtype);
      const MultiVectors together = encoder.encode(kColbertTexts, task);
      const int threads = num_threads();
      for (const int count : {1, 2, 8}) {
        set_num_threads(count);
        for (size_t i = 0; i < kColbertTexts.size(); ++i) {
          EXPECT_EQ(colbert_vectors(encoder.encode(std::span(&kColbertTexts[i], 1), task), 0),
                    colbert_vectors(together, static_cast<int64_t>(i)));
        }
      }
      set_num_threads(threads);
    }
  }
}

TEST(MultiVectorEncoderTest, ReadsPyLatesFoldersAndStanfords) {
  const ColbertFolder folder;
  folder.write("modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": ""},
                                   {"type": "pylate.models.Dense.Dense", "path": "1"}])");
  folder.write(
      "config_sentence_transformers.json",
      R"({"model_type": "ColBERT", "query_prefix": "cat ", "document_prefix": "dog ", "query_length": 9,
                   "document_length": 7, "attend_to_expansion_tokens": false, "skiplist_words": ["."]})");
  const MultiVectorEncoder encoder = MultiVectorEncoder::load(folder.path);
  EXPECT_EQ(encoder.prompts().of(TextTask::query), "cat ");
  const MultiVectors queries = encoder.encode(kColbertTexts, TextTask::query);
  EXPECT_EQ(queries.ends.to_vector<int64_t>(), (std::vector<int64_t>{0, 9, 18, 27, 36}));
  // [CLS] dog the cat . [SEP] without the full stop; the second is cut to seven tokens.
  EXPECT_EQ(encoder.encode(kColbertTexts, TextTask::document).ends.to_vector<int64_t>()[2], 5 + 7);
  // Older ones do not say what they are.
  const std::string own = (fs::path(folder.path) / "config_sentence_transformers.json").string();
  std::string settings = read_file(own);
  const std::string type = R"("model_type": "ColBERT", )";
  folder.write("config_sentence_transformers.json", settings.erase(settings.find(type), type.size()));
  EXPECT_EQ(vector_kind(folder.path), VectorKind::multi_vector);
  EXPECT_EQ(
      MultiVectorEncoder::load(folder.path).encode(kColbertTexts, TextTask::query).vectors.to_vector<float>(),
      queries.vectors.to_vector<float>());

  const std::string stanford = folder.path + "/stanford";
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    std::string text = read_file((fs::path(folder.path) / file).string());
    if (const size_t at = text.find("BertModel"); at != text.npos) text.replace(at, 9, "HF_ColBERT");
    folder.write(concat("stanford/", file), text);
  }
  io::TensorMap tensors;
  const io::SafetensorsFile weights(folder.path + "/model.safetensors");
  for (const std::string& name : weights.names()) tensors["bert." + name] = weights.load(name);
  tensors["linear.weight"] = io::SafetensorsFile(folder.path + "/1/model.safetensors").load("linear.weight");
  io::save_safetensors(stanford + "/model.safetensors", tensors);
  folder.write("stanford/artifact.metadata",
               R"({"query_token_id": "cat", "doc_token_id": "dog", "query_maxlen": 9, "doc_maxlen": 7})");
  EXPECT_EQ(vector_kind(stanford), VectorKind::multi_vector);
  EXPECT_EQ(colbert_vectors(MultiVectorEncoder::load(stanford).encode(kColbertTexts, TextTask::query), 1),
            colbert_vectors(queries, 1));
  for (const auto& [metadata, text] :
       {std::pair(R"({"similarity": "l2"})", "similarity \"l2\" is not supported"),
        {R"({"attend_to_mask_tokens": "no"})", "attend_to_mask_tokens must be true or false"},
        {R"({"query_token_id": 7})", "query_token_id must be a text"}}) {
    folder.write("stanford/artifact.metadata", metadata);
    EXPECT_THAT([&] { MultiVectorEncoder::load(stanford); },
                ::testing::ThrowsMessage<FormatError>(HasSubstr(text)));
  }
}

TEST(MultiVectorEncoderTest, RefusesWhatItDoesNotKnow) {
  const ColbertFolder folder;
  const auto error = [&](const std::string& name, const std::string& content) -> std::string {
    const std::string before = read_file((fs::path(folder.path) / name).string());
    folder.write(name, content);
    std::string message = "loaded";
    try {
      MultiVectorEncoder::load(folder.path);
    } catch (const std::exception& thrown) {
      message = thrown.what();
    }
    folder.write(name, before);
    return message;
  };
  EXPECT_THAT(error("2/config.json", R"({"keep_only_token_ids": [3]})"), HasSubstr("keep_only_token_ids"));
  EXPECT_THAT(error("2/config.json", R"({"other": 1})"), HasSubstr("other"));
  EXPECT_THAT(error("1/config.json", R"({"module_input_name": "sentence_embedding"})"),
              HasSubstr("module_input_name"));
  EXPECT_THAT(error("modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": ""}])"),
              HasSubstr("not a multi-vector model"));
  EXPECT_THAT(error("config_sentence_transformers.json", R"({"model_type": "SparseEncoder"})"),
              HasSubstr("model_type"));
  EXPECT_THAT(error("config_sentence_transformers.json",
                    R"({"model_type": "MultiVectorEncoder", "query_length": 6})"),
              HasSubstr("query_length is read where model_type is \"ColBERT\" or missing"));
  folder.expand("false");
  EXPECT_THAT(error("sentence_bert_config.json", R"({"query_expansion": {"strategy": "min"}})"),
              HasSubstr("length"));
  EXPECT_THAT(error("modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": ""},
                                        {"type": "sentence_transformers.models.Dense", "path": "1"}])"),
              HasSubstr("needs the module MultiVectorMask"));
  EXPECT_THROW(
      MultiVectorEncoder::load(folder.path).encode(kColbertTexts, TextTask::query, {.truncate_dim = 2}),
      ValueError);
}

}  // namespace
}  // namespace multihead::embed
