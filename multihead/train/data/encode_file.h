// A text file as a token file, on several ranks.
#pragma once

#include <cstdint>
#include <string>

#include "multihead/distributed/group.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::train {

/// Encodes a text file of any size into a token file in little memory: the ranks and their threads take its
/// pieces in turn, and rank 0 joins and writes what they give. The file is the same whatever their number,
/// its ids those of encode() of the whole text without template; it appears whole or not at all. Every rank
/// reads the text, rank 0 alone sees `out`. Returns the number of tokens at rank 0. `parse_special`: as in
/// EncodeOptions. Throws: IoError, and what text::read_text() throws for bad text.
int64_t encode_file(distributed::Group& group, const std::string& data, const std::string& out,
                    const text::Tokenizer& tokenizer, uint64_t piece = uint64_t{1} << 22,
                    bool parse_special = false);

}  // namespace multihead::train
