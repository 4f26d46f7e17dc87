#include "multihead/embed/sentence_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/nn/points.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/matchers.h"
#include "multihead/testing/sentence_folder.h"

namespace multihead::embed {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using testing::kTexts;
using testing::make_encoder;
using testing::make_tokenizer;
using testing::module;
using Folder = testing::SentenceFolder;

TEST(SentenceEncoderTest, PoolsAsTheFolderSays) {
  const Folder folder;
  const auto tokens = make_tokenizer().encode(kTexts[1]);
  const models::TokenRows rows = models::TokenRows::of(std::vector<std::vector<int32_t>>{tokens});
  const std::vector<float> x = make_encoder().features(rows).to_vector<float>();
  const int64_t dim = 24, count = std::ssize(tokens);
  const auto at = [&](int64_t t, int64_t i) { return x[static_cast<size_t>(t * dim + i)]; };
  const char* const modes[] = {"cls_token", "mean_tokens",        "max_tokens", "mean_sqrt_len_tokens",
                               "lasttoken", "weightedmean_tokens"};
  for (int mode = 0; mode < 6; ++mode) {
    folder.write("modules.json",
                 "[" + module("Transformer", "") + "," + module("Pooling", "1_Pooling") + "]");
    folder.write("1_Pooling/config.json", concat(R"({"pooling_mode_)", modes[mode], R"(": true})"));
    const std::vector<float> got = SentenceEncoder::load(folder.path).encode(kTexts).to_vector<float>();
    for (int64_t i = 0; i < dim; ++i) {
      double sum = 0, most = -1e30, weighted = 0;
      for (int64_t t = 0; t < count; ++t) {
        sum += at(t, i), most = std::max<double>(most, at(t, i));
        weighted += static_cast<double>(t + 1) * at(t, i);
      }
      const auto n = static_cast<double>(count);
      const double want[] = {at(0, i),           sum / n,          most,
                             sum / std::sqrt(n), at(count - 1, i), weighted / (n * (n + 1) / 2)};
      EXPECT_NEAR(got[static_cast<size_t>(dim + i)], want[mode], 1e-5) << modes[mode];
    }
  }
}

TEST(SentenceEncoderTest, StepsPromptsAndCutsAreApplied) {
  const Folder folder;
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("Pooling", "1") + "," +
                                   module("Dense", "2") + "," + module("Normalize", "3") + "]");
  folder.write("1/config.json", R"({"pooling_mode": "mean"})");
  folder.write("2/config.json", R"({"activation_function": "torch.nn.modules.activation.Tanh"})");
  Rng rng(2);
  io::save_safetensors(folder.path + "/2/model.safetensors", {{"linear.weight", randn({6, 24}, rng)}});
  folder.write("config_sentence_transformers.json",
               R"({"prompts": {"query": "the ", "none": ""}, "default_prompt_name": "query"})");
  const SentenceEncoder encoder = SentenceEncoder::load(folder.path);
  EXPECT_EQ(encoder.dim(), 6);
  const std::vector<std::string> cat = {"cat"}, the_cat = {"the cat"};
  const auto plain = encoder.encode(the_cat, {.prompt = ""}).to_vector<float>();
  EXPECT_EQ(encoder.encode(cat).to_vector<float>(), plain);  // the default
  EXPECT_NE(encoder.encode(cat, {.prompt = ""}).to_vector<float>(), plain);
  EXPECT_EQ(encoder.encode(cat, {.prompt_name = "query"}).to_vector<float>(), plain);
  EXPECT_EQ(encoder.encode(cat, {.prompt = "the "}).to_vector<float>(), plain);
  double length = 0;
  for (const float v : plain) length += v * v;
  EXPECT_NEAR(length, 1, 1e-6);
  EXPECT_EQ(encoder.encode(cat, {.truncate_dim = 2}).to_vector<float>(),
            std::vector<float>(plain.begin(), plain.begin() + 2));
  const auto cut = encoder.encode(cat, {.normalize = true, .truncate_dim = 2}).to_vector<float>();
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_NEAR(cut[0] * cut[0] + cut[1] * cut[1], 1, 1e-6);
  EXPECT_NEAR(cut[0] / cut[1], plain[0] / plain[1], 1e-4);
  EXPECT_EQ(encoder.encode(cat, {.truncate_dim = encoder.dim()}).to_vector<float>(), plain);
  for (const int64_t wrong : {int64_t{-1}, encoder.dim() + 1}) {
    EXPECT_THAT([&] { encoder.encode(cat, {.truncate_dim = wrong}); },
                ThrowsMessage<ValueError>(
                    HasSubstr(concat("in [1, ", encoder.dim(), "], the width of the model, got ", wrong))));
  }
  EXPECT_THROW(encoder.encode(cat, {.prompt_name = "other"}), ValueError);
  EXPECT_THROW(encoder.encode(cat, {.batch_tokens = 0}), ValueError);
}

