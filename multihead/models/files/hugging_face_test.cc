#include "multihead/models/files/hugging_face.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/memory/storage.h"
#include "multihead/io/json.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/testing-inl.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/files.h"
#include "multihead/testing/matchers.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

const fs::path kDecoders = kData / "hugging_face";

// Fixtures: tools/goldens/hugging_face.py.
const char* const kFixtures[] = {"gpt2",
                                 "llama",
                                 "llama_tied",
                                 "mistral",
                                 "qwen2",
                                 "qwen3",
                                 "rope_linear",
                                 "rope_llama3",
                                 "rope_yarn",
                                 "phi",
                                 "phi3",
                                 "opt",
                                 "gpt_neox",
                                 "gemma",
                                 "gemma2",
                                 "gemma3",
                                 "gpt_neox_sequential",
                                 "gptj",
                                 "stablelm",
                                 "stablelm_parallel",
                                 "starcoder2",
                                 "olmo2",
                                 "granite",
                                 "smollm3",
                                 "gpt_neo",
                                 "falcon",
                                 "falcon_two_norms",
                                 "bloom",
                                 "youtu",
                                 "minicpm3"};

TEST(HuggingFaceTest, LogitsAreThoseOfTransformers) {
  for (const char* name : kFixtures) {
    const std::string folder = (kDecoders / name).string();
    const LanguageModel model = load_language_model(folder);
    const io::TensorMap expected = io::load_safetensors((kDecoders / name / "expected.safetensors").string());
    const auto got = model(expected.at("tokens")).to_vector<double>();
    const auto want = expected.at("logits").to_vector<double>();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << name << " at " << i;
  }
}

// They have logits, but predict no next token.
TEST(HuggingFaceTest, TokensThatSeeTheWholeTextHaveTheLogitsOfTransformers) {
  for (const char* name : {"eurobert", "gemma3_both_ways"}) {
    LanguageModel model = load_language_model((kDecoders / name).string());
    EXPECT_FALSE(model.config().causal);
    const io::TensorMap expected = io::load_safetensors((kDecoders / name / "expected.safetensors").string());
    const Tensor& tokens = expected.at("tokens");
    const auto got = model(tokens).to_vector<double>(), want = expected.at("logits").to_vector<double>();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << name << " at " << i;
    const TokenRows rows = TokenRows::of(std::vector<std::vector<int32_t>>{{3, 1, 4, 1, 5, 9, 2}, {6, 5}});
    const auto together = model.features(rows).to_vector<double>();
    const auto alone = model.features(reshape(slice(rows.tokens, 0, 0, 7), {1, 7})).to_vector<double>();
    for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(together[i], alone[i], 1e-5) << name;
    EXPECT_THROW(model.make_state(1), ValueError);
    EXPECT_THROW(model.loss(tokens, tokens), ValueError);
    const TemporaryFolder saved;
    save_language_model(model, saved.path());
    EXPECT_EQ(load_language_model(saved.path()).config(), model.config());
    EXPECT_EQ(io::SafetensorsFile(saved.path()).names(),
              io::SafetensorsFile((kDecoders / name).string()).names());
  }
}

TEST(HuggingFaceTest, CachedDecodingGivesTheLogitsOfThePass) {
  for (const char* name : kFixtures) {
    const LanguageModel model = load_language_model((kDecoders / name).string());
    const Tensor tokens =
        io::load_safetensors((kDecoders / name / "expected.safetensors").string()).at("tokens");
    const auto want = model(tokens).to_vector<double>();
    nn::DecodeState state = model.make_state(2, 11);
    const int64_t words = model.config().vocab_size;
    for (int64_t t = 0; t < 11; ++t) {
      const auto got = model(slice(tokens, 1, t, t + 1), {.state = &state}).to_vector<double>();
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t w = 0; w < words; ++w) {
          ASSERT_NEAR(got[static_cast<size_t>(b * words + w)],
                      want[static_cast<size_t>((b * 11 + t) * words + w)], 1e-4)
              << name << " at token " << t;
        }
      }
    }
  }
}

TEST(HuggingFaceTest, FamiliesAreWrittenAsTheyWereRead) {
  for (const char* name : kFixtures) {
    const TemporaryFolder folder;
    LanguageModel model = load_language_model((kDecoders / name).string());
    save_language_model(model, folder.path());
    LanguageModel loaded = load_language_model(folder.path());
    EXPECT_EQ(loaded.config(), model.config()) << name;
    const io::SafetensorsFile theirs((kDecoders / name).string()), ours(folder.path());
    const bool is_phi3 = std::string(name) == "phi3";  // written as Llama, which has the same models
    if (!is_phi3) {
      EXPECT_EQ(theirs.names(), ours.names()) << name;
    }
    for (const std::string& tensor : is_phi3 ? std::vector<std::string>() : ours.names()) {
      EXPECT_EQ(theirs.load(tensor).to_vector<float>(), ours.load(tensor).to_vector<float>())
          << name << " " << tensor;
    }
  }
}

