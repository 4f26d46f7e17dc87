// Small models for the tests of serve/.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/json.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/serve/service.h"

namespace multihead::serve {

inline constexpr const char *kChat = "/v1/chat/completions", *kCompletions = "/v1/completions",
                            *kEmbeddings = "/v1/embeddings";

inline text::Tokenizer test_tokenizer() {
  const text::Tokenizer plain = text::Tokenizer::train_bpe(
      "the cat sat on the mat", {.vocab_size = 262, .special = {.eos = "<|im_end|>"}});
  Json config = Json::parse(plain.config_json());
  config["chat_template"] =
      "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
      "{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}assistant:";
  return text::Tokenizer::from_contents(plain.to_json(), config.dump());
}

inline models::LanguageModel test_language_model() {
  models::LanguageModelConfig c;
  c.vocab_size = 262, c.context = 64, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16, c.init_std = 0.3;
  Rng rng(3);
  return models::LanguageModel(c, rng);
}

inline models::Encoder test_encoder(models::EncoderHead head, int64_t labels = 0) {
  models::EncoderConfig c;
  c.vocab_size = 262, c.context = 24, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 16, c.head = head;
  c.num_labels = labels;
  Rng rng(3);
  return {models::resolved(c), rng};
}

inline embed::SentenceEncoder test_sentence_encoder() {
  return {embed::TextModel(test_encoder(models::EncoderHead::none)), test_tokenizer()};
}

inline embed::TextClassifier test_classifier(int64_t labels = 1) {
  return {test_encoder(models::EncoderHead::classification, labels),
          text::Tokenizer::train_wordpiece("the cat sat on the mat", {.vocab_size = 60})};
}

/// A classifier of a folder of `files` besides the model's and the tokenizer's.
inline embed::TextClassifier test_folder_classifier(models::EncoderHead head,
                                                    const std::map<std::string, std::string>& files) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / concat("multihead_serve_", ::getpid())).string();
  models::Encoder encoder = test_encoder(head, head == models::EncoderHead::none ? 0 : 1);
  models::save_encoder(encoder, folder);
  text::Tokenizer::train_wordpiece("the cat sat on the mat", {.vocab_size = 60}).save(folder);
  for (const auto& [name, content] : files) {
    std::filesystem::create_directories((std::filesystem::path(folder) / name).parent_path());
    write_file_atomically((std::filesystem::path(folder) / name).string(), content);
  }
  if (head == models::EncoderHead::none) {
    io::save_safetensors(folder + "/2/model.safetensors", {{"linear.weight", Tensor::ones({2, 16})}});
    Json config = io::load_json(folder + "/config.json");
    config["id2label"] = Json::object({{"0", "no"}, {"1", "yes"}});
    write_file_atomically(folder + "/config.json", config.dump());
  }
  embed::TextClassifier loaded = embed::TextClassifier::load(folder);
  std::filesystem::remove_all(folder);
  return loaded;
}

/// As SetFit's: a Dense module makes the logits of a text's vector, and six tokens of it are read.
inline embed::TextClassifier test_linear_classifier() {
  return test_folder_classifier(
      models::EncoderHead::none,
      {{"modules.json", R"([{"type":"sentence_transformers.models.Transformer","path":""},)"
                        R"({"type":"sentence_transformers.models.Pooling","path":"1"},)"
                        R"({"type":"sentence_transformers.models.Dense","path":"2"}])"},
       {"1/config.json", R"({"pooling_mode":"mean"})"},
       {"2/config.json", R"({"out_features":2,"activation_function":"torch.nn.modules.linear.Identity"})"},
       {"sentence_bert_config.json", R"({"max_seq_length":6})"}});
}

inline std::vector<Model> test_models() {
  std::vector<Model> models;
  models.push_back({.name = "lm", .any = Writer{{test_language_model(), test_tokenizer()}, {}}});
  models.push_back({.name = "enc", .any = test_sentence_encoder()});
  models.push_back({.name = "rank", .any = test_classifier()});
  return models;
}

inline HttpRequest test_request(const std::string& path, const std::string& body,
                                const std::string& method = "POST") {
  HttpRequest request;
  request.method = method, request.path = path, request.body = body;
  request.headers["host"] = "localhost:8080";
  return request;
}

struct Answer {
  int status = 0;
  std::string body = {};
  HttpHeaders headers = {};
  Json json() const { return Json::parse(body); }
};

/// Waits for the end of a reply.
inline Answer answer_of(Reply& reply) {
  Answer answer;
  while (true) {
    Reply::Part part = reply.take();
    if (part.status != 0) answer.status = part.status, answer.headers = part.headers;
    answer.body += part.bytes;
    if (part.ends) return answer;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

inline Answer ask(Service& service, const std::string& path, const std::string& body,
                  const std::string& method = "POST") {
  return answer_of(*service.handle(test_request(path, body, method)));
}

/// The text or value in `place` of an answer to a completion.
inline Json choice_of(const Answer& answer, size_t place = 0) {
  return answer.json().at("choices").at(place);
}

}  // namespace multihead::serve
