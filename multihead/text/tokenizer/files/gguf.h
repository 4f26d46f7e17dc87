// A tokenizer's part of a GGUF file.
#pragma once

#include <cstdint>

#include "multihead/io/gguf.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {

/// The metadata that hold a byte-level BPE tokenizer for a model of `size` tokens; what lacks is padded.
/// llama.cpp gives the same ids, but for one thing: a normaliser (NFC, as Qwen's) is not part of the format,
/// and readers take text in other forms as it is. Throws ValueError for what the format cannot express:
/// another kind of tokenizer or normaliser, splitting that it has no name for, tokens that swallow white
/// space, templates other than a bos token in front and an eos token at the end.
io::GgufMetadata gguf_vocabulary(const Tokenizer& tokenizer, int64_t size);

/// Whether the tokenizer has a normaliser that the format leaves out.
bool loses_normalizer_in_gguf(const Tokenizer& tokenizer);

}  // namespace multihead::text
