#include "cli/verb.h"
#include "multihead/core/json.h"

namespace multihead::cli {

using train::parse_integer;
using train::parse_number;

void Flags::text(const char* name, const char* value, std::string& target, const char* help) {
  add({.name = name, .value = value, .help = help, .initial = target, .set = [&target](std::string_view v) {
         target = v;
       }});
}

void Flags::integer(const char* name, int64_t& target, const char* help) {
  add({.name = name,
       .value = "N",
       .help = help,
       .initial = std::to_string(target),
       .set = [&target, name](std::string_view v) { target = parse_integer(concat("--", name), v); }});
}

void Flags::number(const char* name, double& target, const char* help) {
  add({.name = name,
       .value = "X",
       .help = help,
       .initial = Json(target).dump(),
       .set = [&target, name](std::string_view v) { target = parse_number(concat("--", name), v); }});
}

void Flags::flag(const char* name, bool& target, const char* help) {
  add({.name = name, .help = help, .set = [&target](std::string_view v) { target = v != "false"; }});
}

void Flags::choice(const char* name, std::string& target, std::vector<std::string> names, const char* help) {
  auto set = [&target, name, names](std::string_view v) {
    for (const std::string& allowed : names) {
      if (allowed == v) {
        target = v;
        return;
      }
    }
    std::string all;
    for (const std::string& allowed : names) all += (all.empty() ? "" : ", ") + allowed;
    throw UsageError(concat("--", name, " must be one of ", all, "; got ", quote(v)));
  };
  add({.name = name,
       .value = "NAME",
       .help = help,
       .initial = target,
       .choices = std::move(names),
       .set = set});
}

void Flags::positional(const char* name, std::string& target, const char* help, bool required) {
  add({.name = name,
       .value = name,
       .help = help,
       .initial = target,
       .positional = true,
       .required = required,
       .set = [&target](std::string_view v) { target = v; }});
}

void Flags::positionals(const char* name, std::vector<std::string>& target, const char* help) {
  add({.name = name,
       .value = name,
       .help = help,
       .positional = true,
       .many = true,
       .set = [&target](std::string_view v) { target.emplace_back(v); }});
}

}  // namespace multihead::cli
