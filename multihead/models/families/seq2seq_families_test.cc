#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/packed_seq2seq.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

// Made by tools/goldens/seq2seq.py.
const fs::path kTranslators = kData / "seq2seq";
constexpr const char* kNames[] = {"bart", "mbart", "pegasus", "t5", "t5_gated", "mt5", "m2m100"};

struct Fixture {
  explicit Fixture(const std::string& name)
      : model(load_seq2seq((kTranslators / name).string())),
        expected(io::load_safetensors((kTranslators / name / "expected.safetensors").string())),
        source{expected.at("source"), expected.at("lengths").to_vector<int64_t>()},
        target(expected.at("target")) {}
  Seq2Seq model;
  io::TensorMap expected;
  TokenBatch source;
  Tensor target;
};

TEST(Seq2SeqFamiliesTest, LogitsAreThoseOfTransformers) {
  for (const std::string name : kNames) {
    const Fixture f(name);
    EXPECT_EQ(family_of(f.model.config()), name.find("t5") != name.npos ? "t5"
                                           : name == "m2m100"           ? "m2m_100"
                                                                        : name);
    expect_near(f.model(f.source, {f.target, {}}), f.expected.at("logits"), 2e-5, name);
  }
}

TEST(Seq2SeqFamiliesTest, StepsWithAStateHaveTheSameLogits) {
  for (const std::string name : kNames) {
    const Fixture f(name);
    nn::DecodeState state = f.model.start(f.source, 24);
    const int64_t length = f.target.size(1);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 6}, {6, length}}) {
      const Tensor got = f.model.step(slice(f.target, 1, begin, end).contiguous(), state);
      expect_near(got, slice(f.expected.at("logits"), 1, begin, end).contiguous(), 2e-5, name);
    }
  }
}

TEST(Seq2SeqFamiliesTest, PackedStepsHaveTheSameLogits) {
  for (const std::string name : kNames) {
    const Fixture f(name);
    const PackedSeq2Seq packed(f.model);
    std::vector<std::vector<int32_t>> sources;
    const auto tokens = f.source.tokens.to_vector<int64_t>(), targets = f.target.to_vector<int64_t>();
    const int64_t rows = f.target.size(0), length = f.target.size(1);
    for (int64_t b = 0; b < rows; ++b) {
      const auto begin = tokens.begin() + b * f.source.tokens.size(1);
      sources.emplace_back(begin, begin + f.source.lengths[static_cast<size_t>(b)]);
    }
    PackedState state = packed.start(sources);
    for (int64_t t = 0; t < length; ++t) {
      std::vector<int32_t> next;
      for (int64_t b = 0; b < rows; ++b) {
        next.push_back(static_cast<int32_t>(targets[static_cast<size_t>(b * length + t)]));
      }
      const Tensor want = reshape(slice(f.expected.at("logits"), 1, t, t + 1).contiguous(), {rows, 41});
      expect_near(packed.step(next, state), want, 2e-5, concat(name, " step ", t));
    }
  }
}

// There M2M100 gives a padding token no position, and numbers the others without it.
TEST(Seq2SeqFamiliesTest, PaddingWithinATextIsRefusedByM2m100) {
  const Fixture f("m2m100");
  const TokenBatch source = {Tensor::of<int32_t>({1, 4}, {5, 40, 6, 0}), {}}, target = {f.target.clone(), {}};
  const Tensor from_two = slice(target.tokens, 1, 2, f.target.size(1));
  from_two.fill(40);
  const auto features = [&] {
    return slice(f.model(f.source, target), 1, 0, 2).contiguous().to_vector<float>();
  };
  EXPECT_EQ(features(), slice(f.model(f.source, {f.target, {}}), 1, 0, 2).contiguous().to_vector<float>());
  slice(from_two, 1, 1, 2).fill(3);
  EXPECT_MESSAGE(f.model.encode(source), ValueError,
                 "row 0 of source has the padding token 40 among its 4 tokens");
  EXPECT_MESSAGE(f.model(f.source, target), ValueError,
                 "row 0 of target has the padding token 40 among its 4 tokens");
  const Tensor padded = Tensor::of<int32_t>({1, 4}, {5, 6, 0, 40}),
               bare = Tensor::of<int32_t>({1, 3}, {5, 6, 0});
  EXPECT_EQ(slice(f.model.encode({padded, {3}}), 1, 0, 3).contiguous().to_vector<float>(),
            f.model.encode({bare, {}}).to_vector<float>());
}

