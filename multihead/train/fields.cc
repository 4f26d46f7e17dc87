#include "multihead/train/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"

namespace multihead::train {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string key_of(const Field& field) {
  std::string key = field.name;
  for (char& c : key) c = c == '-' ? '_' : c;
  return key;
}

bool choose(const Choice& choice, std::string_view name) {
  const auto found = std::find(choice.names.begin(), choice.names.end(), name);
  if (found == choice.names.end()) return false;
  choice.set(static_cast<size_t>(found - choice.names.begin()));
  return true;
}

// A whole number or a finite one: `kind` in messages.
template <class Number>
Number parse(std::string_view what, std::string_view text, const char* kind) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  MH_CHECK(error != std::errc::result_out_of_range, ValueError, what, " is out of range: ", quote(text));
  MH_CHECK(error == std::errc() && end == text.data() + text.size() && std::isfinite(value), ValueError, what,
           " must be a ", kind, ", got ", quote(text));
  return value;
}

}  // namespace

std::string current_name(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {{"ffn-width", "ff"},
                                                                        {"ffn_width", "ff"}};
  for (const auto& [before, now] : kRenamed) {
    if (name == before) return std::string(now);
  }
  return std::string(name);
}

void note_with_init(std::vector<Field>& list, std::string_view name, std::string words) {
  std::ranges::find(list, name, &Field::name)->with_init = std::move(words);
}

std::string text_of(const Field& field) {
  const Json value = to_json(field);
  return value.is_string() ? value.as_string() : value.dump();
}

int64_t parse_integer(std::string_view what, std::string_view text) {
  return parse<int64_t>(what, text, "whole number");
}

double parse_number(std::string_view what, std::string_view text) {
  return parse<double>(what, text, "number");
}

void assign(const Field& field, std::string_view text) {
  const std::string what = "--" + field.name;
  std::visit(Overloaded{
                 [&](int64_t* value) {
                   const int64_t given = parse_integer(what, text);
                   // -1 stands for what nobody has given.
                   MH_CHECK(field.least != -1 || given >= 0, ValueError, what, " must be at least 0, got ",
                            given);
                   *value = given;
                 },
                 [&](double* value) { *value = parse_number(what, text); },
                 [&](bool* value) {
                   MH_CHECK(text == "true" || text == "false", ValueError, what,
                            " must be true or false, got ", quote(text));
                   *value = text == "true";
                 },
                 [&](std::string* value) { *value = text; },
                 [&](const Choice& choice) {
                   MH_CHECK(choose(choice, text), ValueError, what, " must be ", one_of(choice.names),
                            ", got ", quote(text));
                 },
             },
             field.value);
}

void assign(const Field& field, const Json& json) {
  std::visit(Overloaded{
                 [&](int64_t* value) { *value = json.as_int(); },
                 [&](double* value) { *value = json.as_double(); },
                 [&](bool* value) { *value = json.as_bool(); },
                 [&](std::string* value) { *value = json.as_string(); },
                 [&](const Choice& choice) {
                   MH_CHECK(choose(choice, json.as_string()), FormatError, key_of(field), " must be ",
                            one_of(choice.names), ", got ", json.dump());
                 },
             },
             field.value);
}

Json to_json(const Field& field) {
  return std::visit(Overloaded{
                        [](const int64_t* value) { return Json(*value); },
                        [](const double* value) { return Json(*value); },
                        [](const bool* value) { return Json(*value); },
                        [](const std::string* value) { return Json(*value); },
                        [](const Choice& choice) { return Json(choice.names.at(choice.get())); },
                    },
                    field.value);
}

void check_least(const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    const auto* const* value = std::get_if<int64_t*>(&field.value);
    MH_CHECK(value == nullptr || **value >= field.least, ValueError, "train: --", field.name,
             " must be at least ", field.least, ", got ", **value);
  }
}

std::vector<Field> identity(std::vector<Field> fields) {
  std::erase_if(fields, [](const Field& field) { return field.free_on_resume; });
  return fields;
}

Json to_json(const std::vector<Field>& fields) {
  Json object = Json::object();
  for (const Field& field : fields) object[key_of(field)] = to_json(field);
  return object;
}

void assign_all(const std::vector<Field>& fields, const Json& object, std::string_view where) {
  for (const auto& [key, value] : object.members()) {
    const auto field = std::find_if(fields.begin(), fields.end(), [&, &key = key](const Field& f) {
      return key_of(f) == current_name(key);
    });
    MH_CHECK(field != fields.end(), FormatError, where, ": unknown setting ", quote(key));
    try {
      assign(*field, value);
    } catch (const FormatError& error) {
      throw FormatError(concat(where, ": ", quote(key), ": ", error.what()));
    }
  }
}

}  // namespace multihead::train
