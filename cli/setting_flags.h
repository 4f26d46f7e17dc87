// Training settings as flags: the same for every kind of run.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/verb.h"
#include "multihead/train/fields.h"

namespace multihead::cli {

/// Collects settings from the command line until their base (preset or resumed run) is known.
class SettingFlags {
 public:
  /// One flag per field.
  void declare(Flags& flags, const std::vector<train::Field>& fields);
  /// Throws ValueError naming flag and value.
  void apply(const std::vector<train::Field>& fields) const;

 private:
  std::vector<std::pair<std::string, std::string>> given_;
};

/// The record of the run in `folder`, if it is to be resumed and has one: {"data": …, "settings": …}, its
/// settings already assigned. Throws InputError.
std::optional<Json> read_run_record(const std::string& folder, bool resume,
                                    const std::vector<train::Field>& fields);
/// A path of that record. Throws InputError.
std::string path_of(const Json& record, const char* key);

}  // namespace multihead::cli