std::vector<float> values(const Tensor& x) { return x.to_vector<float>(); }

TEST(HuggingFaceTest, ModelsWithoutAnOutputLayerGiveFeatures) {
  for (const char* name : {"qwen3_base", "gpt2_base"}) {
    const std::string folder = (kDecoders / name).string();
    LanguageModel model = load_language_model(folder);
    EXPECT_FALSE(model.config().head);
    const io::TensorMap expected = io::load_safetensors(folder + "/expected.safetensors");
    const auto got = model.features(expected.at("tokens")).to_vector<double>();
    const auto want = expected.at("features").to_vector<double>();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << name << " at " << i;
    EXPECT_THROW(model(expected.at("tokens")), ValueError);
    EXPECT_THROW(model.loss(expected.at("tokens"), expected.at("tokens")), ValueError);
    const TemporaryFolder saved;
    save_language_model(model, saved.path());
    EXPECT_EQ(load_language_model(saved.path()).config(), model.config());
    EXPECT_EQ(io::SafetensorsFile(saved.path()).names(), io::SafetensorsFile(folder).names());
    const Json config = io::load_json(saved / "config.json");
    EXPECT_EQ(config.at("architectures").dump(), name[0] == 'q' ? R"(["Qwen3Model"])" : R"(["GPT2Model"])");
  }
}

TEST(HuggingFaceTest, ADecoderHasTheFeaturesOfTheWholeModel) {
  for (const char* name : kFixtures) {
    const std::string folder = (kDecoders / name).string();
    const Tensor tokens = io::load_safetensors(folder + "/expected.safetensors").at("tokens");
    const LanguageModel whole = load_language_model(folder), decoder = load_decoder(folder);
    EXPECT_FALSE(decoder.config().head);
    EXPECT_EQ(values(decoder.features(tokens)), values(whole.features(tokens))) << name;
  }
}

// Positions, windows and biases begin anew in each.
TEST(HuggingFaceTest, SequencesInARowHaveTheFeaturesThatTheyHaveAlone) {
  for (const char* name : kFixtures) {
    const LanguageModel model = load_decoder((kDecoders / name).string());
    const std::vector<std::vector<int32_t>> sequences = {
        {3, 1, 4, 1, 5, 9, 2}, {6}, {5, 3, 5, 8, 9, 7, 9, 3, 2}};
    const TokenRows rows = TokenRows::of(sequences);
    if (model.config().latent_dim > 0) {
      EXPECT_THROW(model.features(rows), ValueError) << name;
      continue;
    }
    const Tensor together = model.features(rows);
    const std::vector<int64_t> ends = rows.cu_seqlens.to_vector<int64_t>();
    for (size_t s = 0; s < sequences.size(); ++s) {
      const TokenRows alone = TokenRows::of(std::span(&sequences[s], 1));
      const auto got = values(slice(together, 0, ends[s], ends[s + 1]).contiguous());
      EXPECT_EQ(got, values(model.features(alone))) << name;
      const auto padded = values(model.features(reshape(alone.tokens, {1, -1})));
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], padded[i], 1e-5) << name;
    }
  }
}

