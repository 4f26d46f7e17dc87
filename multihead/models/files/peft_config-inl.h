// adapter_config.json of PEFT. Internal to models.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace multihead::models::detail {

/// The fields that change results.
struct PeftConfig {
  std::string file;
  int64_t rank = 0;
  double factor = 0;                       ///< of B · A
  std::vector<std::string> targets = {};   ///< names of layers or their ends; empty: as `pattern` says
  std::optional<std::regex> pattern = {};  ///< of whole names, in place of `targets`; none: all
  std::vector<std::string> saved = {};     ///< modules_to_save: copies of their own, beside the model's
  std::vector<std::string> excluded = {};  ///< names as in `targets`
  std::set<int64_t> layers = {};           ///< numbers of the layers that change; empty: all
};

/// Throws IoError, FormatError naming the first key that asks for what is not supported, known or not.
PeftConfig load_peft_config(const std::string& folder);

/// Whether a layer is one of the names or ends in ".name".
bool is_named(const std::string& layer, const std::vector<std::string>& names);

}  // namespace multihead::models::detail
