// A tokenizer's part of a GGUF file.
#pragma once

#include <cstdint>

#include "multihead/io/gguf.h"
#include "multihead/text/tokenizer.h"

namespace multihead::text {

/// The metadata that hold a byte-level BPE tokenizer for a model of `size` tokens; what lacks is padded. A
/// normaliser (NFC) is not part of the format: readers take the text as it is. Throws ValueError (another
/// kind of tokenizer, or one whose splitting the format has no name for).
io::GgufMetadata gguf_vocabulary(const Tokenizer& tokenizer, int64_t size);

}  // namespace multihead::text