// The prompt's tokens are read, but not pooled; in a weighted mean the others keep their places.
TEST(SentenceEncoderTest, PromptsMayBeLeftOutOfThePooling) {
  const Folder folder;
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("Pooling", "1") + "]");
  folder.write("1/config.json", R"({"pooling_mode": ["cls", "weightedmean"], "include_prompt": false})");
  const SentenceEncoder encoder = SentenceEncoder::load(folder.path);
  const std::string prompt = "the cat sat ", text = "on the mat";
  const auto tokens = make_tokenizer().encode(prompt + text);
  const auto skipped = std::ssize(make_tokenizer().encode(prompt)), count = std::ssize(tokens);
  const auto x = make_encoder().features(models::TokenRows::of(std::span(&tokens, 1))).to_vector<float>();
  const auto got = encoder.encode(std::vector<std::string>{text}, {.prompt = prompt}).to_vector<float>();
  ASSERT_EQ(got.size(), 48u);
  for (int64_t i = 0; i < 24; ++i) {
    double sum = 0, shares = 0;
    for (int64_t t = skipped; t < count; ++t) {
      sum += static_cast<double>(t + 1) * x[static_cast<size_t>(t * 24 + i)];
      shares += static_cast<double>(t + 1);
    }
    EXPECT_EQ(got[static_cast<size_t>(i)], x[static_cast<size_t>(skipped * 24 + i)]);
    EXPECT_NEAR(got[static_cast<size_t>(24 + i)], sum / shares, 1e-5);
  }
  EXPECT_THROW(encoder.encode(std::vector<std::string>{""}, {.prompt = prompt}), ValueError);
}

TEST(SentenceEncoderTest, ModulesFollowEachOtherInAnyOrderAndAreSaved) {
  const Folder folder;
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("Pooling", "1") + "," +
                                   module("Normalize", "2") + "," + module("Dense", "3") + "," +
                                   module("LayerNorm", "4") + "," + module("Dense", "5") + "]");
  folder.write("1/config.json", R"({"pooling_mode": "mean", "word_embedding_dimension": 24})");
  folder.write("3/config.json", R"({"in_features": 24, "out_features": 6, "bias": true, "use_residual": true,
                                    "activation_function": "torch.nn.modules.activation.Sigmoid"})");
  folder.write("4/config.json", R"({"dimension": 6})");
  folder.write("5/config.json",
               R"({"bias": false, "use_residual": true, "activation_function": "torch.nn.GELU"})");
  Rng rng(2);
  const Tensor first = randn({6, 24}, rng), bias = randn({6}, rng), across = randn({6, 24}, rng),
               scale = randn({6}, rng), shift = randn({6}, rng), second = randn({6, 6}, rng);
  const std::string& at = folder.path;
  io::save_safetensors(at + "/3/model.safetensors",
                       {{"linear.weight", first}, {"linear.bias", bias}, {"residual.weight", across}});
  io::save_safetensors(at + "/4/model.safetensors", {{"norm.weight", scale}, {"norm.bias", shift}});
  io::save_safetensors(at + "/5/model.safetensors", {{"linear.weight", second}});
  folder.write("config_sentence_transformers.json", R"({"similarity_fn_name": "dot"})");
  const SentenceEncoder encoder = SentenceEncoder::load(at);
  io::save_safetensors(at + "/5/model.safetensors", {{"linear.weight", second}, {"linear.bias", bias}});
  EXPECT_MESSAGE(SentenceEncoder::load(at), FormatError, "has linear.bias");
  io::save_safetensors(at + "/5/model.safetensors", {{"linear.weight", second}});
  EXPECT_FALSE(encoder.normalizes());
  EXPECT_EQ(encoder.dim(), 6);
  const Tensor x = normalized_rows(SentenceEncoder(make_encoder(), make_tokenizer()).encode(kTexts));
  const Tensor y = layer_norm(add(sigmoid(linear(x, first, bias)), linear(x, across)), scale, shift);
  const auto want = add(gelu(linear(y, second)), y).to_vector<float>();
  const auto got = encoder.encode(kTexts).to_vector<float>();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5);
  for (const auto& [part, contents] : encoder.module_files()) {
    for (const auto& [name, text] : contents.files) folder.write((fs::path(part) / name).string(), text);
    for (const auto& [name, tensors] : contents.tensors)
      io::save_safetensors((fs::path(at) / part / name).string(), tensors);
  }
  const SentenceEncoder again = SentenceEncoder::load(at);
  EXPECT_EQ(again.encode(kTexts).to_vector<float>(), got);
  EXPECT_EQ(again.similarity_fn_name(), "dot");
}

