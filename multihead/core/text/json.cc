#include "multihead/core/text/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <ostream>

#include "multihead/core/error.h"
#include "multihead/core/seeded_hash-inl.h"

namespace multihead {
namespace {

// A long text, an array or an object points to this; its elements follow in the same memory, and behind the
// members of an object that has room for many, the index. Elements may be moved by copying their bytes, so
// that a growing list is not there twice (realloc moves pages).
struct Head {
  uint32_t size = 0, capacity = 0;
};

template <class T>
T* elements(Head* head) {
  return reinterpret_cast<T*>(head + 1);
}

template <class T>
std::span<T> all(Head* head) {
  return head == nullptr ? std::span<T>() : std::span<T>(elements<T>(head), head->size);
}

// The index is a hash table of the members' numbers + 1 (0: free); below this a scan over the keys is faster,
// and most objects are small.
constexpr size_t kIndexedFrom = 16;

size_t slot_count(size_t capacity) {
  return capacity < kIndexedFrom ? 0 : std::bit_ceil(capacity + capacity / 2);
}

uint32_t* slots(Head* head) {
  return reinterpret_cast<uint32_t*>(elements<JsonMember>(head) + head->capacity);
}

// The slot of a key, or the free one where it belongs.
uint32_t* slot_of(Head* head, std::string_view key) {
  const size_t mask = slot_count(head->capacity) - 1;
  for (size_t at = detail::seeded_hash(key) & mask;; at = (at + 1) & mask) {
    uint32_t* slot = slots(head) + at;
    if (*slot == 0 || elements<JsonMember>(head)[*slot - 1].key == key) return slot;
  }
}

void build_index(Head* head) {
  std::fill_n(slots(head), slot_count(head->capacity), 0);
  if (head->capacity < kIndexedFrom) return;
  for (uint32_t i = 0; i < head->size; ++i) *slot_of(head, elements<JsonMember>(head)[i].key) = i + 1;
}

// The number of a key's member; the size if there is none.
size_t position(Head* head, std::string_view key) {
  const auto members = all<JsonMember>(head);
  if (head == nullptr || head->capacity < kIndexedFrom) {
    const auto found = std::find_if(members.begin(), members.end(), [&](auto& m) { return m.key == key; });
    return static_cast<size_t>(found - members.begin());
  }
  const uint32_t number = *slot_of(head, key);
  return number == 0 ? members.size() : number - 1;
}

template <class T>
Head* with_capacity(Head* head, size_t capacity) {
  if (capacity > std::numeric_limits<uint32_t>::max()) throw std::bad_alloc();
  const size_t index = std::same_as<T, JsonMember> ? slot_count(capacity) * sizeof(uint32_t) : 0;
  void* memory = std::realloc(static_cast<void*>(head), sizeof(Head) + capacity * sizeof(T) + index);
  if (memory == nullptr) throw std::bad_alloc();
  Head* grown = head == nullptr ? new (memory) Head : static_cast<Head*>(memory);
  grown->capacity = static_cast<uint32_t>(capacity);
  if (index > 0) build_index(grown);
  return grown;
}

}  // namespace

Json::Json(Mark mark, int64_t payload) {
  bytes_[0] = mark;
  std::memcpy(bytes_ + 8, &payload, sizeof payload);
}

Json::Json(std::string_view value) {
  if (value.size() < kLongText) {
    bytes_[0] = static_cast<unsigned char>(value.size());
    std::copy(value.begin(), value.end(), bytes_ + 1);
    return;
  }
  *this = of_characters(kLongText, value);
}

Json Json::of_characters(Mark mark, std::string_view characters) {
  Head* head = with_capacity<char>(nullptr, characters.size());
  head->size = head->capacity;
  std::copy(characters.begin(), characters.end(), elements<char>(head));
  return {mark, reinterpret_cast<intptr_t>(head)};
}

Json::Json(const JsonText& value) : Json(value.value_) {}

Json::Json(std::vector<Json> items) : Json(kArray, 0) {
  for (Json& item : items) append(std::move(item));
}

Json Json::object(std::initializer_list<JsonMember> members) {
  Json json = object();
  for (const JsonMember& member : members) json[member.key] = member.value;
  return json;
}

Json::Json(float value) : Json(static_cast<double>(value)) {
  if (!std::isfinite(value)) return;
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  double decimal = 0;
  std::from_chars(buffer, end, decimal);
  *this = Json(decimal);
}

Json::Json(const Json& other) : Json() {
  if (other.bytes_[0] == kLongText) {
    *this = Json(other.text());
  } else if (other.bytes_[0] == kDigits) {
    *this = of_characters(kDigits, other.digits());
  } else if (other.is_array()) {
    *this = array();
    reserve(other.size());
    for (const Json& item : other.items()) append(Json(item));
  } else if (other.is_object()) {
    *this = object();
    reserve(other.size());
    for (const JsonMember& member : other.members()) *insert(member.key) = member.value;
  } else {
    std::copy(std::begin(other.bytes_), std::end(other.bytes_), bytes_);
  }
}

Json::~Json() {
  if (bytes_[0] < kLongText || bytes_[0] > kObject) return;
  auto* head = payload<Head*>();
  const auto destroy = [](auto elements) { std::destroy(elements.begin(), elements.end()); };
  if (is_array()) destroy(all<Json>(head));
  if (is_object()) destroy(all<JsonMember>(head));
  std::free(head);
}

int64_t Json::too_large(uint64_t value) {
  throw ValueError(concat("json: integer ", value, " does not fit 63 bits"));
}

Json::Kind Json::kind() const {
  constexpr Kind kKinds[] = {Kind::string, Kind::number,  Kind::array,   Kind::object,
                             Kind::null,   Kind::boolean, Kind::integer, Kind::number};
  return kKinds[std::max<int>(bytes_[0], kLongText) - kLongText];
}

void Json::expect(Kind wanted) const {
  MH_CHECK(kind() == wanted, FormatError, "json: expected ", name(wanted), ", got ", name(kind()));
}

std::string_view Json::text() const {
  expect(Kind::string);
  if (bytes_[0] < kLongText) return {reinterpret_cast<const char*>(bytes_ + 1), bytes_[0]};
  const auto characters = all<const char>(payload<Head*>());
  return {characters.data(), characters.size()};
}

std::string_view Json::digits() const {
  if (bytes_[0] != kDigits) return {};
  const auto characters = all<const char>(payload<Head*>());
  return {characters.data(), characters.size()};
}

bool Json::as_bool() const {
  expect(Kind::boolean);
  return payload<int64_t>() != 0;
}

int64_t Json::as_int() const {
  expect(Kind::integer);
  return payload<int64_t>();
}

double Json::as_double() const {
  if (is_integer()) return static_cast<double>(payload<int64_t>());
  expect(Kind::number);
  const std::string_view spelled = digits();
  double value = payload<double>();
  if (!spelled.empty()) std::from_chars(spelled.data(), spelled.data() + spelled.size(), value);
  return value;
}

std::span<const Json> Json::items() const {
  expect(Kind::array);
  return all<const Json>(payload<Head*>());
}

std::span<const JsonMember> Json::members() const {
  expect(Kind::object);
  return all<const JsonMember>(payload<Head*>());
}

size_t Json::size() const { return is_array() ? items().size() : is_object() ? members().size() : 0; }

void Json::reserve(size_t capacity) {
  auto* head = payload<Head*>();
  if (capacity == (head == nullptr ? 0 : head->capacity)) return;
  head = is_array() ? with_capacity<Json>(head, capacity) : with_capacity<JsonMember>(head, capacity);
  const auto address = reinterpret_cast<intptr_t>(head);
  std::memcpy(bytes_ + 8, &address, sizeof address);
}

Json* Json::append(Json&& value) {
  if (const auto* head = payload<Head*>(); head == nullptr || head->size == head->capacity) {
    reserve(size() < 4 ? size() + 1 : size() + size() / 2);
  }
  auto* head = payload<Head*>();
  return new (elements<Json>(head) + head->size++) Json(std::move(value));
}

Json* Json::insert(std::string_view key) {
  auto* head = payload<Head*>();
  const size_t count = size();
  if (position(head, key) < count) return nullptr;
  JsonMember member(key, Json());
  if (head == nullptr || count == head->capacity) reserve(count < 4 ? count + 1 : count + count / 2);
  head = payload<Head*>();
  if (head->capacity >= kIndexedFrom) *slot_of(head, key) = static_cast<uint32_t>(count + 1);
  ++head->size;
  return &(new (elements<JsonMember>(head) + count) JsonMember(std::move(member)))->value;
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  const size_t at = position(payload<Head*>(), key);
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
  if (is_null()) *this = object();
  MH_CHECK(is_object(), FormatError, "json: expected an object to hold ", quote(key), ", got ", name(kind()));
  Json* added = insert(key);
  return added != nullptr ? *added : const_cast<Json&>(*find(key));
}

bool Json::erase(std::string_view key) {
  if (find(key) == nullptr) return false;
  auto* head = payload<Head*>();
  const auto members = all<JsonMember>(head);
  const auto first = members.begin() + static_cast<std::ptrdiff_t>(position(head, key));
  std::rotate(first, first + 1, members.end());
  std::destroy_at(&members.back());
  --head->size;
  build_index(head);
  return true;
}

void Json::push_back(Json value) {
  if (is_null()) *this = array();
  expect(Kind::array);
  append(std::move(value));
}

bool Json::operator==(const Json& other) const {
  if (kind() != other.kind() || size() != other.size()) return false;
  if (is_string()) return text() == other.text();
  if (is_array()) return std::equal(items().begin(), items().end(), other.items().begin());
  if (is_object()) {
    return std::all_of(members().begin(), members().end(), [&](const JsonMember& member) {
      const Json* theirs = other.find(member.key);
      return theirs != nullptr && member.value == *theirs;
    });
  }
  if (is_null() || is_bool()) return is_null() || as_bool() == other.as_bool();
  if (is_integer()) return as_int() == other.as_int();
  const bool is_large = !digits().empty() || !other.digits().empty();
  return is_large ? digits() == other.digits() : as_double() == other.as_double();
}

Json number_or_null(double x) { return std::isfinite(x) ? Json(x) : Json(); }

std::string_view name(Json::Kind kind) {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "an array",  "an object"};
  return kNames[static_cast<size_t>(kind)];
}

std::ostream& operator<<(std::ostream& out, const JsonText& text) { return out << text.view(); }

std::ostream& operator<<(std::ostream& out, const Json& json) { return out << json.dump(); }

}  // namespace multihead
