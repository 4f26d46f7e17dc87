// A folder of sentence-transformers with a random encoder, for tests.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "multihead/core/files.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead::testing {

inline text::Tokenizer make_tokenizer() {
  return text::Tokenizer::train_bpe("the cat sat on the mat and the dog sat on the cat", {.vocab_size = 270});
}

inline models::Encoder make_encoder() {
  models::EncoderConfig c;
  c.vocab_size = 280, c.context = 40, c.num_layers = 2, c.num_heads = 2, c.embed_dim = 24;
  Rng rng(11);
  return {c, rng};
}

/// A folder of sentence-transformers with a random encoder.
class SentenceFolder {
 public:
  SentenceFolder()
      : path((std::filesystem::temp_directory_path() / concat("multihead_embed_", ::getpid(), "_", counter++))
                 .string()) {
    models::Encoder encoder = make_encoder();
    models::save_encoder(encoder, path);
    make_tokenizer().save(path);
  }
  ~SentenceFolder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((std::filesystem::path(path) / name).parent_path());
    write_file_atomically((std::filesystem::path(path) / name).string(), content);
  }
  std::string error() const {
    try {
      embed::SentenceEncoder::load(path);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "loaded";
  }
  const std::string path;

 private:
  static inline int counter = 0;
};

/// Its line of modules.json.
inline std::string module(const std::string& type, const std::string& path) {
  return R"({"type": "sentence_transformers.models.)" + type + R"(", "path": ")" + path + "\"}";
}

inline const std::vector<std::string> kTexts = {"the cat", "a dog sat on the mat and the cat sat on the dog",
                                                "m", "the dog"};

}  // namespace multihead::testing
