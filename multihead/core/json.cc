#include "multihead/core/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <ostream>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/json_list-inl.h"

namespace multihead {
namespace {

// Below this a scan over the keys is faster than the index, and most objects are small.
constexpr size_t kIndexedFrom = 16;

// Murmur's mix of eight bytes at a time, from a number that no file can know.
uint32_t hash_of(std::string_view key) {
  static const uint64_t seed = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  uint64_t hash = seed ^ key.size();
  for (size_t at = 0; at < key.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, key.data() + at, std::min<size_t>(8, key.size() - at));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  hash *= 0xD6E8FEB86659FD93u;
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

JsonText::JsonText(std::string_view text) {
  if (text.size() < kLong) {
    bytes_[0] = static_cast<unsigned char>(text.size());
    std::copy(text.begin(), text.end(), bytes_ + 1);
    return;
  }
  auto* memory = static_cast<char*>(std::malloc(sizeof(size_t) + text.size()));
  if (memory == nullptr) throw std::bad_alloc();
  const size_t size = text.size();
  std::memcpy(memory, &size, sizeof size);
  std::memcpy(memory + sizeof size, text.data(), size);
  bytes_[0] = kLong;
  std::memcpy(bytes_ + 8, &memory, sizeof memory);
}

JsonText::JsonText(const JsonText& other) {
  if (other.bytes_[0] == kLong) {
    JsonText copy(other.view());
    std::swap(bytes_, copy.bytes_);
  } else {
    std::memcpy(bytes_, other.bytes_, sizeof bytes_);
  }
}

JsonText::JsonText(JsonText&& other) noexcept {
  std::memcpy(bytes_, other.bytes_, sizeof bytes_);
  other.bytes_[0] = 0;
}

JsonText& JsonText::operator=(JsonText other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

JsonText::~JsonText() {
  if (bytes_[0] != kLong) return;
  char* memory;
  std::memcpy(&memory, bytes_ + 8, sizeof memory);
  std::free(memory);
}

JsonText::operator std::string_view() const {
  if (bytes_[0] < kLong) return {reinterpret_cast<const char*>(bytes_ + 1), bytes_[0]};
  const char* memory;
  std::memcpy(&memory, bytes_ + 8, sizeof memory);
  size_t size;
  std::memcpy(&size, memory, sizeof size);
  return {memory + sizeof size, size};
}

size_t JsonText::bytes() const { return bytes_[0] == kLong ? sizeof(size_t) + view().size() : 0; }

std::ostream& operator<<(std::ostream& out, const JsonText& text) { return out << text.view(); }

size_t JsonIndex::find(std::span<const JsonMember> members, std::string_view key) const {
  for (uint32_t at = hash_of(key) & mask_; slots_[at] != 0; at = (at + 1) & mask_) {
    const uint32_t number = slots_[at] - 1;
    if (members[number].key == key) return number;
  }
  return members.size();
}

void JsonIndex::put(std::string_view key, uint32_t number) {
  uint32_t at = hash_of(key) & mask_;
  while (slots_[at] != 0) at = (at + 1) & mask_;
  slots_[at] = number + 1;
}

void JsonIndex::add(std::span<const JsonMember> members) {
  // At most three quarters are taken.
  if (slots_ == nullptr || 4 * uint64_t{members.size()} > 3 * (uint64_t{mask_} + 1)) return build(members);
  put(members.back().key, static_cast<uint32_t>(members.size() - 1));
}

void JsonIndex::build(std::span<const JsonMember> members) {
  const size_t slots = std::bit_ceil(members.size() + members.size() / 2);
  auto* memory = static_cast<uint32_t*>(std::calloc(slots, sizeof(uint32_t)));
  if (memory == nullptr) throw std::bad_alloc();
  std::free(slots_);
  slots_ = memory;
  mask_ = static_cast<uint32_t>(slots - 1);
  for (size_t i = 0; i < members.size(); ++i) put(members[i].key, static_cast<uint32_t>(i));
}

JsonObject::JsonObject(const JsonObject& other) : JsonList(other) {
  if (size() >= kIndexedFrom) extra().build(all());
}

size_t JsonObject::position(std::string_view key) const {
  const auto members = all();
  if (!members.empty() && extra().is_built()) return extra().find(members, key);
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const JsonMember& m) { return m.key == key; });
  return static_cast<size_t>(found - members.begin());
}

JsonMember* JsonObject::insert(std::string_view key) {
  if (position(key) < size()) return nullptr;
  JsonMember& member = push_back({key, Json()});
  if (size() >= kIndexedFrom) extra().add(all());
  return &member;
}

Json::Json(Mark mark, int64_t payload) {
  slot_.bytes_[0] = mark;
  std::memcpy(slot_.bytes_ + 8, &payload, sizeof payload);
}

Json::Json(std::vector<Json> items) : Json(kArray, 0) {
  for (Json& item : items) list<JsonArray>().push_back(std::move(item));
}

Json::Json(const Json& other) : Json() {
  if (other.is_array()) {
    new (slot_.bytes_ + 8) JsonArray(other.list<JsonArray>());
  } else if (other.is_object()) {
    new (slot_.bytes_ + 8) JsonObject(other.list<JsonObject>());
  } else {
    slot_ = other.slot_;
  }
  if (other.is_array() || other.is_object()) slot_.bytes_[0] = other.mark();
}

Json::Json(Json&& other) noexcept : slot_(std::move(other.slot_)) { other.slot_.bytes_[0] = kNull; }

Json& Json::operator=(Json other) noexcept {
  std::swap(slot_.bytes_, other.slot_.bytes_);
  return *this;
}

Json::~Json() {
  if (is_array()) std::destroy_at(&list<JsonArray>());
  if (is_object()) std::destroy_at(&list<JsonObject>());
}

Json::Kind Json::kind() const {
  return mark() <= JsonText::kLong ? Kind::string
         : mark() < kArray         ? static_cast<Kind>(mark() - kNull)
                                   : static_cast<Kind>(mark() - kNull + 1);  // texts stand between
}

// Only of null.
void Json::become(Mark mark) { *this = Json(mark, 0); }

Json* Json::insert(std::string_view key) {
  JsonMember* member = list<JsonObject>().insert(key);
  return member == nullptr ? nullptr : &member->value;
}

void Json::fit() { is_array() ? list<JsonArray>().fit() : list<JsonObject>().fit(); }

Json::Json(float value) : Json(static_cast<double>(value)) {
  if (!std::isfinite(value)) return;
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  double decimal = 0;
  std::from_chars(buffer, end, decimal);
  *this = Json(decimal);
}

Json Json::object(std::initializer_list<JsonMember> members) {
  Json json = object();
  for (const JsonMember& member : members) json[member.key] = member.value;
  return json;
}

int64_t Json::checked_unsigned(uint64_t value) {
  MH_CHECK(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), ValueError, "json: integer ",
           value, " does not fit 63 bits");
  return static_cast<int64_t>(value);
}

bool Json::as_bool() const {
  MH_CHECK(is_bool(), FormatError, "json: expected a boolean, got ", name(kind()));
  return payload<int64_t>() != 0;
}

int64_t Json::as_int() const {
  MH_CHECK(is_integer(), FormatError, "json: expected an integer, got ", name(kind()));
  return payload<int64_t>();
}

double Json::as_double() const {
  MH_CHECK(is_number(), FormatError, "json: expected a number, got ", name(kind()));
  return is_integer() ? static_cast<double>(payload<int64_t>()) : payload<double>();
}

std::string Json::as_string() const {
  MH_CHECK(is_string(), FormatError, "json: expected a string, got ", name(kind()));
  return slot_;
}

std::span<const Json> Json::items() const {
  MH_CHECK(is_array(), FormatError, "json: expected an array, got ", name(kind()));
  return list<JsonArray>().all();
}

std::span<const JsonMember> Json::members() const {
  MH_CHECK(is_object(), FormatError, "json: expected an object, got ", name(kind()));
  return list<JsonObject>().all();
}

size_t Json::size() const { return is_array() ? items().size() : is_object() ? members().size() : 0; }

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  const size_t at = list<JsonObject>().position(key);
  return at < size() ? &members()[at].value : nullptr;
}

