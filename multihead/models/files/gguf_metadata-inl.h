// A model's configuration from a GGUF file's metadata. Private to models/.
#pragma once

#include "multihead/core/text/json.h"
#include "multihead/io/gguf.h"

namespace multihead::models {

struct GgufArchitecture {
  const char* name;
  /// Rows of queries and keys are stored with the two halves of a head interleaved, as the rotation pairs
  /// them.
  bool interleaved;
  bool is_gemma = false;  ///< norms after the sub-layers too, whose weights are stored with 1 added
};
inline constexpr GgufArchitecture kGgufArchitectures[] = {
    {"llama", true}, {"qwen2", false}, {"qwen3", false}, {"gemma-embedding", false, true}};

/// Throws FormatError: the file is of another one.
const GgufArchitecture& gguf_architecture(const io::GgufFile& file);

/// The config.json that says the same. Every key of the architecture's is followed, known to change nothing,
/// or refused by name. Throws FormatError.
Json gguf_config(const io::GgufFile& file);

}  // namespace multihead::models
