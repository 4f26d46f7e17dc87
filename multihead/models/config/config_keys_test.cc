// Every key of config.json is understood, known to change nothing, or refused by name. That the
// understood ones mean what transformers means is python/tests/test_model_configs.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/json.h"
#include "multihead/models/config/config_fields.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/generation_config.h"
#include "multihead/models/testing-inl.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "accepted";
}

std::string config_error(const char* family, const char* key, const Json& value) {
  const bool marian = std::string(family) == "marian";
  Json json = config_of(marian ? family : concat("hugging_face/", family));
  json[key] = value;
  return error_of([&] {
    marian ? static_cast<void>(seq2seq_config_from_json(json, "config.json"))
           : static_cast<void>(config_from_json(json, "config.json"));
  });
}

TEST(ConfigKeysTest, UnknownKeysAreRefusedUnlessTheySayNothing) {
  for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "marian"}) {
    for (const Json& nothing : {Json(), Json(""), Json::array(), Json::object()}) {
      EXPECT_EQ(config_error(family, "attends_to_the_past", nothing), "accepted") << family << nothing;
    }
    for (const Json& something :
         {Json(30), Json(true), Json(false), Json(0), Json(0.0), Json("x"), Json::object({{"a", 1}})}) {
      EXPECT_THAT(config_error(family, "attends_to_the_past", something),
                  HasSubstr("config.json: \"attends_to_the_past\" is unknown"))
          << family << something;
    }
    for (const Json& off : {Json(), Json(0), Json(0.0)}) {
      EXPECT_EQ(config_error(family, "attn_logit_softcapping", off), "accepted") << family << off;
    }
    EXPECT_THAT(config_error(family, "attn_logit_softcapping", 30), HasSubstr("attn_logit_softcapping"));
    EXPECT_THAT(config_error(family, "quantization_config", Json::object({{"quant_method", "gptq"}})),
                HasSubstr("\"quantization_config\""))
        << family;
    EXPECT_EQ(config_error(family, "quantization_config", Json()), "accepted");
    EXPECT_THAT(config_error(family, "pruned_heads", Json::object({{"0", Json::array()}})),
                HasSubstr("pruned"));
    // Keys that published folders carry.
    for (const auto& [key, value] :
         std::vector<std::pair<const char*, Json>>{{"_name_or_path", "x/y"},
                                                   {"auto_map", Json::object({{"AutoModel", "x.Y"}})},
                                                   {"torch_dtype", "bfloat16"},
                                                   {"transformers_version", "4.40.1"},
                                                   {"use_cache", true},
                                                   {"id2label", Json::object({{"0", "LABEL_0"}})},
                                                   {"task_specific_params", Json::object({{"a", 1}})},
                                                   {"bad_words_ids", Json::array()},
                                                   {"num_beams", 6},
                                                   {"is_matryoshka", true},
                                                   {"matryoshka_dimensions", std::vector<Json>{256}},
                                                   {"unsloth_version", "2024.9"},
                                                   {"_attn_implementation_autoset", true},
                                                   {"temperature", 0.6}}) {
      EXPECT_EQ(config_error(family, key, value), "accepted") << family << " " << key;
    }
  }
}

// transformers lets all tokens see each other where a decoder's file says false, or null; we in Llama and its kin.
TEST(ConfigKeysTest, DecodersAreCausalAndEncodersAreNot) {
  int families = 0;
  const auto check = [&](const fs::path& folder, bool is_causal, auto read) {
    Json json = io::load_json((folder / "config.json").string());
    const auto error_with = [&](const Json& value) {
      json["is_causal"] = value;
      return error_of([&] { read(json, "config.json"); });
    };
    EXPECT_EQ(error_with(Json(is_causal)), "accepted") << folder;
    ++families;
    if constexpr (requires { read(json, "config.json").causal; }) {
      json["is_causal"] = false;
      if (error_with(Json(false)) == "accepted") {
        EXPECT_FALSE(read(json, "config.json").causal) << folder;
        return;
      }
    }
    EXPECT_THAT(error_with(Json(!is_causal)), HasSubstr("\"is_causal\"")) << folder;
    EXPECT_THAT(error_with(Json()), is_causal ? HasSubstr("is_causal") : HasSubstr("accepted")) << folder;
  };
  for (const auto& entry : fs::directory_iterator(kData / "hugging_face"))
    check(entry.path(), entry.path().filename() != "eurobert", config_from_json);
  const auto check_translator = [&](const fs::path& folder) {
    Json json = io::load_json((folder / "config.json").string());
    for (const Json& value : {Json(true), Json(false), Json()}) {  // each would change one of the two stacks
      json["is_causal"] = value;
      EXPECT_THAT(error_of([&] { seq2seq_config_from_json(json, "config.json"); }),
                  HasSubstr("\"is_causal\""));
    }
    ++families;
  };
  for (const auto& entry : fs::directory_iterator(kData / "seq2seq")) check_translator(entry.path());
  check_translator(kData / "marian");
  for (const auto& entry : fs::directory_iterator(kData / "encoders"))
    check(entry.path(), false, encoder_config_from_json);
  check(kData / "images" / "vit", false, image_encoder_config_from_json);
  EXPECT_GE(families, 50);
}