// Σ weight · state / Σ weight, the states being the layers' inputs and the last one's output.
TEST(SentenceEncoderTest, LayersAreMixedByWeightAndSaved) {
  const Folder folder;
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("WeightedLayerPooling", "1") +
                                   "," + module("Pooling", "2") + "]");
  const std::string own = R"({"embedding_dimension": 24, "layer_start": 1, "num_hidden_layers": 2})";
  folder.write("1/config.json", own);
  folder.write("2/config.json", R"({"pooling_mode": "cls"})");
  const auto weigh = [&](const std::vector<float>& weights) {
    io::save_safetensors(folder.path + "/1/model.safetensors",
                         {{"layer_weights", Tensor::of({std::ssize(weights)}, weights)}});
  };
  weigh({3, -1});
  EXPECT_THAT(folder.error(), HasSubstr("needs \"output_hidden_states\": true"));
  folder.write("sentence_bert_config.json", R"({"config_args": {"output_hidden_states": true}})");
  const SentenceEncoder encoder = SentenceEncoder::load(folder.path);
  const auto got = encoder.encode(kTexts).to_vector<float>();
  const auto tokens = make_tokenizer().encode(kTexts[0]);
  const models::TokenRows rows = models::TokenRows::of(std::span(&tokens, 1));
  models::Encoder model = make_encoder();
  nn::Points points;
  points.keep("layers.1.resid_pre");
  const nn::PointScope scope(points);
  const auto last = model.features(rows).to_vector<float>();
  const auto middle = points.kept().at("layers.1.resid_pre").to_vector<float>();
  const std::vector<Tensor> states = TextModel(make_encoder()).states(rows);
  ASSERT_EQ(states.size(), 3U);
  EXPECT_EQ(states[1].to_vector<float>(), middle);
  for (size_t i = 0; i < 24; ++i) EXPECT_NEAR(got[i], (3 * middle[i] - last[i]) / 2, 1e-5);
  EXPECT_EQ(encoder.encode(kTexts, {.batch_tokens = 1}).to_vector<float>(), got);

  for (const auto& [part, contents] : encoder.module_files()) {
    for (const auto& [name, text] : contents.files) folder.write((fs::path(part) / name).string(), text);
    for (const auto& [name, tensors] : contents.tensors)
      io::save_safetensors((fs::path(folder.path) / part / name).string(), tensors);
  }
  EXPECT_EQ(SentenceEncoder::load(folder.path).encode(kTexts).to_vector<float>(), got);

  const std::string saved = folder.path + "/1_WeightedLayerPooling";
  for (const auto& [config, name] :
       {std::pair(R"({"num_hidden_layers": 3})", "\"num_hidden_layers\" must be 2"),
        {R"({"layer_start": 3})", "\"layer_start\" must be in [0, 2]"},
        {R"({"word_embedding_dimension": 8})", "word_embedding_dimension"},
        {R"({"layer_start": 2})", "layer_weights must be [1]"},
        {R"({"layer_start": 1, "scale": 2})", "scale"}}) {
    folder.write("1_WeightedLayerPooling/config.json", config);
    EXPECT_THAT(folder.error(), HasSubstr(name));
  }
  folder.write("1_WeightedLayerPooling/config.json", own);
  io::save_safetensors(saved + "/model.safetensors",
                       {{"layer_weights", Tensor::of({2}, std::vector<float>{1, -1})}});
  EXPECT_THAT(folder.error(), HasSubstr("sum that is not 0"));
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("Pooling", "2_Pooling") + "," +
                                   module("WeightedLayerPooling", "1_WeightedLayerPooling") + "]");
  EXPECT_THAT(folder.error(), HasSubstr("\"WeightedLayerPooling\" is not supported"));
}

