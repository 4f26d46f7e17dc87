// The model and the options of vectors, as embed and search take them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cli/verb.h"
#include "cli/verbs/index_record.h"
#include "multihead/core/text/enum_words.h"
#include "multihead/embed/multi_vector_encoder.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/embed/sparse_encoder.h"

namespace multihead::cli {

/// One of them for each embed::VectorKind, in its order.
using AnyEncoder = std::variant<embed::SentenceEncoder, embed::SparseEncoder, embed::MultiVectorEncoder>;
using AnyVectors = std::variant<Tensor, embed::SparseRows, embed::MultiVectors>;

/// The words of an enum behind `first`, which stands for none of them.
template <class Enum>
std::vector<std::string> words_after(const char* first) {
  std::vector<std::string> words = word_list<Enum>();
  words.insert(words.begin(), first);
  return words;
}

struct EmbedFlags {
  using Progress = std::function<void(int64_t done, int64_t total)>;

  std::string folder, prompt;
  embed::EncodeTextOptions options;
  bool normalize = false;
  std::string weights = "stored", pooling = "folder", precision = "f32", kind = "folder";
  int64_t max_active = 0;

  void declare(Flags& flags);
  AnyEncoder load(const std::string& task);
  /// The encoders that search with, where they are not load("document"): routes, adapters and prompts may be those
  /// of queries or of documents.
  std::optional<AnyEncoder> encoder_of_queries(const AnyEncoder& loaded) const;
  std::optional<AnyEncoder> encoder_of_documents(const AnyEncoder& loaded) const;
  /// Besides the model, what dense vectors depend on.
  IndexRecord record_of(std::span<const std::string> texts) const;
  AnyVectors encode(const AnyEncoder& encoder, std::span<const std::string> texts, embed::TextTask task,
                    const Progress& progress = {}) const;

 private:
  std::optional<AnyEncoder> encoder_for(const AnyEncoder& loaded, embed::TextTask task) const;
  embed::SentenceEncoder pooled_as_asked(embed::SentenceEncoder encoder) const;
  void check_flags_of(embed::VectorKind made) const;
};

}  // namespace multihead::cli
