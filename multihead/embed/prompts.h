// The instructions that a folder prepends to texts, and how its vectors are compared.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "multihead/core/text/enum_words.h"

namespace multihead::embed {

/// What a model makes of a text.
enum class VectorKind {
  dense,         ///< one vector: SentenceEncoder
  sparse,        ///< one vector with a number for each token of the vocabulary, most of them 0: SparseEncoder
  multi_vector,  ///< a vector for each token: MultiVectorEncoder
};
constexpr auto enum_words(VectorKind) {
  return std::to_array<std::string_view>({"dense", "sparse", "multi_vector"});
}

/// Of a folder of sentence-transformers, PyLate or ColBERT; dense where it does not say. Throws IoError,
/// FormatError.
VectorKind vector_kind(const std::string& folder);

/// Whether texts are encoded by what they are encoded for: the folder's first module is a Router, which sends
/// them to other modules, or has adapters (models::TaskAdapters). Throws IoError, FormatError.
bool has_routes(const std::string& folder);

/// What a text is encoded for.
enum class TextTask { none, query, document };
constexpr auto enum_words(TextTask) { return std::to_array<std::string_view>({"none", "query", "document"}); }

/// How two vectors are compared; distances are negated, so that the larger is the nearer.
enum class Similarity { cosine, dot, euclidean, manhattan };
constexpr auto enum_words(Similarity) {
  return std::to_array<std::string_view>({"cosine", "dot", "euclidean", "manhattan"});
}

/// What config_sentence_transformers.json says.
struct Prompts {
  std::map<std::string, std::string> texts = {};
  std::string default_name = {};
  std::string similarity = {};  ///< sentence-transformers' name; empty: it does not say
  int64_t truncate_dim = 0;     ///< columns that dense vectors keep; 0: it does not say

  /// `prompt`, or the one of this name, or the default one. Throws ValueError (both are given, or the name is
  /// unknown), as `who`.
  std::string resolve(const char* who, const std::optional<std::string>& prompt,
                      const std::string& name) const;
  /// The one named after a task, for documents also "passage" or "corpus"; "" if there is none.
  std::string of(TextTask task) const;
  /// The name of that one, of any task.
  std::string name_of(const std::string& task) const;
  /// `similarity`, or `missing` where the folder does not say. Throws ValueError (one that we do not have).
  Similarity compared_by(Similarity missing) const;
};

}  // namespace multihead::embed