TEST(ConfigKeysTest, AProblemTypeIsKeptOrRefused) {
  for (const char* name : {"albert_classifier", "bert_classifier", "distilbert_classifier",
                           "electra_classifier", "modernbert_classifier", "mpnet_classifier"}) {
    Json json = config_of(concat("encoders/", name));
    EXPECT_EQ(encoder_config_from_json(json, name).problem_type, ProblemType::unstated);
    for (const auto& [word, type] : {std::pair("single_label_classification", ProblemType::single_label),
                                     {"multi_label_classification", ProblemType::multi_label},
                                     {"regression", ProblemType::regression}}) {
      json["problem_type"] = word;
      const EncoderConfig config = encoder_config_from_json(json, name);
      EXPECT_EQ(config.problem_type, type);
      EXPECT_EQ(config_to_json(config).at("problem_type"), Json(word)) << name;
      EXPECT_EQ(encoder_config_from_json(config_to_json(config), name), config) << name;
    }
    json["problem_type"] = "ranking";
    EXPECT_THAT(error_of([&] { encoder_config_from_json(json, name); }), HasSubstr("problem_type"));
  }
}

// Each of these files changes a weight into one that is no number.
TEST(FiniteWeightsTest, NoModelIsLoadedFromNanOrInf) {
  const auto check = [](const fs::path& from, auto load) {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
      const FolderCopy folder(from);
      io::TensorMap all = io::load_safetensors(folder.weights());
      const auto one = std::find_if(all.begin(), all.end(), [](const auto& entry) {
        return entry.first.ends_with(".weight") && entry.first.find("layer") != std::string::npos;
      });
      ASSERT_NE(one, all.end());
      Tensor changed = one->second.clone();
      changed.data<float>()[changed.numel() - 1] = value;
      one->second = changed;
      io::save_safetensors(folder.weights(), all);
      EXPECT_THAT(error_of([&] { load(folder.path()); }),
                  HasSubstr(concat("model.safetensors: tensor \"", one->first, "\" holds NaN or Inf")));
    }
  };
  for (const char* name : {"llama", "qwen3_base"}) {
    check(kData / "hugging_face" / name, [](const std::string& f) { load_language_model(f); });
    check(kData / "hugging_face" / name, [](const std::string& f) { load_decoder(f, {}, true); });
    for (const auto dtype : {nn::WeightDtype::bf16, nn::WeightDtype::int8, nn::WeightDtype::q8})
      check(kData / "hugging_face" / name, [&](const std::string& f) { load_language_model(f, dtype); });
  }
  check(kData / "marian", [](const std::string& f) { load_seq2seq(f); });
  check(kData / "encoders" / "bert_classifier", [](const std::string& f) { load_encoder(f); });
  check(kData / "images" / "vit_classifier", [](const std::string& f) { load_image_encoder(f); });
}

