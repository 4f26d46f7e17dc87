// What the files of a folder of sentence-transformers say is followed or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "multihead/core/text/json.h"
#include "multihead/testing/sentence_folder.h"

namespace multihead::embed {
namespace {

using ::testing::HasSubstr;
using testing::kTexts;
using testing::module;
using Folder = testing::SentenceFolder;

TEST(SentenceFolderTest, FoldersThatAreNotUnderstoodAreRefused) {
  const Folder folder;
  folder.write("modules.json", "{}");
  EXPECT_THAT(folder.error(), HasSubstr("must be an array"));
  folder.write("modules.json", "[" + module("Transformer", "../other") + "]");
  EXPECT_THAT(folder.error(), HasSubstr("leaves the folder"));
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("CNN", "1") + "]");
  EXPECT_THAT(folder.error(), HasSubstr("\"CNN\" is not supported"));
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("Normalize", "1") + "]");
  EXPECT_THAT(folder.error(), HasSubstr("no Pooling makes one vector"));
  folder.write("modules.json", "[" + module("Pooling", "") + "]");
  EXPECT_THAT(folder.error(), HasSubstr("must be a Transformer"));
  const std::string twice = R"("name": "0", "type": "sentence_transformers.models.Transformer", "path": "")";
  folder.write("modules.json", "[{" + twice + "}, {" + twice + "}]");
  EXPECT_THAT(folder.error(), HasSubstr("two modules have the name"));
  folder.write("modules.json", "[" + module("Transformer", "") + "," + module("Pooling", "1") + "]");
  for (const auto& [config, name] :
       {std::pair(R"({"pooling_mode": "attention"})", "pooling_mode"),
        {R"({"pooling_mode": "mean", "word_embedding_dimension": 3})", "word_embedding_dimension"},
        {R"({"pooling_mode": "mean", "scale": 2})", "scale"}}) {
    folder.write("1/config.json", config);
    EXPECT_THAT(folder.error(), HasSubstr(name));
  }
  folder.write("1/config.json", "{}");
  EXPECT_THAT(folder.error(), HasSubstr("no way of pooling"));
  folder.write("1/config.json", R"({"pooling_mode": "mean"})");
  folder.write("sentence_bert_config.json", R"({"max_seq_length": -1})");
  EXPECT_THAT(folder.error(), HasSubstr("max_seq_length must be positive"));
  folder.write("sentence_bert_config.json", R"({"do_lower_case": true})");
  EXPECT_THAT(folder.error(), HasSubstr("do_lower_case"));
  folder.write("sentence_bert_config.json", R"({"transformer_task": "fill-mask"})");
  EXPECT_THAT(folder.error(), HasSubstr("transformer_task"));
  folder.write("sentence_bert_config.json", "{}");
  folder.write("config_sentence_transformers.json", R"({"model_type": "SparseEncoder"})");
  EXPECT_THAT(folder.error(), HasSubstr("model_type"));
  folder.write("config_sentence_transformers.json", R"({"prompts": ["query: "]})");
  EXPECT_THAT(folder.error(), HasSubstr("prompts must be an object"));
  for (const char* columns : {"0", "-1", "1.5", "\"4\""}) {
    folder.write("config_sentence_transformers.json", concat(R"({"truncate_dim": )", columns, "}"));
    EXPECT_THAT(folder.error(), HasSubstr("truncate_dim must be a positive integer"));
  }
}

TEST(SentenceFolderTest, KeysOfTheTransformerThatAreNotUnderstoodAreRefused) {
  const Folder folder;
  for (const auto& [config, part] :
       {std::pair(R"({"foo": 1})", "foo"),
        {R"({"model_args": {"num_labels": 3}})", "model_args.num_labels"},
        {R"({"config_args": {"hidden_act": "relu"}})", "config_args.hidden_act"},
        {R"({"tokenizer_args": {"padding_side": "left"}})", "tokenizer_args.padding_side"},
        {R"({"model_kwargs": 3})", "model_kwargs must be an object"},
        {R"({"processing_kwargs": {"text": {"padding": "max_length"}}})", "processing_kwargs"},
        {R"({"tokenizer_name_or_path": "other"})", "tokenizer_name_or_path"},
        {R"({"query_length": 3})", "query_length"},
        {R"({"modality_config": {"image": {}}})", "modality_config"},
        {R"({"modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}})",
         "modality_config"},
        {"[]", "must be an object"}}) {
    folder.write("sentence_bert_config.json", config);
    EXPECT_THAT(folder.error(), HasSubstr(part)) << config;
  }
  folder.write("sentence_bert_config.json", R"({"max_seq_length": 9, "do_lower_case": false, "foo": null,
      "bar": {}, "unpad_inputs": true, "transformer_task": "feature-extraction", "query_expansion": null,
      "module_output_name": "token_embeddings", "processing_kwargs": {}, "config_kwargs": {},
      "model_args": {"torch_dtype": "float16", "attn_implementation": "sdpa"}, "tokenizer_args": {},
      "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"},
                          "message": {"method": "forward", "method_output_name": "last_hidden_state",
                                      "format": "flat"}}})");
  EXPECT_EQ(folder.error(), "loaded");
}

TEST(SentenceFolderTest, ModulesOfOtherPackagesAreRefused) {
  const Folder folder;
  const auto list = [&](const std::string& type, const std::string& more) {
    folder.write("modules.json", R"([{"type": ")" + type + R"(", "path": "")" + more + "}]");
    return folder.error();
  };
  for (const char* type : {"my.Transformer", "Transformer", "sentence_transformers", "custom_st.Pooling"})
    EXPECT_THAT(list(type, ""), HasSubstr("module type \"")) << type;
  for (const char* type : {"sentence_transformers.models.Transformer",
                           "sentence_transformers.base.modules.transformer.Transformer",
                           "pylate.models.Transformer", "custom_st.Transformer"})
    EXPECT_EQ(list(type, R"(, "kwargs": ["task"])"), "loaded") << type;
  EXPECT_THAT(list("sentence_transformers.models.Transformer", R"(, "kwargs": ["task", "size"])"),
              HasSubstr("kwargs may be task alone, got"));
  EXPECT_THAT(list("sentence_transformers.models.Transformer", R"(, "kwargs": {"size": 3})"),
              HasSubstr("kwargs must be an array"));
}

// As sentence-transformers does: a larger number keeps all, and what a call says goes first.
TEST(SentenceFolderTest, AFolderMaySayHowManyColumnsAreKept) {
  const Folder folder;
  const std::string file = "config_sentence_transformers.json";
  const SentenceEncoder whole = SentenceEncoder::load(folder.path);
  folder.write(file, R"({"truncate_dim": 4})");
  const SentenceEncoder cut = SentenceEncoder::load(folder.path);
  EXPECT_EQ(cut.width({}), 4);
  EXPECT_EQ(cut.encode(kTexts).to_vector<float>(),
            whole.encode(kTexts, {.truncate_dim = 4}).to_vector<float>());
  EXPECT_EQ(cut.encode(kTexts, {.truncate_dim = 24}).to_vector<float>(),
            whole.encode(kTexts).to_vector<float>());
  EXPECT_EQ(Json::parse(cut.module_files().at("").files.at(file)).at("truncate_dim"), Json(4));
  folder.write(file, R"({"truncate_dim": 4000})");
  EXPECT_EQ(SentenceEncoder::load(folder.path).width({}), 24);
}

}  // namespace
}  // namespace multihead::embed
