// Which models may replace the one in a folder. Internal to the library and its bindings.
#pragma once

#include <string>

#include "multihead/core/text/json.h"

namespace multihead::models::detail {

/// Throws ValueError if the folder holds a model of ours with another config.json: its tokenizer, prompts and
/// pooling would stay. The saving itself refuses what is not ours.
void refuse_another_model(const Json& config, const std::string& folder);

}  // namespace multihead::models::detail
