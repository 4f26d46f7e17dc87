// The C interface: what it computes is what the C++ functions compute, and every error arrives as a status.
#include "multihead/c.h"

#include <cmath>
#include <string>
#include <vector>

#include "multihead/core/files.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/generate/generate.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/testing/files.h"

namespace multihead {
namespace {

constexpr mh_attention_shape kShape = {
    .batch = 2, .heads = 4, .kv_heads = 2, .query_length = 3, .key_length = 5, .head_dim = 8, .value_dim = 6};

struct CAttention : testing::Test {
  Rng rng{7};
  Tensor query = randn({2, 4, 3, 8}, rng), key = randn({2, 2, 5, 8}, rng), value = randn({2, 2, 5, 6}, rng);
  std::vector<float> out = std::vector<float>(2 * 4 * 3 * 6), lse = std::vector<float>(2 * 4 * 3);

  mh_status run(const mh_attention_shape& shape, const mh_attention_options* options) {
    return mh_attention(&shape, query.data<float>(), key.data<float>(), value.data<float>(), options,
                        out.data());
  }
};

TEST_F(CAttention, EveryOptionIsThatOfTheLibrary) {
  const std::vector<int64_t> valid = {5, 2};
  std::vector<uint8_t> keep_flags(2 * 3 * 5, 2);  // anything but 0 keeps
  keep_flags[3] = keep_flags[17] = 0;
  const double scale = 0.3;
  mh_attention_options options = MH_ATTENTION_OPTIONS;
  options.causal = 1, options.scale = &scale, options.softcap = 2;
  options.key_lengths = valid.data(), options.keep = keep_flags.data(), options.lse = lse.data();
  ASSERT_EQ(run(kShape, &options), MH_OK) << mh_last_error();

  Tensor flags = Tensor::ones({2, 1, 3, 5}, Dtype::boolean), expected_lse;
  flags.data<bool>()[3] = flags.data<bool>()[17] = false;
  const Tensor expected =
      attention(query, key, value,
                {.mask = causal() & lengths(Tensor::of<int64_t>({2}, {5, 2})) & keep(flags),
                 .scale = scale,
                 .softcap = 2,
                 .lse = &expected_lse});
  EXPECT_EQ(out, expected.to_vector<float>());
  EXPECT_EQ(lse, expected_lse.to_vector<float>());
}

TEST_F(CAttention, NoOptionsAreTheDefaults) {
  ASSERT_EQ(run(kShape, nullptr), MH_OK) << mh_last_error();
  EXPECT_EQ(out, attention(query, key, value).to_vector<float>());
  EXPECT_STREQ(mh_last_error(), "");
}

TEST_F(CAttention, WrongCallsAreNamed) {
  const auto refused = [&](const char* part) {
    EXPECT_NE(std::string(mh_last_error()).find(part), std::string::npos) << mh_last_error();
  };
  EXPECT_EQ(mh_attention(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), MH_INVALID);
  refused("shape is NULL");
  EXPECT_EQ(mh_attention(&kShape, query.data<float>(), nullptr, value.data<float>(), nullptr, out.data()),
            MH_INVALID);
  refused("key is NULL");
  mh_attention_shape shape = kShape;
  shape.kv_heads = 3;
  EXPECT_EQ(run(shape, nullptr), MH_INVALID);
  shape = kShape, shape.batch = -1;
  EXPECT_EQ(run(shape, nullptr), MH_INVALID);
  mh_attention_options options = MH_ATTENTION_OPTIONS;
  options.size += 8;  // a header newer than the library
  EXPECT_EQ(run(kShape, &options), MH_INVALID);
  refused("their size is");
  options.size = 20;  // within a field
  EXPECT_EQ(run(kShape, &options), MH_INVALID);
  options = MH_ATTENTION_OPTIONS;
  options.softcap = NAN;
  EXPECT_EQ(run(kShape, &options), MH_INVALID);
}

TEST_F(CAttention, AnOlderHeaderLacksTheLastFields) {
  mh_attention_options options = MH_ATTENTION_OPTIONS;
  options.causal = 1;
  options.lse = reinterpret_cast<float*>(1);  // what stands beyond the caller's structure is not read
  options.size = offsetof(mh_attention_options, lse);
  ASSERT_EQ(run(kShape, &options), MH_OK) << mh_last_error();
  EXPECT_EQ(out, attention(query, key, value, {.mask = causal()}).to_vector<float>());
}

text::Tokenizer small_tokenizer() {
  const text::Tokenizer plain = text::Tokenizer::train_bpe("the cat sat on the mat", {.vocab_size = 262});
  Json config = Json::parse(plain.config_json());
  config["chat_template"] = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}";
  return text::Tokenizer::from_contents(plain.to_json(), config.dump());
}

struct CModels : testing::Test {
  TemporaryFolder folder;