TEST(ConfigKeysTest, KeysWithOneMeaningMustHaveIt) {
  EXPECT_THAT(config_error("gpt2", "scale_attn_weights", false), HasSubstr("must be true"));
  EXPECT_THAT(config_error("gpt2", "scale_attn_by_inverse_layer_idx", true), HasSubstr("must be false"));
  EXPECT_THAT(config_error("gpt2", "hidden_size", 21), HasSubstr("another name of \"n_embd\""));
  EXPECT_THAT(config_error("llama", "rope_interleaved", true), HasSubstr("rope_interleaved"));
  EXPECT_THAT(config_error("llama", "original_max_position_embeddings", 5), HasSubstr("original_max"));
  EXPECT_THAT(config_error("llama", "rope_scaling", Json::object({{"type", "linear"}, {"factor", 2}})),
              HasSubstr("contradicts"));
  EXPECT_THAT(config_error("llama", "rope_parameters",
                           Json::object({{"rope_type", "default"}, {"mrope_section", 2}})),
              HasSubstr("rope_parameters.mrope_section"));
  EXPECT_THAT(config_error("qwen2", "layer_types", Json(std::vector<Json>{"sliding_attention"})),
              HasSubstr("layer_types"));
  EXPECT_THAT(config_error("llama", "use_sliding_window", true), HasSubstr("use_sliding_window"));
  EXPECT_THAT(config_error("mistral", "layer_types", Json(std::vector<Json>{"full_attention"})),
              HasSubstr("layer_types"));
  EXPECT_THAT(config_error("marian", "num_hidden_layers", 5),
              HasSubstr("another name of \"encoder_layers\""));
  EXPECT_THAT(config_error("marian", "forced_eos_token_id", 5), HasSubstr("must equal eos_token_id"));
  EXPECT_EQ(config_error("marian", "forced_eos_token_id", Json()), "accepted");
  EXPECT_THAT(config_error("marian", "model_type", "fsmt"), HasSubstr("is \"fsmt\", which is not supported"));
  EXPECT_THAT(config_error("marian", "model_type", "qwen3"), HasSubstr("is \"qwen3\", a language model"));
}

template <class T>
T another_number(T value) {
  if constexpr (std::is_same_v<T, bool>) return !value;
  if constexpr (std::is_enum_v<T>) return value == T() ? T(1) : T();
  if constexpr (std::is_same_v<T, double>) return value > 0 ? value / 2 : 0.25;
  return static_cast<T>(static_cast<int64_t>(value) > 1 ? static_cast<int64_t>(value) / 2 : 8);
}

// Another value that makes sense on its own.
template <class T>
T another(T value) {
  if constexpr (std::is_same_v<T, PrunedHeads>) {
    return {{0, 1}};
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value + "Own";
  } else {
    return another_number(value);
  }
}

// Not inline: GCC 12 takes members of the other types for uninitialised ones.
template <class Config>
[[gnu::noinline]] void change(Config& config, const ConfigField<Config>& field) {
  std::visit([&](auto member) { config.*member = another(config.*member); }, field.member);
}

// The others exclude some of these.
const std::set<std::string> kLatentFields = {"latent_dim", "query_latent_dim", "value_head_dim"};

// Makes the positions those that a field is of.
void let_heed(LanguageModelConfig& c, const std::string& field) {
  if (field == "position_offset") c.positions = Positions::learned;
  if (field.find("rotary") != field.npos || field == "unrotated_every") c.positions = Positions::rotary;
}
void let_heed(const Seq2SeqConfig&, const std::string&) {}

template <class Config, class Read>
void expect_fields_survive(const Config& config, Read read, bool latent = false) {
  for (const ConfigField<Config>& field : config_fields<Config>()) {
    if (kLatentFields.contains(field.name) != latent) continue;
    Config changed = resolved(config);
    let_heed(changed, field.name);
    const Config before = changed;
    change(changed, field);
    if (changed.positions == Positions::none) changed.positions = Positions::learned;  // translators take it
    changed = resolved(changed);
    EXPECT_FALSE(changed == before) << field.name;
    EXPECT_TRUE(read(config_to_json(changed), "config.json") == changed) << field.name;
    EXPECT_TRUE(read(whole_config_to_json(changed), "rank 0") == changed) << field.name;
  }
}

