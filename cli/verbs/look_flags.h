// The flags of verbs that show a model's attention.
#pragma once

#include <string>

#include "cli/model_dir.h"
#include "multihead/look/attention_page.h"
#include "multihead/look/look.h"

namespace multihead::cli {

/// --layers, --heads and --rows.
struct Selection {
  std::string layers = {}, heads = {}, rows = {};

  void declare(Flags& flags, bool has_rows = true);
  /// Throws UsageError naming the flag and the range.
  look::Look of(int64_t layers_of_model, int64_t heads_of_model, int64_t tokens) const;
};

/// Runs the model with `changes` and records the selection, and measures if they cost less than `most_cost`
/// operations.
/// Throws UsageError.
look::AttentionRun look_at(const LoadedModel& loaded, const std::string& text, const Selection& selection,
                           double most_cost, const look::Look& changes = {});

/// Throws InputError if the model's folder made weights that are no numbers.
void check_numbers(const std::string& folder, const look::AttentionRun& run);
/// "Attention of model: the text"
std::string page_title(const std::string& folder, const std::string& text);

}  // namespace multihead::cli