TEST(HuggingFaceTest, WhatIsSavedIsLoadedBitForBit) {
  std::vector<LanguageModelConfig> configs(8);
  for (LanguageModelConfig& c : configs)
    c.vocab_size = 19, c.embed_dim = 12, c.num_heads = 3, c.num_layers = 2;
  configs[1].positions = Positions::rotary, configs[1].norm = nn::NormKind::rms, configs[1].gated = true;
  configs[1].activation = Activation::silu, configs[1].attention_bias = configs[1].out_bias = false;
  configs[1].ffn_dropout_p = 0.2;
  configs[2].positions = Positions::alibi, configs[2].tie_embeddings = false;
  configs[3] = configs[1], configs[3].ffn_bias = false, configs[3].window = 3;
  configs[4].window = 4;  // GPT-2 has none
  configs[5] = configs[3], configs[5].window = 0, configs[5].attention_bias = true;
  configs[5].rotary_scaling = {.kind = RotaryScaling::Kind::llama3, .factor = 8, .original_context = 64};
  configs[6] = configs[3], configs[6].window = 0, configs[6].qk_norm = true;
  configs[6].rotary_scaling = {.kind = RotaryScaling::Kind::yarn,
                               .factor = 2.5,
                               .original_context = 16,
                               .beta_fast = 3,
                               .attention_factor = 1.25,
                               .truncate = false};
  configs[7] = configs[6], configs[7].rotary_layout = RotaryLayout::interleaved;  // in our own layout
  const char* const families[] = {"gpt2",      "llama", "multihead", "mistral",
                                  "multihead", "qwen2", "qwen3",     "multihead"};
  for (size_t i = 0; i < configs.size(); ++i) {
    const TemporaryFolder folder;
    Rng rng(i);
    LanguageModel model(configs[i], rng);
    EXPECT_EQ(family_of(configs[i]), families[i]);
    save_language_model(model, folder.path());
    LanguageModel loaded = load_language_model(folder.path());
    EXPECT_EQ(loaded.config(), model.config());
    const Tensor tokens = Tensor::arange(7);
    const Tensor x = tokens.as_strided({1, 7}, {7, 1});
    EXPECT_EQ(loaded(x).to_vector<float>(), model(x).to_vector<float>());
  }
}

TEST(HuggingFaceTest, OlderNamesOfScaledPositionsMeanTheSame) {
  for (const char* name : {"rope_linear", "rope_llama3", "rope_yarn"}) {
    Json json = config_of(concat("hugging_face/", name));
    const LanguageModelConfig newer = config_from_json(json, "config.json");
    EXPECT_NE(newer.rotary_scaling, RotaryScaling{});
    json["rope_scaling"] = json.at("rope_parameters");
    json["rope_theta"] = json.at("rope_parameters").at("rope_theta");
    json["rope_parameters"] = Json();
    EXPECT_EQ(config_from_json(json, "config.json"), newer) << name;
  }
}

// The fixture's config.json with these keys.
Json changed(const std::string& fixture, const Json& keys) {
  Json json = config_of(fixture);
  for (const JsonMember& member : keys.members()) json[std::string(member.key)] = member.value;
  return json;
}

TEST(HuggingFaceTest, GemmasGeluIsTheApproximationAsInTransformers) {
  const auto read = [](const Json& keys) {
    return config_from_json(changed("hugging_face/gemma", keys), "config.json").activation;
  };
  EXPECT_EQ(read(Json::object({{"hidden_act", "gelu"}})), Activation::gelu_tanh);
  EXPECT_EQ(read(Json::object({{"hidden_act", "gelu"}, {"hidden_activation", Json()}})),
            Activation::gelu_tanh);
  EXPECT_EQ(read(Json::object({{"hidden_act", Json()}})), Activation::gelu_tanh);
  EXPECT_EQ(read(Json::object({{"hidden_act", "relu"}})), Activation::relu);
  LanguageModelConfig exact = config_from_json(config_of("hugging_face/gemma"), "config.json");
  EXPECT_EQ(family_of(exact), "gemma");
  exact.activation = Activation::gelu;
  EXPECT_EQ(family_of(exact), "multihead");
}

TEST(HuggingFaceTest, MissingKeysAreTheFamilysDefaults) {
  Json phi3 = config_of("hugging_face/phi3"), m2m = config_of("seq2seq/m2m100");
  Json starcoder2 = config_of("hugging_face/starcoder2");
  phi3["rms_norm_eps"] = Json(), starcoder2["initializer_range"] = Json();
  m2m["activation_function"] = m2m["attention_dropout"] = Json();
  EXPECT_EQ(config_from_json(starcoder2, "config.json").init_std, 0.018042);
  EXPECT_EQ(seq2seq_config_from_json(m2m, "config.json").attention_dropout_p, 0.1);
  EXPECT_EQ(config_from_json(phi3, "config.json").norm_eps, 1e-5);
  EXPECT_EQ(seq2seq_config_from_json(m2m, "config.json").activation, Activation::relu);
  Json t5 = config_of("seq2seq/t5");
  for (const bool tied : {false, true}) {
    t5["tie_word_embeddings"] = tied, t5["scale_decoder_outputs"] = Json();
    EXPECT_FALSE(seq2seq_config_from_json(t5, "config.json").scale_output);
  }
  const Json youtu = changed("hugging_face/youtu", Json::object({{"rope_interleave", Json()}}));
  EXPECT_EQ(config_from_json(youtu, "config.json").rotary_layout, RotaryLayout::halves);
  const auto falcon = [](const Json& shares_keys) {
    const Json keys = Json::object({{"multi_query", shares_keys}, {"num_kv_heads", Json()}});
    return config_from_json(changed("hugging_face/falcon", keys), "config.json").num_kv_heads;
  };
  EXPECT_EQ(falcon(Json()), falcon(false));
  EXPECT_EQ(falcon(true), 1);
}

