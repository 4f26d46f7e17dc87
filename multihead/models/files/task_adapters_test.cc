#include "multihead/models/files/task_adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/testing/files.h"

namespace multihead::models {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTasks = 3, kRank = 2;
constexpr double kAlpha = 3;

// A small model as it is published, with random adapters.
class Published {
 public:
  Published() {
    EncoderConfig c;
    c.vocab_size = 30, c.context = 16, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16, c.token_types = 1;
    c.rotary_base = 20000, c.pad_id = 1, c.norm_eps = 1e-5;
    Rng rng(4);
    Encoder model(resolved(c), rng);
    save_encoder(model, plain());
    for (const auto& [name, x] : encoder_tensors(model)) {
      if (x.rank() != 2) {
        tensors_["roberta." + name] = x;
        continue;
      }
      const std::string stem = "roberta." + name.substr(0, name.rfind('.')) + ".parametrizations.weight.";
      const bool is_table = name.find("embeddings.") != name.npos;
      tensors_[stem + "original"] = x;
      tensors_[stem + (is_table ? "0.lora_A" : "0.lora_B")] = randn({kTasks, x.size(0), kRank}, rng);
      tensors_[stem + (is_table ? "0.lora_B" : "0.lora_A")] = randn({kTasks, kRank, x.size(1)}, rng);
    }
    config_ = io::load_json(plain() + "/config.json");
    config_["model_type"] = "xlm-roberta";
    config_["architectures"] = Json(std::vector<Json>{"XLMRobertaLoRA"});
    config_["rope_parameters"] = nullptr;
    config_["position_embedding_type"] = "rotary";
    config_["rotary_emb_base"] = 20000;
    config_["lora_adaptations"] =
        Json(std::vector<Json>{"retrieval.query", "retrieval.passage", "separation"});
    config_["task_instructions"] =
        Json::object({{"retrieval.query", "find: "}, {"retrieval.passage", ""}, {"separation", ""}});
    config_["lora_rank"] = kRank, config_["lora_alpha"] = kAlpha;
  }

  void set(const char* key, const Json& value) { config_[key] = value; }
  void remove(const std::string& name) { tensors_.erase(name); }
  std::string plain() const { return folder_ / "plain"; }
  std::string folder() const {
    const std::string path = folder_ / "published";
    std::filesystem::create_directories(path);
    write_file_atomically(path + "/config.json", config_.dump());
    io::save_safetensors(path + "/model.safetensors", tensors_);
    return path;
  }
  const Tensor& tensor(const std::string& name) const { return tensors_.at("roberta." + name); }
  std::string error(const std::string& task) const {
    try {
      load_encoder(folder(), {}, false, task);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "loaded";
  }

 private:
  TemporaryFolder folder_;
  io::TensorMap tensors_;
  Json config_;
};

// Its largest difference from W + alpha / rank · left · right, in f64.
double error_of(const Tensor& merged, const Tensor& original, const Tensor& left, const Tensor& right,
                int64_t task) {
  const int64_t rows = original.size(0), columns = original.size(1);
  double largest = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < kRank; ++r) {
        sum += static_cast<double>(left.data<float>()[(task * rows + i) * kRank + r]) *
               right.data<float>()[(task * kRank + r) * columns + j];
      }
      const double expected = original.data<float>()[i * columns + j] + kAlpha / kRank * sum;
      largest = std::max(largest, std::abs(expected - merged.data<float>()[i * columns + j]));
    }
  }
  return largest;
}

TEST(TaskAdaptersTest, ATaskChangesEveryMatrix) {
  const Published published;
  const std::string folder = published.folder();
  Encoder plain = load_encoder(published.plain()), base = load_encoder(folder);
  const io::TensorMap expected = encoder_tensors(plain), unchanged = encoder_tensors(base);
  for (const auto& [name, x] : expected) {
    EXPECT_EQ(unchanged.at(name).to_vector<float>(), x.to_vector<float>()) << name;
  }
  Encoder model = load_encoder(folder, {}, false, "document");  // retrieval.passage
  for (const auto& [name, x] : encoder_tensors(model)) {
    if (x.rank() != 2) continue;
    const std::string stem = name.substr(0, name.rfind('.')) + ".parametrizations.weight.";
    const Tensor &a = published.tensor(stem + "0.lora_A"), &b = published.tensor(stem + "0.lora_B");
    const bool is_table = name.find("embeddings.") != name.npos;
    EXPECT_LT(error_of(x, published.tensor(stem + "original"), is_table ? a : b, is_table ? b : a, 1), 1e-5)
        << name;
  }
}

TEST(TaskAdaptersTest, WhatIsNotUnderstoodIsRefusedByName) {
  EXPECT_THAT(Published().error("headline"), HasSubstr("\"headline\"; the tasks are retrieval.query, "));
  Published published;
  EXPECT_THROW(load_encoder(published.plain(), {}, false, "query"), ValueError);
  published.set("lora_rank", 3);
  EXPECT_THAT(published.error("query"), HasSubstr("expected [3, 30, 3], got [3, 30, 2]"));
  published.set("lora_rank", kRank);
  published.set("task_instructions", Json::object({}));
  EXPECT_THAT(published.error("query"), HasSubstr("task_instructions"));
  published.set("task_instructions",
                Json::object({{"retrieval.query", ""}, {"retrieval.passage", ""}, {"separation", ""}}));
  published.set("truncate_dim", 8);
  EXPECT_THAT(published.error(""), HasSubstr("truncate_dim"));
  published.set("truncate_dim", nullptr);
  published.remove("roberta.encoder.layers.1.mlp.fc2.parametrizations.weight.0.lora_A");
  EXPECT_THAT(published.error("query"),
              HasSubstr("missing encoder.layers.1.mlp.fc2.parametrizations.weight.0.lora_A"));
}

}  // namespace
}  // namespace multihead::models