// Where a key and transformers' code disagree, the code counts.
TEST(ConfigKeysTest, KeysMeanWhatTransformersComputes) {
  EXPECT_THAT(config_error("gemma3", "attn_logit_softcapping", 30.0), HasSubstr("attn_logit_softcapping"));
  EXPECT_EQ(config_error("gemma3", "attn_logit_softcapping", Json()), "accepted");
  Json mpnet = config_of("encoders/mpnet");
  for (const int pad : {0, 3}) {
    mpnet["pad_token_id"] = pad;
    EXPECT_EQ(encoder_config_from_json(mpnet, "mpnet").position_offset, 2);
  }
  mpnet["sentence_transformers"] = Json::object({{"activation_fn", "torch.nn.modules.linear.Identity"}});
  EXPECT_NO_THROW(encoder_config_from_json(mpnet, "mpnet"));
  Json t5 = config_of("seq2seq/t5");
  t5["dense_act_fn"] = "silu";
  EXPECT_EQ(seq2seq_config_from_json(t5, "t5").activation, Activation::silu);
}

TEST(ConfigKeysTest, EveryFieldIsWrittenAndRead) {
  LanguageModelConfig c;
  c.vocab_size = 20, c.num_kv_heads = 2;
  c.positions = Positions::alibi;  // in our own layout, which has room for all fields
  expect_fields_survive(c, config_from_json);
  Json old = config_to_json(resolved(c));  // of versions that saved what its positions do not heed
  old["rotary_base"] = 5.0, old["position_offset"] = 2;
  EXPECT_TRUE(config_from_json(old, "config.json") == resolved(c));
  LanguageModelConfig latent;
  latent.vocab_size = 20, latent.positions = Positions::rotary, latent.rotary_fraction = 0.5;
  latent.latent_dim = 9, latent.query_latent_dim = 7, latent.value_head_dim = 6;
  expect_fields_survive(latent, config_from_json, true);
  Seq2SeqConfig pair;
  pair.source_vocab_size = 20, pair.share_embeddings = false;
  expect_fields_survive(pair, seq2seq_config_from_json);
}

// Tensors that files hold besides the weights are accepted where they say what the config says.
TEST(ConfigKeysTest, BuffersAndCopiesAreCheckedNotRefused) {
  const FolderCopy llama(kData / "hugging_face" / "llama_tied");
  const io::TensorMap weights = io::load_safetensors(llama.weights());
  const LanguageModelConfig c = load_language_model(llama.path()).config();
  const std::vector<double> w = rotary_frequencies(c.head_dim, c.rotary_base);
  const Tensor frequencies = Tensor::of<double>({static_cast<int64_t>(w.size())}, w).to(Dtype::f32);
  const auto with = [&](const std::string& name, const Tensor& tensor) {
    io::TensorMap all = weights;
    all[name] = tensor;
    io::save_safetensors(llama.weights(), all);
    return error_of([&] { load_language_model(llama.path()); });
  };
  const std::string buffer = "model.layers.0.self_attn.rotary_emb.inv_freq";
  EXPECT_EQ(with(buffer, frequencies), "accepted");
  EXPECT_EQ(with(buffer, frequencies.to(Dtype::bf16)), "accepted");
  Tensor other = frequencies.clone();
  other.data<float>()[1] *= 1.01f;
  EXPECT_THAT(with(buffer, other), HasSubstr("inv_freq does not match the config"));
  const Tensor embedding = weights.at("model.embed_tokens.weight");
  EXPECT_EQ(with("lm_head.weight", embedding), "accepted");
  Tensor untied = embedding.clone();
  untied.data<float>()[0] += 1;
  EXPECT_THAT(with("lm_head.weight", untied),
              HasSubstr("lm_head.weight differs from model.embed_tokens.weight"));
}

// As transformers 5 saves share_encoder_decoder_embeddings without tie_word_embeddings: four tables, one
// unread.
TEST(ConfigKeysTest, EmbeddingsThatAreUntiedInTheFileAreUntied) {
  const FolderCopy folder(kData / "marian");
  io::TensorMap all = io::load_safetensors(folder.weights());
  Json json = io::load_json(folder / "config.json");
  json["tie_word_embeddings"] = false;
  io::save_json(folder / "config.json", json);
  const Tensor shared = all.at("model.shared.weight");
  const auto scaled = [&](float by) {
    Tensor x = shared.clone();
    for (float& value : x.span<float>()) value *= by;
    return x;
  };
  all["lm_head.weight"] = scaled(4);
  io::save_safetensors(folder.weights(), all);
  EXPECT_TRUE(load_seq2seq(folder.path()).config().share_embeddings);  // as transformers 4 saves it
  all["model.encoder.embed_tokens.weight"] = scaled(2), all["model.decoder.embed_tokens.weight"] = scaled(3);
  io::save_safetensors(folder.weights(), all);
  const Seq2Seq model = load_seq2seq(folder.path());
  EXPECT_EQ(model.source_embedding.weight.to_vector<float>(), scaled(2).to_vector<float>());
  EXPECT_EQ(model.target_embedding.weight.to_vector<float>(), scaled(3).to_vector<float>());
  EXPECT_EQ(model.output_weight.to_vector<float>(), scaled(4).to_vector<float>());

  json["tie_word_embeddings"] = true;
  io::save_json(folder / "config.json", json);
  EXPECT_THAT(error_of([&] { load_seq2seq(folder.path()); }), HasSubstr("differs from model.shared.weight"));
}