TEST(HuggingFaceTest, WhatTransformersWouldComputeOtherwiseIsRefusedByItsKey) {
  const auto error = [](const std::string& fixture, const Json& keys) -> std::string {
    try {
      const Json json = changed(fixture, keys);
      fixture.starts_with("encoders/") ? static_cast<void>(encoder_config_from_json(json, "config.json"))
                                       : static_cast<void>(config_from_json(json, "config.json"));
      return "was read";
    } catch (const FormatError& error) {
      return error.what();
    }
  };
  const auto expect = [&](const std::string& fixture, const Json& keys, const char* part) {
    EXPECT_NE(error(fixture, keys).find(part), std::string::npos) << error(fixture, keys);
  };
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "sliding_window"})
    expect("hugging_face/gemma2", Json::object({{key, 0}}), key);
  for (const char* key : {"final_logit_softcapping", "sliding_window"})
    expect("hugging_face/gemma3", Json::object({{key, 0}}), key);
  expect("hugging_face/phi3", Json::object({{"sliding_window", 0}}), "sliding_window");
  expect("encoders/deberta_v2_classifier", Json::object({{"position_buckets", 0}}), "position_buckets");
  const Json linear = Json::object({{"rope_type", "linear"}, {"factor", 8}});
  expect("hugging_face/gemma3", Json::object({{"rope_scaling", linear}}),
         "\"rope_scaling\" contradicts \"rope_parameters\"");
  Json yarn = Json::object({{"rope_type", "yarn"}, {"factor", 0.5}});
  expect("hugging_face/llama", Json::object({{"rope_parameters", yarn}}), "rope_parameters.rope_type");
  yarn = Json::object({{"type", "yarn"}, {"factor", 4}, {"beta_fast", 0.3}, {"beta_slow", 2}});
  expect("hugging_face/llama", Json::object({{"rope_parameters", Json()}, {"rope_scaling", yarn}}),
         "\"rope_scaling.type\" is \"yarn\", with a wrong number: rotary scaling: beta_fast");
  expect("hugging_face/gpt2", Json::object({{"n_head", 3}}),
         "(in this file, embed_dim is \"n_embd\", num_heads is \"n_head\")");
}

TEST(HuggingFaceTest, WeightsThatDoNotFitAreAllNamed) {
  const FolderCopy folder(kDecoders / "gpt2");
  const std::string config = folder / "config.json";
  Json json = io::load_json(config);
  json["n_layer"] = 3;
  io::save_json(config, json);
  try {
    load_language_model(folder.path());
    FAIL() << "three layers loaded from a file of two";
  } catch (const FormatError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("missing transformer.h.2.attn.c_attn.weight [20, 60]"), std::string::npos)
        << message;
    EXPECT_NE(message.find("missing transformer.h.2.ln_2.bias"), std::string::npos) << message;
  }
}

TEST(HuggingFaceTest, AMissingWeightIsNamedWithTheNearestInTheFile) {
  const FolderCopy folder(kDecoders / "llama");
  const std::string path = folder.weights();
  io::TensorMap tensors = io::load_safetensors(path);
  tensors["model.layers.0.mlp.down.weight"] = tensors.at("model.layers.0.mlp.down_proj.weight");
  tensors.erase("model.layers.0.mlp.down_proj.weight");
  io::save_safetensors(path, tensors);
  try {
    load_language_model(folder.path());
    FAIL() << "loaded";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("missing model.layers.0.mlp.down_proj.weight [24, 41]; the nearest is "
                        "model.layers.0.mlp.down.weight\n  unexpected model.layers.0.mlp.down.weight"),
              std::string::npos)
        << error.what();
  }
}

TEST(HuggingFaceTest, AnUnknownModelTypeIsToldWhichAreRead) {
  for (const char* type : {"mamba", "", "BERT"}) {
    try {
      config_from_json(Json::object({{"model_type", type}}), "config.json");
      FAIL() << "read";
    } catch (const FormatError& error) {
      const std::string what = error.what();
      for (const char* known : {"qwen3", "m2m_100", "albert", "xlm-roberta"})
        EXPECT_NE(what.find(known), std::string::npos) << what;
    }
  }
}