  void save_tokenizer(const text::Tokenizer& tokenizer) {
    write_file_atomically(folder / "tokenizer.json", tokenizer.to_json());
    write_file_atomically(folder / "tokenizer_config.json", tokenizer.config_json());
  }
  models::LanguageModel save_language_model() {
    models::LanguageModelConfig c;
    c.vocab_size = 262, c.context = 32, c.num_layers = 1, c.num_heads = 2, c.embed_dim = 16, c.init_std = 0.5;
    Rng rng(3);
    models::LanguageModel model(c, rng);
    models::save_language_model(model, folder.path());
    save_tokenizer(small_tokenizer());
    return model;
  }
};

int collect(const char* piece, size_t bytes, void* user) {
  static_cast<std::string*>(user)->append(piece, bytes);
  return 0;
}
int end_at_once(const char*, size_t, void* user) { return ++*static_cast<int*>(user); }

TEST_F(CModels, GeneratesTheTextOfTheLibrary) {
  const models::LanguageModel model = save_language_model();
  const text::Tokenizer tokenizer = small_tokenizer();
  const auto ids =
      generate(model, {tokenizer.encode("the cat")}, {.max_new_tokens = 12, .sampling = {.temperature = 0}});
  const std::string expected = valid_utf8(tokenizer.decode(ids[0], {.continued = true}));

  mh_model* loaded = nullptr;
  ASSERT_EQ(mh_model_load(folder.path().c_str(), nullptr, &loaded), MH_OK) << mh_last_error();
  std::string heard;
  char* text = nullptr;
  mh_generate_options options = MH_GENERATE_OPTIONS;
  options.max_new_tokens = 12, options.temperature = 0, options.on_text = collect, options.user = &heard;
  ASSERT_EQ(mh_generate(loaded, "the cat", &options, &text), MH_OK) << mh_last_error();
  EXPECT_EQ(text, expected);
  EXPECT_EQ(heard, expected);
  mh_free(text);

  int pieces = 0;
  options.on_text = end_at_once, options.user = &pieces;
  ASSERT_EQ(mh_generate(loaded, "the cat", &options, nullptr), MH_OK);
  EXPECT_EQ(pieces, 1);

  const mh_message messages[] = {{"system", "on"}, {"user", "the mat"}};
  const auto answer = generate(model, {tokenizer.encode("system: on user: the mat ")},
                               {.max_new_tokens = 4, .sampling = {.temperature = 0}});
  options = MH_GENERATE_OPTIONS;
  options.max_new_tokens = 4, options.temperature = 0;
  ASSERT_EQ(mh_chat(loaded, messages, 2, &options, &text), MH_OK) << mh_last_error();
  EXPECT_EQ(text, valid_utf8(tokenizer.decode(answer[0])));
  mh_free(text);
  mh_model_free(loaded);
}

TEST_F(CModels, ALoadedModelNeedsItsFolderNoLonger) {
  save_language_model();
  mh_model* model = nullptr;
  ASSERT_EQ(mh_model_load(folder.path().c_str(), nullptr, &model), MH_OK) << mh_last_error();
  std::filesystem::remove_all(folder.path());
  EXPECT_EQ(mh_generate(model, "the cat", nullptr, nullptr), MH_OK) << mh_last_error();
  mh_model_free(model);
}

TEST_F(CModels, AnAnswerEndsWithTheContext) {
  const models::LanguageModel own = save_language_model();  // of 32 tokens
  const std::vector<int32_t> prompt = small_tokenizer().encode("user: the mat on the mat ");
  mh_model* model = nullptr;
  ASSERT_EQ(mh_model_load(folder.path().c_str(), nullptr, &model), MH_OK) << mh_last_error();
  const mh_message messages[] = {{"user", "the mat on the mat"}};
  int pieces = 0;
  mh_generate_options options = MH_GENERATE_OPTIONS;
  options.max_new_tokens = 1000, options.temperature = 0, options.user = &pieces;
  options.on_text = [](const char*, size_t, void* user) {
    ++*static_cast<int*>(user);
    return mh_generate(nullptr, "", nullptr, nullptr) == MH_OK ? 1 : 0;
  };
  char* text = nullptr;
  ASSERT_EQ(mh_chat(model, messages, 1, &options, &text), MH_OK) << mh_last_error();
  EXPECT_STREQ(mh_last_error(), "") << "an error within on_text is not the call's";
  EXPECT_GT(pieces, 0);
  const auto answer =
      generate(own, {prompt},
               {.max_new_tokens = own.longest() - std::ssize(prompt) + 1, .sampling = {.temperature = 0}});
  EXPECT_EQ(text, valid_utf8(small_tokenizer().decode(answer[0])));
  mh_free(text);
  mh_model_free(model);
}

TEST_F(CModels, WrongCallsAreNamed) {
  mh_model* model = reinterpret_cast<mh_model*>(&folder);
  EXPECT_EQ(mh_model_load((folder / "absent").c_str(), nullptr, &model), MH_INPUT);
  EXPECT_EQ(model, nullptr);
  save_language_model();
  EXPECT_EQ(mh_model_load(folder.path().c_str(), "int3", &model), MH_INVALID);
  EXPECT_EQ(mh_model_load(folder.path().c_str(), nullptr, nullptr), MH_INVALID);
  ASSERT_EQ(mh_model_load(folder.path().c_str(), "q4", &model), MH_OK) << mh_last_error();
  char* text = reinterpret_cast<char*>(&model);
  EXPECT_EQ(mh_generate(model, nullptr, nullptr, &text), MH_INVALID);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(mh_generate(nullptr, "a", nullptr, nullptr), MH_INVALID);
  EXPECT_EQ(mh_generate(model, "", nullptr, nullptr), MH_INVALID);  // an empty prompt
  mh_generate_options options = MH_GENERATE_OPTIONS;
  options.top_p = 2;
  EXPECT_EQ(mh_generate(model, "a", &options, nullptr), MH_INVALID);
  options.top_p = -1, options.temperature = NAN;
  EXPECT_EQ(mh_generate(model, "a", &options, nullptr), MH_INVALID);
  options.temperature = -1, options.stop_count = 1;
  EXPECT_EQ(mh_generate(model, "a", &options, nullptr), MH_INVALID);
  const char* stops[] = {"unseen", nullptr};
  options.stop = stops, options.stop_count = 2;
  EXPECT_EQ(mh_generate(model, "a", &options, nullptr), MH_INVALID) << "every stop string counts";
  stops[1] = "";
  EXPECT_EQ(mh_generate(model, "a", &options, nullptr), MH_INVALID);
  EXPECT_STREQ(mh_last_error(), "options.stop[1] is empty");
  EXPECT_EQ(mh_generate(model, "a\xff", nullptr, nullptr), MH_INVALID);
  EXPECT_STREQ(mh_last_error(), "prompt is not valid UTF-8 at byte 1");
  const mh_message messages[] = {{"user", nullptr}};
  EXPECT_EQ(mh_chat(model, messages, 1, nullptr, nullptr), MH_INVALID);
  mh_model_free(model);
  mh_model_free(nullptr);
}

TEST_F(CModels, EncodesAsTheLibrary) {
  models::EncoderConfig c;
  c.vocab_size = 262, c.context = 24, c.num_layers = 1, c.num_heads = 2, c.embed_dim = 16;
  Rng rng(3);
  models::Encoder encoder(models::resolved(c), rng);
  models::save_encoder(encoder, folder.path());
  save_tokenizer(text::Tokenizer::train_wordpiece("the cat sat on the mat", {.vocab_size = 60}));
  const auto reference = embed::SentenceEncoder::load(folder.path());
  mh_encoder* loaded = nullptr;
  ASSERT_EQ(mh_encoder_load(folder.path().c_str(), &loaded), MH_OK) << mh_last_error();
  ASSERT_EQ(mh_encoder_dim(loaded), 16);
  const char* texts[] = {"the cat", "sat on the mat"};
  std::vector<float> vectors(2 * 16);
  ASSERT_EQ(mh_encoder_encode(loaded, texts, 2, vectors.data()), MH_OK) << mh_last_error();
  EXPECT_EQ(vectors,
            reference.encode(std::vector<std::string>{"the cat", "sat on the mat"}).to_vector<float>());
  EXPECT_EQ(mh_encoder_encode(loaded, texts, 0, nullptr), MH_OK);
  texts[1] = "sat\xff";
  EXPECT_EQ(mh_encoder_encode(loaded, texts, 2, vectors.data()), MH_INVALID);
  EXPECT_STREQ(mh_last_error(), "texts[1] is not valid UTF-8 at byte 3");
  texts[1] = nullptr;
  EXPECT_EQ(mh_encoder_encode(loaded, texts, 2, vectors.data()), MH_INVALID);
  EXPECT_EQ(mh_encoder_dim(nullptr), 0);
  EXPECT_EQ(mh_encoder_encode(nullptr, texts, 0, nullptr), MH_INVALID);
  mh_encoder_free(loaded);

  write_file_atomically(folder / "config_sentence_transformers.json", R"({"truncate_dim": 5})");
  ASSERT_EQ(mh_encoder_load(folder.path().c_str(), &loaded), MH_OK) << mh_last_error();
  ASSERT_EQ(mh_encoder_dim(loaded), 5);
  vectors.assign(11, -9);
  ASSERT_EQ(mh_encoder_encode(loaded, texts, 1, vectors.data()), MH_OK) << mh_last_error();
  EXPECT_NE(vectors[4], -9);
  EXPECT_EQ(vectors[5], -9);
  mh_encoder_free(loaded);
}

}  // namespace
}  // namespace multihead