TEST(ConfigKeysTest, OtherFormatsOfWeightsSayHowToConvertThem) {
  const FolderCopy folder(kData / "hugging_face" / "gpt2");
  fs::rename(folder.weights(), folder / "pytorch_model.bin");
  const std::string error = error_of([&] { load_language_model(folder.path()); });
  EXPECT_THAT(error, HasSubstr("pytorch_model.bin"));
  EXPECT_THAT(error, HasSubstr("AutoModelForCausalLM.from_pretrained('DIR').save_pretrained('DIR')"));
}

TEST(GenerationConfigTest, KeysAreReadOrRefused) {
  const auto read = [](const Json& json) {
    return generation_config_from_json(json, "generation_config.json");
  };
  // As Llama 3, Qwen 2.5 and opus-mt publish it.
  const GenerationConfig c =
      read(Json::object({{"_from_model_config", true},
                         {"bos_token_id", 7},
                         {"do_sample", true},
                         {"temperature", 0.6},
                         {"top_p", 0.9},
                         {"top_k", 20},
                         {"repetition_penalty", 1.05},
                         {"transformers_version", "4.40.0"},
                         {"eos_token_id", Json(std::vector<Json>{3, 5})},
                         {"max_length", 512},
                         {"num_beams", 6},
                         {"bad_words_ids", Json(std::vector<Json>{Json(std::vector<Json>{9})})},
                         {"suppress_tokens", Json(std::vector<Json>{1})},
                         {"renormalize_logits", true},
                         {"forced_bos_token_id", 4},
                         {"forced_eos_token_id", 3},
                         {"decoder_start_token_id", 9}}));
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{3, 5}));
  EXPECT_EQ(c.bad_words_ids, (std::vector<std::vector<int32_t>>{{9}}));
  EXPECT_EQ(c.suppress_tokens, (std::vector<int32_t>{1}));
  EXPECT_EQ(c.temperature, 0.6);
  EXPECT_EQ(c.num_beams, 6);
  EXPECT_TRUE(c.renormalize_logits);
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"begin_suppress_tokens", Json(std::vector<Json>{4})},
                                                 {"typical_p", 0.9},
                                                 {"encoder_no_repeat_ngram_size", 3},
                                                 {"diversity_penalty", 0.5},
                                                 {"guidance_scale", 2},
                                                 {"sequence_bias", Json(std::vector<Json>{4})},
                                                 {"stop_strings", 4},
                                                 {"made_up", 4},
                                                 {"bad_words_ids", Json(std::vector<Json>{4})},
                                                 {"eos_token_id", -2}}) {
    const Json json = Json::object({{key, value}});
    EXPECT_THAT(error_of([&] { read(json); }), HasSubstr(key));
  }
}

// Of config.json, where generation_config.json is absent.
TEST(GenerationConfigTest, TheFirstTokenMayHaveBartsOlderName) {
  const FolderCopy folder(kData / "hugging_face" / "gpt2");
  fs::remove(folder / "generation_config.json");
  const auto forced = [&](const Json& json) {
    io::save_json(folder / "config.json", json);
    return load_generation_config(folder.path()).forced_bos_token_id;
  };
  Json json = Json::object({{"bos_token_id", 5}, {"force_bos_token_to_be_generated", true}});
  EXPECT_EQ(forced(json), 5);
  json["force_bos_token_to_be_generated"] = false;
  EXPECT_EQ(forced(json), std::nullopt);
  json["forced_bos_token_id"] = 4;
  EXPECT_EQ(forced(json), 4);
}

}  // namespace
}  // namespace multihead::models