TEST(Seq2SeqFamiliesTest, PaddingThatIsM2m100sEndIsRefused) {
  const fs::path folder = fs::temp_directory_path() / concat("multihead_m2m100_", ::getpid());
  fs::copy(kTranslators / "m2m100", folder);
  Json config = io::load_json((folder / "config.json").string());
  config["pad_token_id"] = config.at("eos_token_id");
  io::save_json((folder / "config.json").string(), config);
  EXPECT_MESSAGE(load_seq2seq(folder.string()), FormatError, "pad_token_id 0 is eos_token_id");
  fs::remove_all(folder);
}

TEST(Seq2SeqFamiliesTest, FamiliesAreWrittenAsTheyWereRead) {
  for (const std::string name : kNames) {
    Fixture f(name);
    const fs::path folder = fs::temp_directory_path() / concat("multihead_seq2seq_", ::getpid(), "_", name);
    save_seq2seq(f.model, folder.string());
    const Seq2Seq loaded = load_seq2seq(folder.string());
    EXPECT_EQ(loaded.config(), f.model.config()) << name;
    EXPECT_EQ(loaded(f.source, {f.target, {}}).to_vector<float>(),
              f.model(f.source, {f.target, {}}).to_vector<float>());
    const io::SafetensorsFile ours(folder.string()), theirs((kTranslators / name).string());
    EXPECT_EQ(ours.names(), theirs.names()) << name;
    const Json config = io::load_json((folder / "config.json").string());
    const Json original = config_of(concat("seq2seq/", name));
    for (const JsonMember& member : original.members()) {
      const Json* written = config.find(std::string(member.key));
      if (written == nullptr || member.value.is_null() || name == "mt5") continue;  // saved as T5
      EXPECT_EQ(written->dump(), member.value.dump()) << name << ": " << member.key;
    }
    fs::remove_all(folder);
  }
}

// As BartModel is published: no prefix, no output layer.
TEST(Seq2SeqFamiliesTest, ABartWithoutAHeadIsReadToo) {
  Fixture f("bart");
  const fs::path folder = fs::temp_directory_path() / concat("multihead_bart_", ::getpid());
  fs::create_directories(folder);
  fs::copy_file(kTranslators / "bart" / "config.json", folder / "config.json");
  io::TensorMap stored;
  const std::string prefix = "model.";
  for (const auto& [name, tensor] : seq2seq_tensors(f.model)) {
    if (name.starts_with(prefix)) stored[name.substr(prefix.size())] = tensor;
  }
  stored["encoder.embed_tokens.weight"] = stored["decoder.embed_tokens.weight"] = stored.at("shared.weight");
  io::save_safetensors((folder / "model.safetensors").string(), stored);
  const Seq2Seq model = load_seq2seq(folder.string());
  EXPECT_FALSE(model.config().output_bias);
  f.model.output_bias.fill(0);
  EXPECT_EQ(model(f.source, {f.target, {}}).to_vector<float>(),
            f.model(f.source, {f.target, {}}).to_vector<float>());
  fs::remove_all(folder);
}

TEST(Seq2SeqFamiliesTest, KeysThatCannotBeAreRefused) {
  const auto refused = [](const char* name, const char* key, const Json& value, const char* expected) {
    Json json = config_of(concat("seq2seq/", name));
    json[key] = value;
    try {
      seq2seq_config_from_json(json, "config.json");
      ADD_FAILURE() << key << " was accepted";
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  };
  refused("t5", "feed_forward_proj", "gated-swish-glu", "feed_forward_proj");
  refused("t5", "feed_forward_proj", "gated-", "feed_forward_proj");
  refused("t5", "d_kv", 0, "d_kv");
  refused("t5", "relative_attention_num_buckets", 3, "relative_buckets");
  refused("t5", "relative_attention_num_buckets", 1 << 20, "relative_attention_num_buckets");
  refused("t5", "relative_attention_max_distance", 8, "cannot hold distances up to 8");
  refused("bart", "normalize_before", true, "normalize_before");
  refused("mbart", "normalize_before", false, "normalize_before");
  refused("pegasus", "normalize_embedding", true, "normalize_embedding");
  refused("bart", "extra_pos_embeddings", 0, "extra_pos_embeddings");
}

}  // namespace
}  // namespace multihead::models