TEST(SentenceEncoderTest, AVectorHasTheSameBitsInAnyCompany) {
  const SentenceEncoder encoder(make_encoder(), make_tokenizer());
  std::mt19937 rng(5);
  std::vector<std::string> texts;
  for (int i = 0; i < 60; ++i) texts.emplace_back(1 + rng() % 120, static_cast<char>('a' + rng() % 26));
  const auto all = encoder.encode(texts).to_vector<float>();
  EXPECT_EQ(encoder.encode(texts, {.batch_tokens = 1}).to_vector<float>(), all);
  EXPECT_EQ(encoder.encode(texts, {.batch_tokens = 100000}).to_vector<float>(), all);
  const int before = num_threads();
  set_num_threads(3);
  EXPECT_EQ(encoder.encode(texts).to_vector<float>(), all);
  set_num_threads(before);
  EXPECT_EQ(encoder.encode(std::vector<std::string>()).shape(), (Shape{0, 24}));
}

models::LanguageModel make_decoder() {
  models::LanguageModelConfig c;
  c.vocab_size = 280, c.context = 40, c.num_layers = 2, c.num_heads = 4, c.num_kv_heads = 2, c.embed_dim = 24;
  c.positions = models::Positions::rotary, c.norm = nn::NormKind::rms, c.gated = true, c.qk_norm = true;
  c.activation = Activation::silu, c.attention_bias = c.out_bias = c.ffn_bias = false;
  c.tie_embeddings = false;
  Rng rng(12);
  return {c, rng};
}

// As Qwen3-Embedding: the last token's vector.
TEST(SentenceEncoderTest, ADecoderIsAnEmbedder) {
  const Folder folder;
  fs::remove_all(folder.path);
  models::LanguageModel decoder = make_decoder();
  models::save_language_model(decoder, folder.path);
  make_tokenizer().save(folder.path);
  const auto row = [&](int64_t t) {
    const auto tokens = make_tokenizer().encode(kTexts[1]);
    const std::vector<float> x =
        decoder.features(models::TokenRows::of(std::span(&tokens, 1))).to_vector<float>();
    const auto end = t < 0 ? x.end() + (t + 1) * 24 : x.begin() + (t + 1) * 24;
    return std::vector<float>(end - 24, end);
  };
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("Pooling", "1") + "]");
  folder.write("1/config.json", R"({"pooling_mode_lasttoken": true})");
  SentenceEncoder encoder = SentenceEncoder::load(folder.path);
  const std::vector<std::string> text = {kTexts[1]};
  EXPECT_EQ(encoder.encode(text).to_vector<float>(), row(-1));
  encoder.set_pooling(Pooling::cls);
  EXPECT_EQ(encoder.encode(text).to_vector<float>(), row(0));
  EXPECT_FALSE(std::get<models::LanguageModel>(encoder.model().any()).config().head);
  EXPECT_THROW(encoder.encoder(), ValueError);
}

TEST(SentenceEncoderTest, TheEncoderOfATranslatorIsAnEmbedder) {
  const Folder folder;
  fs::remove_all(folder.path);
  models::Seq2SeqConfig c;
  c.source_vocab_size = 280, c.max_positions = 40, c.encoder_layers = 2, c.decoder_layers = 1;
  c.num_heads = 4, c.embed_dim = 24, c.ffn_dim = 30;
  Rng rng(13);
  models::Seq2Seq translator(c, rng);
  models::save_seq2seq(translator, folder.path);
  make_tokenizer().save(folder.path);
  SentenceEncoder encoder = SentenceEncoder::load(folder.path);
  encoder.set_pooling(Pooling::last);
  const auto got = encoder.encode(kTexts).to_vector<float>();
  for (size_t i = 0; i < kTexts.size(); ++i) {
    const auto ids = make_tokenizer().encode(kTexts[i]);
    const std::vector<int64_t> tokens(ids.begin(), ids.end());
    const auto x =
        translator.encode({Tensor::of<int64_t>({1, std::ssize(tokens)}, tokens), {}}).to_vector<float>();
    const std::vector<float> last(x.end() - 24, x.end()),
        row(got.begin() + static_cast<int64_t>(i) * 24, got.begin() + static_cast<int64_t>(i + 1) * 24);
    EXPECT_EQ(row, last) << i;
  }
  EXPECT_THROW(SentenceEncoder::load(folder.path, nn::WeightDtype::int8), ValueError);
}

