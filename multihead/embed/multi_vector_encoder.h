// Texts to a vector for each token, compared by MaxSim (ColBERT).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "multihead/embed/nearest.h"
#include "multihead/embed/prompts.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/embed/text_model.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::embed {

/// How queries are filled with tokens whose vectors count as well.
struct QueryExpansion {
  int64_t length = 32;       ///< tokens of a filled query
  bool cuts = true;          ///< longer queries are cut to it
  bool is_attended = false;  ///< whether tokens attend to the added ones
  int32_t token = 0;
};

/// A tokenizer, a model and the modules on its tokens' vectors. A text's vectors have the same bits in any
/// batch, on any number of threads. Source: Khattab & Zaharia 2020.
class MultiVectorEncoder {
 public:
  /// Reads a folder of sentence-transformers (modules.json: Transformer, then Dense, MultiVectorMask and
  /// Normalize on token_embeddings), of PyLate, or of Stanford's ColBERT. Its weights are packed
  /// (TextModel::load). Throws IoError, FormatError.
  static MultiVectorEncoder load(const std::string& folder, nn::WeightDtype weights = nn::WeightDtype::f32);

  /// n texts -> their vectors, dim() columns each. A task takes the prompt of its name (for documents also
  /// "passage" and "corpus"), unless the options have another. Throws ValueError (an unknown prompt;
  /// truncate_dim).
  MultiVectors encode(std::span<const std::string> texts, TextTask task = TextTask::none,
                      const EncodeTextOptions& options = {}) const;

  int64_t dim() const;
  int64_t max_length() const { return max_length_; }
  const Prompts& prompts() const { return prompts_; }
  /// Whether scores are MaxSim divided by the query's vectors, which changes no order. Folders of
  /// sentence-transformers may say so; another similarity counts as MaxSim there and here.
  bool has_mean_max_sim() const { return prompts_.similarity == "meanmaxsim"; }
  const TextModel& model() const { return model_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Input {
    std::vector<int32_t> ids;
    int64_t attended = 0;      ///< the first tokens
    std::vector<bool> counts;  ///< which tokens' vectors are kept
  };
  MultiVectorEncoder(TextModel model, text::Tokenizer tokenizer)
      : model_(std::move(model)), tokenizer_(std::move(tokenizer)) {}
  void read_modules(const std::string& folder);
  void read_pylate(const std::string& folder);
  void read_stanford(const std::string& folder);
  void read_lengths(const std::string& folder, bool adds_vectors);
  void read_mask(const std::string& folder);
  void skip_words(const std::vector<std::string>& words);
  void set_expansion(int64_t length, bool cuts, bool is_attended, const std::string& token);
  /// Makes the first word of a prompt a token of its own, as models trained by PyLate want it.
  void set_marker(const std::string& name, const std::string& prefix);
  Input input(const std::string& text, const std::string& prompt, TextTask task, int64_t length) const;

  TextModel model_;
  text::Tokenizer tokenizer_;
  std::vector<VectorStep> steps_;
  std::vector<std::string> markers_;  ///< texts that are one token where a prompt begins with them
  std::set<int32_t> skipped_;         ///< tokens whose vectors are left out …
  bool skips_queries_ = false, skips_documents_ = true;  ///< … of these tasks
  std::optional<QueryExpansion> expansion_;
  int64_t max_length_ = 0, query_length_ = 0, document_length_ = 0;  ///< 0: max_length_
  Prompts prompts_;
};

}  // namespace multihead::embed
