// How OpenAI's dialects write a generation. Private to serve/.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/serve/dialects/dialects-inl.h"
#include "multihead/text/chat/tool_calls.h"

namespace multihead::serve {

struct OpenAiForm {
  std::string id = {}, model_name = {};
  bool is_chat = false, streams = false, shows_usage = false, has_logprobs = false;
  std::optional<text::ToolStyle> tools = {};  ///< calls are looked for in the answer
  bool in_call = false;                       ///< it must be one
  bool only_one = false;                      ///< and no others
  int64_t created = seconds_now();
};

/// A generation as completions or chat completions, at once or in events.
std::unique_ptr<GenerationListener> openai_writer(OpenAiForm form, ServedModel& model,
                                                  std::shared_ptr<Reply> reply, size_t choices);
/// "call_" and what is unique, in the nine letters and digits that Mistral's templates ask for.
std::string fresh_call_id();

}  // namespace multihead::serve
