// Conversations and other documents as tokens, with what of them is to be learned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/models/token_rows.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::train {

/// A sequence that is by itself. is_target[i]: ids[i] is to be predicted from those before it.
struct Dialogue {
  std::vector<int32_t> ids;
  std::vector<bool> is_target;
  int64_t targets() const;
  /// The targets, one after the other.
  std::vector<int32_t> learned() const;
};

struct Dialogues {
  std::vector<Dialogue> all;
  int64_t cut = 0;      ///< those longer than `length`, whose end is left out
  int64_t skipped = 0;  ///< those with nothing to learn within it
};

/// A file in JSON Lines. An object has one of
///
///   "messages"               a conversation, rendered by the tokenizer's chat template, to which "tools"
///                            and the members of "chat_template_kwargs" go; the assistant's messages are the targets
///   "prompt", "completion"   of messages, likewise with the completion's as targets, or of plain texts,
///                            which an end token follows
///   "text"                   a plain text, all of which is learned, with an end token
///
/// Special tokens are what the template writes; in a message they are plain characters. Throws IoError;
/// FormatError naming the line, also for a template that writes a message otherwise once another follows.
Dialogues read_dialogues(const std::string& path, const text::Tokenizer& tokenizer, int64_t length);

/// Whether a file has such rows, by its name.
bool holds_dialogues(const std::string& path);

/// The rows of a batch: their tokens, the place before every target, the targets.
struct DialogueBatch {
  models::TokenRows rows;
  Tensor places, targets;
};
DialogueBatch dialogue_batch(const std::vector<Dialogue>& all, const std::vector<int64_t>& rows);

}  // namespace multihead::train