TEST(SentenceEncoderTest, PackedWeightsKeepTheBitsInAnyCompany) {
  std::mt19937 rng(6);
  std::vector<std::string> texts;
  for (int i = 0; i < 30; ++i) texts.emplace_back(1 + rng() % 90, static_cast<char>('a' + rng() % 26));
  const int before = num_threads();
  for (const auto dtype : {nn::WeightDtype::bf16, nn::WeightDtype::f16, nn::WeightDtype::int8,
                           nn::WeightDtype::q8, nn::WeightDtype::q4}) {
    models::Encoder packed = make_encoder();
    packed.pack_weights(dtype);
    models::LanguageModel decoder = make_decoder();
    decoder.pack_weights(dtype);
    for (const SentenceEncoder& encoder :
         {SentenceEncoder(std::move(packed), make_tokenizer()),
          SentenceEncoder(TextModel::Any(std::move(decoder)), make_tokenizer())}) {
      const auto all = encoder.encode(texts).to_vector<float>();
      EXPECT_EQ(encoder.encode(texts, {.batch_tokens = 1}).to_vector<float>(), all) << kernels::name(dtype);
      set_num_threads(3);
      EXPECT_EQ(encoder.encode(texts, {.batch_tokens = 500}).to_vector<float>(), all) << kernels::name(dtype);
      set_num_threads(before);
    }
  }
}

