// Calls of functions in chats: how models are told of them, and how they write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/text/grammar/language.h"

namespace multihead::text {

/// The forms of calls that models were trained on.
enum class ToolStyle {
  hermes,  ///< <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>, one for each call: Hermes, Qwen, SmolLM3
  llama,    ///< {"name": …, "parameters": {…}} as the whole answer: Llama 3
  mistral,  ///< the token [TOOL_CALLS], then [{"name": …, "arguments": {…}}, …]
  list,  ///< <tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>: SmolLM2, whose template knows no tools
};

/// The form that a chat template asks for; `list` if it knows no tools, none if it is another one.
std::optional<ToolStyle> tool_style(std::string_view chat_template);

/// Messages as a template of that style gets them: the arguments of "tool_calls" become objects; for `list` the tools
/// are told in the system message, and calls stand in texts. `tools` and "tool_calls" are as OpenAI has them.
Json tool_messages(ToolStyle style, const Json& messages, const Json& tools);

/// What a prompt ends with if the answer must be a call.
std::string_view call_prefix(ToolStyle style);
/// The answers that call one of `functions` ({"name", "parameters": a schema}), behind call_prefix(); parameters that are
/// missing are any object.
grammar::LanguagePtr call_language(ToolStyle style, const std::vector<Json>& functions);
/// Free texts in which each call, if there are any, is one of these. Throws ValueError for styles whose calls begin
/// otherwise than by a text: llama, mistral.
grammar::LanguagePtr text_or_call_language(ToolStyle style, const std::vector<Json>& functions);
/// One of these calls, or a JSON text of a schema's values. Throws ValueError for mistral.
grammar::LanguagePtr value_or_call_language(ToolStyle style, const std::vector<Json>& functions,
                                            const Json& schema);

/// Splits an answer into text and calls as it comes.
class ToolCallParser {
 public:
  struct Event {
    std::string content = {};
    int64_t call = -1;           ///< its number, or -1: this is content
    std::string name = {};       ///< where a call begins, else empty
    std::string arguments = {};  ///< the next part of the JSON text
  };

  /// `in_call`: the answer begins behind call_prefix(). `only_one`: what follows the first call is left out.
  ToolCallParser(ToolStyle style, bool in_call, bool only_one = false);
  std::vector<Event> add(std::string_view text);
  /// The rest. What looked like a call and is none is content.
  std::vector<Event> end();
  int64_t calls() const {
    const int64_t all = calls_ + (is_named_ ? 1 : 0);
    return only_one_ && all > 1 ? 1 : all;
  }

 private:
  std::vector<Event> kept(std::vector<Event> events);
  void read(std::vector<Event>& events, bool is_end);
  bool read_text(std::vector<Event>& events, bool is_end);
  bool read_call(std::vector<Event>& events);

  ToolStyle style_;
  bool in_call_, only_one_, has_first_ = false;
  std::string buffer_, held_;  // held_: what the buffer began with before it was taken for a call
  int64_t calls_ = 0;
  bool is_named_ = false;
  size_t sent_ = 0;  // of the arguments of the call that is being read
};

}  // namespace multihead::text
