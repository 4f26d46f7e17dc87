// README.md of a trained model: what it was made from, with which settings, and how good it is.
#pragma once

#include <string>
#include <vector>

#include "multihead/train/fields.h"
#include "multihead/train/run.h"
#include "multihead/train/tasks/kind.h"

namespace multihead::train {

inline constexpr const char* kCardFile = "README.md";

/// In Markdown, with the front matter of model hubs. `summary`: summary.json.
std::string model_card(const Kind& kind, const RunRequest& request, const std::vector<Field>& settings,
                       const Json& summary);

}  // namespace multihead::train
