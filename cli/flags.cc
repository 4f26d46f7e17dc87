#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/verb.h"
#include "multihead/core/text/json.h"

namespace multihead::cli {

namespace {

// "--samples must be in [1, 4096], got 5000"; without an upper end: "--seed must be at least 0, got -1".
template <class T, class Range>
T in_range(const char* name, T value, const Range& range, bool open) {
  if (value <= range.most && (open ? value > range.least : value >= range.least)) return value;
  std::string expected = concat(open ? "above " : "at least ", range.least);
  if (range.most < std::numeric_limits<T>::max()) {
    expected = concat("in ", open ? "(" : "[", range.least, ", ", range.most, "]");
  }
  throw UsageError(concat("--", name, " must be ", expected, ", got ", value));
}

}  // namespace

bool Flag::is_path() const {
  const auto kinds = {"FILE", "DIR", "PATH", "MODEL", "OUT"};
  return std::find(kinds.begin(), kinds.end(), value) != kinds.end();
}

void Flags::text(const char* name, const char* value, std::string& target, const char* help) {
  add({.name = name, .value = value, .help = help, .initial = target, .set = [&target](std::string_view v) {
         target = v;
       }});
}

void Flags::output(const char* name, const char* value, std::string& target, const char* help) {
  text(name, value, target, help);
  list_.back().writes = true;
}

Flag& Flags::integer(const char* name, int64_t& target, const char* help, IntegerRange range) {
  return add({.name = name,
              .value = "N",
              .help = help,
              .initial = std::to_string(target),
              .set = [&target, name, range](std::string_view v) {
                target = in_range(name, train::parse_integer(concat("--", name), v), range, false);
              }});
}

void Flags::number(const char* name, double& target, const char* help, NumberRange range) {
  add({.name = name,
       .value = "X",
       .help = help,
       .initial = Json(target).dump(),
       .set = [&target, name, range](std::string_view v) {
         target = in_range(name, train::parse_number(concat("--", name), v), range, range.open);
       }});
}

void Flags::flag(const char* name, bool& target, const char* help) {
  add({.name = name, .help = help, .set = [&target, name](std::string_view v) {
         if (v != "true" && v != "false") {
           throw UsageError(concat("--", name, " must be true or false, got ", quote(v)));
         }
         target = v == "true";
       }});
}

void Flags::choice(const char* name, std::string& target, std::vector<std::string> names, const char* help) {
  auto set = [&target, name, names](std::string_view v) {
    if (std::find(names.begin(), names.end(), v) == names.end()) {
      throw UsageError(fmt::format("--{} must be one of {}; got {}", name, fmt::join(names, ", "), quote(v)));
    }
    target = v;
  };
  add({.name = name,
       .value = "NAME",
       .help = help,
       .initial = target,
       .choices = std::move(names),
       .set = set});
}

Flag& Flags::positional(const char* name, std::string& target, const char* help, bool required) {
  return add({.name = name,
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

void Flags::texts(const char* name, const char* value, std::vector<std::string>& target, const char* help) {
  add({.name = name, .value = value, .help = help, .many = true, .set = [&target](std::string_view v) {
         target.emplace_back(v);
       }});
}

void Flags::repeated(const char* name, const char* value, std::vector<std::string>& target,
                     const char* help) {
  add({.name = name, .value = value, .help = help, .repeats = true, .set = [&target](std::string_view v) {
         target.emplace_back(v);
       }});
}

void Flags::setting(const train::Field& field, bool needs_init) {
  Flag flag{.name = field.name, .value = "N", .help = field.help, .initial = {}, .set = {}};
  if (field.least != -1 || train::to_json(field).as_int() >= 0) flag.initial = train::text_of(field);
  if (!field.with_init.empty() && field.with_init != flag.initial)
    flag.initial = needs_init ? field.with_init : concat(flag.initial, "; with --init ", field.with_init);
  if (std::holds_alternative<double*>(field.value)) flag.value = "X";
  if (std::holds_alternative<bool*>(field.value)) flag.value = "true|false";
  if (std::holds_alternative<std::string*>(field.value)) flag.value = "TEXT";
  if (const auto* choice = std::get_if<train::Choice>(&field.value)) {
    flag.value = "NAME";
    flag.choices = choice->names;
  }
  flag.set = [field](std::string_view text) { train::assign(field, text); };
  add(std::move(flag));
}

void GivenFlags::declare(Flags& flags, const std::function<void(Flags&)>& declare) {
  Flags own;
  declare(own);
  for (Flag flag : own.list()) {
    flag.set = [this, set = flag.set](std::string_view value) {
      set(value);
      given_.emplace_back([set, text = std::string(value)] { set(text); });
    };
    flags.add(std::move(flag));
  }
}

}  // namespace multihead::cli