TEST(HuggingFaceTest, HostileConfigsAreRefusedBeforeMemoryIsTaken) {
  const auto refused = [](const char* key, const Json& value, const char* expected) {
    Json json = config_of("hugging_face/llama");
    json[key] = value;
    try {
      config_from_json(json, "config.json");
      FAIL() << key << " was accepted";
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  };
  refused("hidden_size", 0, "hidden_size");
  refused("hidden_size", "24", "hidden_size");
  refused("num_key_value_heads", 3, "num_kv_heads");
  refused("num_hidden_layers", 1 << 20, "num_hidden_layers");
  refused("rms_norm_eps", -1.0, "rms_norm_eps");
  refused("hidden_act", "quick", "hidden_act");
  refused("model_type", "mamba", "model_type");
  refused("model_type", "marian", "load_seq2seq");
  // The fixture is of transformers 5, which has the field under another name.
  refused("rope_parameters", Json::object({{"rope_type", "linear"}}), "rope_parameters.factor");
  refused("rope_parameters", Json::object({{"rope_type", "dynamic"}, {"factor", 2}}), "linear");
  refused("rope_parameters", Json::object({{"rope_type", "linear"}, {"factor", 0.5}}), "factor must be >= 1");
  refused("partial_rotary_factor", 0.5, "partial_rotary_factor");
  refused("rope_parameters", Json::object({{"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
  refused("rope_parameters", Json::object({{"rope_type", "llama3"}, {"factor", 2}}),
          "rope_parameters.original_max_position_embeddings");
  refused("intermediate_size", int64_t{1} << 40, "intermediate_size");

  const FolderCopy folder(kDecoders / "llama");
  const std::string config = folder / "config.json";
  Json json = io::load_json(config);
  json["hidden_size"] = 1 << 20;
  json["head_dim"] = int64_t{1} << 31;  // neither time nor memory goes into its rotations
  json["vocab_size"] = 1 << 30;
  io::save_json(config, json);
  EXPECT_THROW(load_language_model(folder.path()), FormatError);
}

TEST(HuggingFaceTest, PositionsBeyondTheFileAreRefusedBeforeMemoryIsTaken) {
  const FolderCopy folder(kDecoders / "gpt2");
  const std::string config = folder / "config.json";
  Json json = io::load_json(config);
  json["n_positions"] = 1 << 30;
  io::save_json(config, json);
  reset_peak_memory();
  const int64_t before = memory_stats().peak_bytes;
  EXPECT_THROW(load_language_model(folder.path()), FormatError);
  EXPECT_LT(memory_stats().peak_bytes, before + (1 << 20));
}

TEST(HuggingFaceTest, AMaskedLanguageModelsOutputLayerIsItsEmbeddings) {
  const TemporaryFolder folder;
  const fs::path source = kData / "encoders" / "bert_masked_lm";
  fs::copy(source / "config.json", folder / "config.json");
  io::TensorMap tensors = io::load_safetensors((source / "model.safetensors").string());
  Tensor& again = tensors["cls.predictions.decoder.weight"];
  again = tensors.at("bert.embeddings.word_embeddings.weight").clone();
  io::save_safetensors(folder / "model.safetensors", tensors);
  EXPECT_NO_THROW(load_encoder(folder.path()));
  again.data<float>()[3] += 1;
  io::save_safetensors(folder / "model.safetensors", tensors);
  EXPECT_MESSAGE(load_encoder(folder.path()), FormatError,
                 "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight");
}

// An adapter without tensors, of the model "base" beside it.
void write_adapter(const std::string& folder) {
  fs::create_directories(folder);
  io::save_safetensors(folder + "/adapter_model.safetensors", {});
  write_file_atomically(folder + "/adapter_config.json",
                        R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"],
                            "base_model_name_or_path": "base"})");
}

TEST(HuggingFaceTest, AnAdapterHasTensors) {
  const TemporaryFolder root;
  write_adapter(root / "tuned");
  LanguageModel model = load_language_model((kDecoders / "llama").string());
  EXPECT_MESSAGE(load_adapter(model, root / "tuned"), FormatError, "it has none");
}

TEST(HuggingFaceTest, AnAdapterFindsItsModelBesideItHoweverItsPathEnds) {
  const TemporaryFolder root;
  write_adapter(root / "tuned");
  fs::create_directories(root / "base");
  for (const char* path : {"tuned", "tuned/", "tuned/."}) {
    EXPECT_TRUE(fs::equivalent(base_of_adapter(root / path), root / "base")) << path;
  }
}

}  // namespace
}  // namespace multihead::models
