// Chat templates: render a conversation as the prompt format that a model was trained on.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/core/text/json.h"

namespace multihead::text {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant"
  std::string content;
};

/// A template in the subset of Jinja that models use, rendered as transformers renders it.
///
/// An unsupported construct is an error that names it and its line, never a wrong prompt. Templates may come
/// from strangers: nesting, work and memory are bounded, and they reach nothing but the conversation and, by
/// strftime_now(), the date.
class ChatTemplate {
 public:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  /// `name` is for messages. Throws FormatError with the line.
  explicit ChatTemplate(std::string_view source, std::string name = "chat template");

  /// `variables`: strings such as bos_token and eos_token. Those without a value are undefined, as in
  /// transformers.
  /// Throws    ValueError where the template raises an exception, such as for roles that must alternate;
  ///           FormatError with the line for unsupported constructs, and beyond the limits
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                     const Variables& variables = {}) const;

  /// The same for messages with more members than those two, such as "tool_calls" or a list as "content", and
  /// for variables of any kind ("tools", "enable_thinking"): an array of objects, and an object.
  std::string render(const Json& messages, bool add_generation_prompt, const Json& variables) const;

  struct Program;

 private:
  std::shared_ptr<const Program> program_;
};

}  // namespace multihead::text
