// A conversation with a model that carries a chat template: multihead generate --chat.
#pragma once

#include <string>
#include <vector>

#include "cli/model_dir.h"
#include "multihead/core/text/json.h"
#include "multihead/generate/generate.h"

namespace multihead::cli {

struct ChatOptions {
  std::string folder, system, message;  ///< a message: it is answered, and the conversation ends
  GenerateOptions generate;
  bool limited = false;  ///< answers have at most generate.max_new_tokens; else what the context holds
  bool quiet = false;
  std::string prefix_folder = {};  ///< of generate/prefix_folder.h, or empty
  Json template_variables = Json::object();
  std::vector<std::string> stops = {};  ///< an answer ends before one of them
};

/// Answers the lines of stdin until it ends. Throws InputError if the model has no chat template.
int chat(const LoadedModel& loaded, const ChatOptions& options);

}  // namespace multihead::cli