const Json& Json::at(std::string_view key) const {
  MH_CHECK(is_object(), FormatError, "json: expected an object with ", quote(key), ", got ", name(kind()));
  const Json* value = find(key);
  MH_CHECK(value != nullptr, FormatError, "json: no member ", quote(key));
  return *value;
}

const Json& Json::at(size_t index) const {
  MH_CHECK(index < items().size(), FormatError, "json: index ", index, " past the end of an array of ",
           items().size());
  return items()[index];
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) become(kObject);
  MH_CHECK(is_object(), FormatError, "json: expected an object to hold ", quote(key), ", got ", name(kind()));
  auto& object = list<JsonObject>();
  const size_t at = object.position(key);
  return at < object.size() ? object.all()[at].value : object.insert(key)->value;
}

bool Json::erase(std::string_view key) {
  if (find(key) == nullptr) return false;
  auto& object = list<JsonObject>();
  object.erase(object.position(key));
  if (object.extra().is_built()) object.extra().build(object.all());
  return true;
}

void Json::push_back(Json value) {
  if (is_null()) become(kArray);
  MH_CHECK(is_array(), FormatError, "json: expected an array, got ", name(kind()));
  list<JsonArray>().push_back(std::move(value));
}

bool Json::operator==(const Json& other) const {
  if (kind() != other.kind()) return false;
  if (is_object()) {
    if (size() != other.size()) return false;
    for (const JsonMember& member : members()) {
      const Json* theirs = other.find(member.key);
      if (theirs == nullptr || !(member.value == *theirs)) return false;
    }
    return true;
  }
  switch (kind()) {
    case Kind::boolean:
      return as_bool() == other.as_bool();
    case Kind::integer:
      return as_int() == other.as_int();
    case Kind::number:
      return as_double() == other.as_double();
    case Kind::string:
      return slot_ == other.slot_.view();
    case Kind::array:
      return std::ranges::equal(items(), other.items());
    default:
      return true;
  }
}

Json number_or_null(double x) { return std::isfinite(x) ? Json(x) : Json(); }

std::string_view name(Json::Kind kind) {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "an array",  "an object"};
  return kNames[static_cast<size_t>(kind)];
}

std::ostream& operator<<(std::ostream& out, const Json& json) { return out << json.dump(); }

}  // namespace multihead