TEST(SentenceEncoderTest, ARouterSendsTextsByTheirTask) {
  const Folder folder;
  folder.write("modules.json", "[" + module("Router", "") + "," + module("Normalize", "1") + "]");
  for (const char* pooling : {"mean", "max"}) {
    const std::string own = concat(folder.path, "/", pooling, "_0_Transformer");
    models::Encoder encoder = make_encoder();
    models::save_encoder(encoder, own);
    make_tokenizer().save(own);
    folder.write(concat(pooling, "_1_Pooling/config.json"), concat(R"({"pooling_mode": ")", pooling, "\"}"));
  }
  const auto write = [&](const std::string& parameters) {
    folder.write("router_config.json",
                 concat(R"({"types": {"mean_0_Transformer": "sentence_transformers.models.Transformer",
      "max_0_Transformer": "sentence_transformers.models.Transformer", "mean_1_Pooling": "sentence_transformers.models.Pooling", "max_1_Pooling": "sentence_transformers.models.Pooling"},
      "structure": {"query": ["mean_0_Transformer", "mean_1_Pooling"],
                    "document": ["max_0_Transformer", "max_1_Pooling"],
                    "title": ["mean_0_Transformer", "max_1_Pooling"]}, "parameters": )",
                        parameters, "}"));
  };
  const auto vectors = [&](const std::string& task) {
    return SentenceEncoder::load(folder.path, nn::WeightDtype::f32, task).encode(kTexts).to_vector<float>();
  };
  const TextModel model = TextModel::load(concat(folder.path, "/max_0_Transformer"), nn::WeightDtype::f32);
  const auto plain = [&](Pooling pooling) {
    return SentenceEncoder(model, make_tokenizer(), {pooling})
        .encode(kTexts, {.normalize = true})
        .to_vector<float>();
  };
  write(R"({"default_route": "document", "allow_empty_key": true})");
  EXPECT_TRUE(has_routes(folder.path));
  EXPECT_EQ(vectors("query"), plain(Pooling::mean));
  EXPECT_EQ(vectors("document"), plain(Pooling::max));
  EXPECT_EQ(vectors(""), plain(Pooling::max));
  const SentenceEncoder documents = SentenceEncoder::load(folder.path, nn::WeightDtype::f32, "document");
  const SentenceEncoder queries = documents.route("query"), titles = queries.route("title");
  const auto table = [](const SentenceEncoder& of) {
    return of.encoder().token_embedding.weight.data<float>();
  };
  EXPECT_EQ(table(titles), table(queries));  // the same Transformer
  EXPECT_NE(table(documents), table(queries));
  EXPECT_EQ(queries.encode(kTexts).to_vector<float>(), plain(Pooling::mean));
  EXPECT_EQ(titles.encode(kTexts).to_vector<float>(), vectors("title"));
  EXPECT_THROW(SentenceEncoder(model, make_tokenizer()).route("query"), ValueError);
  EXPECT_EQ(documents.tasks(), (std::set<std::string>{"document", "query", "title"}));
  EXPECT_EQ(documents.for_task("title").encode(kTexts).to_vector<float>(), vectors("title"));
  EXPECT_MESSAGE(documents.for_task("headline"), ValueError,
                 "no task \"headline\"; the tasks are document, query, title");
  SentenceEncoder pooled = documents;
  pooled.set_pooling(Pooling::mean);
  EXPECT_EQ(pooled.route("document").encode(kTexts).to_vector<float>(), plain(Pooling::mean));
  write(R"({"default_route": null, "allow_empty_key": true})");
  EXPECT_EQ(vectors(""), plain(Pooling::mean));  // the first
  write(R"j({"route_mappings": {"('passage', 'text')": "document", "(None, 'image')": "document",
                                "(None, None)": "query"}})j");
  EXPECT_EQ(vectors("passage"), plain(Pooling::max));
  EXPECT_EQ(vectors("document"), plain(Pooling::mean));  // mappings come first

  const auto error = [&](const std::string& task) -> std::string {
    try {
      SentenceEncoder::load(folder.path, {}, task);
    } catch (const FormatError& caught) {
      return caught.what();
    }
    return "loaded";
  };
  write(R"({"allow_empty_key": false})");
  EXPECT_THAT(error(""), HasSubstr("there is no default route"));
  EXPECT_THAT(error("headline"), HasSubstr("no route for the task \"headline\""));
  EXPECT_THROW(SentenceEncoder::load_to_train(folder.path), FormatError);
  write(R"({"default_route": "other"})");
  EXPECT_THAT(error(""), HasSubstr("route \"other\" has no modules"));
  folder.write(
      "router_config.json",
      R"({"types": {"q": "sentence_transformers.models.StaticEmbedding"}, "structure": {"query": ["q"]}})");
  EXPECT_THAT(error("query"), HasSubstr("got \"StaticEmbedding\""));
  folder.write("router_config.json", R"({"types": {}, "structure": {"query": ["../q"]}})");
  EXPECT_THAT(error("query"), HasSubstr("has no type"));
}

TEST(SentenceEncoderTest, Bf16IsCloseAndHasTheSameBitsInWhateverCompany) {
  const Folder folder;
  const SentenceEncoder exact = SentenceEncoder::load(folder.path);
  const SentenceEncoder encoder = SentenceEncoder::load(folder.path, nn::WeightDtype::bf16);
  const std::vector<std::string> texts = {"the cat sat", "a", "the dog on the mat and the cat", "mat mat"};
  const Tensor want = exact.encode(texts, {.normalize = true});
  const Tensor got = encoder.encode(texts, {.normalize = true, .precision = Dtype::bf16});
  const auto a = want.to_vector<float>(), b = got.to_vector<float>();
  EXPECT_NE(a, b);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 0.02) << i;
  EXPECT_NE(b, encoder.encode(texts, {.normalize = true}).to_vector<float>()) << "attention was not rounded";
  const int threads = num_threads();
  for (const int count : {1, 3}) {
    set_num_threads(count);
    const Tensor again =
        encoder.encode(texts, {.normalize = true, .batch_tokens = count, .precision = Dtype::bf16});
    EXPECT_EQ(again.to_vector<float>(), b);
  }
  set_num_threads(threads);
  EXPECT_THROW(encoder.encode(texts, {.precision = Dtype::f16}), DtypeError);
}

}  // namespace
}  // namespace multihead::embed
