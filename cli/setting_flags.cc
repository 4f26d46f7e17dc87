#include "cli/setting_flags.h"

#include <unistd.h>

#include "multihead/io/json.h"
#include "multihead/train/run.h"

namespace multihead::cli {

void SettingFlags::declare(Flags& flags, const std::vector<train::Field>& fields) {
  for (const train::Field& field : fields) {
    Flag flag{.name = field.name, .value = "N", .help = field.help, .initial = {}, .set = {}};
    if (std::holds_alternative<double*>(field.value)) flag.value = "X";
    if (std::holds_alternative<bool*>(field.value)) flag.value = "true|false";
    if (const auto* choice = std::get_if<train::Choice>(&field.value)) {
      flag.value = "NAME";
      flag.choices = choice->names;
    }
    const std::string name = field.name;
    flag.set = [this, name](std::string_view text) { given_.emplace_back(name, text); };
    flags.add(std::move(flag));
  }
}

void SettingFlags::apply(const std::vector<train::Field>& fields) const {
  for (const auto& [name, text] : given_) {
    for (const train::Field& field : fields) {
      if (field.name == name) train::assign(field, std::string_view(text));
    }
  }
}

std::string path_of(const Json& record, const char* key) {
  return reading([&] { return io::path_from_json(record.at(key)); });
}

std::optional<Json> read_run_record(const std::string& folder, bool resume,
                                    const std::vector<train::Field>& fields) {
  const std::string record = folder + "/" + train::kRunFile;
  if (!resume || access(record.c_str(), F_OK) != 0) return std::nullopt;
  Json json = reading([&] { return io::load_json(record); });
  reading([&] { train::assign_all(fields, json.at("settings"), record); });
  return json;
}

}  // namespace multihead::cli
