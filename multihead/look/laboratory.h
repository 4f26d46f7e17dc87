// What a page with a laboratory (AttentionPage::lab) asks: the model again, with another text, without heads, without
// edges.
#pragma once

#include <functional>
#include <string>

#include "multihead/core/text/json.h"
#include "multihead/look/look.h"

namespace multihead::look {

using RunModel = std::function<AttentionRun(const std::string& text, const Look& changes)>;

/// The answer to {"text": …, "off": ["LAYER.HEAD", …], "cut": [[layer, head, query, key], …]}: the runs, the changed
/// model's beside that of the model as it is. Throws FormatError, ValueError, and what `run` throws.
Json answer(const std::string& request, const RunModel& run);

}  // namespace multihead::look
