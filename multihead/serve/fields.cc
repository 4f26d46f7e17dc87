#include <algorithm>
#include <stdexcept>

#include "multihead/core/error.h"
#include "multihead/serve/fields-inl.h"

namespace multihead::serve {
namespace {

Json parse_body(const std::string& body) {
  try {
    Json json = Json::parse(body, "the request's body");
    if (!json.is_object())
      throw ApiError(400, concat("the request's body must be a JSON object, got ", name(json.kind())));
    return json;
  } catch (const FormatError& error) {
    throw ApiError(400, error.what());
  }
}

}  // namespace

Fields::Fields(const HttpRequest& request)
    : body_(parse_body(request.body)), json_(*body_), path_(request.path) {}

Fields::Fields(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
  if (!json.is_object()) {
    const std::string what = place_.substr(0, place_.size() - 1);
    throw ApiError(400, concat(what, " must be an object, got ", multihead::name(json.kind())), what);
  }
}

const Json* Fields::find(std::string_view key) {
  if (path_ && !is_described(*path_, key))
    throw std::logic_error(concat(*path_, " reads ", quote(key), ", which openapi.cc does not describe"));
  read_.emplace(key);
  const Json* value = json_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void Fields::refuse(std::string_view key, const std::string& expected) const {
  const Json* value = json_.find(key);
  const std::string got = value == nullptr || value->is_null() ? "nothing" : quote(value->dump(), 60);
  throw ApiError(400, concat(name(key), " must be ", expected, ", got ", got), name(key), "invalid_value");
}

const Json& Fields::required(std::string_view key) {
  const Json* value = find(key);
  if (value == nullptr) throw ApiError(400, concat(name(key), " is missing"), name(key), "missing_parameter");
  return *value;
}

bool Fields::boolean(std::string_view key, bool otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) refuse(key, "true or false");
  return value->as_bool();
}

int64_t Fields::integer(std::string_view key, int64_t otherwise, int64_t least, int64_t most) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_integer() || value->as_int() < least || value->as_int() > most)
    refuse(key, concat("an integer from ", least, " to ", most));
  return value->as_int();
}

double Fields::number(std::string_view key, double otherwise, double least, double most) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !(value->as_double() >= least && value->as_double() <= most))
    refuse(key, concat("a number from ", least, " to ", most));
  return value->as_double();
}

std::string Fields::text(std::string_view key, const std::string& otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) refuse(key, "a text");
  return value->as_string();
}

std::string Fields::required_text(std::string_view key) {
  required(key);
  return text(key);
}

std::vector<std::string> Fields::texts(std::string_view key, size_t most) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->as_string()};
  const bool fits = value->is_array() && value->size() <= most;
  if (!fits || !std::ranges::all_of(value->items(), [](const Json& item) { return item.is_string(); }))
    refuse(key, concat("a text or at most ", most, " of them"));
  std::vector<std::string> list;
  for (const Json& item : value->items()) list.push_back(item.as_string());
  return list;
}

void Fields::only(std::string_view key, std::initializer_list<Json> values) {
  const Json* value = find(key);
  const auto is_given = [value](const Json& one) {
    return one == *value || (one.is_number() && value->is_number() && one.as_double() == value->as_double());
  };
  if (value == nullptr || std::any_of(values.begin(), values.end(), is_given)) return;
  std::string list;
  for (const Json& one : values) list += (list.empty() ? "" : " or ") + one.dump();
  throw ApiError(400, concat(name(key), " is supported only as ", list, ", got ", quote(value->dump(), 60)),
                 name(key), "unsupported_parameter");
}

void Fields::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) find(key);
}

void Fields::finish() const {
  for (const auto& [key, value] : json_.members()) {
    if (read_.contains(key.view()) || value.is_null()) continue;
    throw ApiError(400, concat(quote(name(key.view())), " is not supported"), name(key.view()),
                   "unsupported_parameter");
  }
}

}  // namespace multihead::serve
