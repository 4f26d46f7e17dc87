// How Json keeps elements and members: in one piece of memory that is as long as they are. Private to core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "multihead/core/json.h"

namespace multihead {

/// A pointer to sizes, `Extra` and elements. These are plain bytes to the allocator: a Json or a JsonText may
/// be moved by copying its bytes, so that a growing list is not there twice (realloc moves pages).
template <class T, class Extra>
class JsonList {
 public:
  JsonList() = default;
  JsonList(const JsonList& other) {
    reserve(other.size());
    for (const T& element : other.all()) push_back(T(element));
  }
  JsonList(JsonList&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  JsonList& operator=(const JsonList&) = delete;
  ~JsonList() {
    if (head_ == nullptr) return;
    std::destroy(elements(), elements() + size());
    head_->~Head();
    std::free(head_);
  }

  size_t size() const { return head_ == nullptr ? 0 : head_->size; }
  std::span<T> all() { return {elements(), size()}; }
  std::span<const T> all() const { return {elements(), size()}; }
  /// Only of a list that is not empty.
  Extra& extra() { return head_->extra; }
  const Extra& extra() const { return head_->extra; }

  T& push_back(T&& value) {
    if (head_ == nullptr || head_->size == head_->capacity) {
      reserve(size() < 4 ? size() + 1 : size() + size() / 2);
    }
    return *new (elements() + head_->size++) T(std::move(value));
  }
  void erase(size_t at) {
    T* first = elements();
    std::rotate(first + at, first + at + 1, first + size());
    std::destroy_at(first + --head_->size);
  }
  void fit() {
    if (head_ != nullptr && head_->capacity > head_->size) reserve(head_->size);
  }

 private:
  struct Head {
    uint32_t size = 0, capacity = 0;
    [[no_unique_address]] Extra extra;
  };
  static_assert(sizeof(Head) % alignof(T) == 0);

  T* elements() const { return reinterpret_cast<T*>(head_ + 1); }

  void reserve(size_t capacity) {
    if (capacity > std::numeric_limits<uint32_t>::max()) throw std::bad_alloc();
    if (capacity == 0) return;
    const bool fresh = head_ == nullptr;
    void* memory = std::realloc(static_cast<void*>(head_), sizeof(Head) + capacity * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    head_ = fresh ? new (memory) Head : static_cast<Head*>(memory);
    head_->capacity = static_cast<uint32_t>(capacity);
  }

  Head* head_ = nullptr;
};

/// Where a key stands among many members: a hash table of their numbers. The hash is keyed anew in every
/// process, so that no file can be made of keys that meet in one place.
class JsonIndex {
 public:
  JsonIndex() = default;
  JsonIndex(const JsonIndex&) = delete;
  JsonIndex& operator=(const JsonIndex&) = delete;
  ~JsonIndex() { std::free(slots_); }

  bool is_built() const { return slots_ != nullptr; }
  /// members.size() if there is no such key.
  size_t find(std::span<const JsonMember> members, std::string_view key) const;
  /// The last member is new.
  void add(std::span<const JsonMember> members);
  void build(std::span<const JsonMember> members);

 private:
  void put(std::string_view key, uint32_t number);
  uint32_t* slots_ = nullptr;  // number + 1; 0: free
  uint32_t mask_ = 0;          // slots - 1, a power of two
};

struct JsonNothing {};
struct JsonArray : JsonList<Json, JsonNothing> {
  using JsonList::JsonList;
};
/// Members in the order they came.
struct JsonObject : JsonList<JsonMember, JsonIndex> {
  using JsonList::JsonList;
  JsonObject() = default;
  JsonObject(const JsonObject& other);
  JsonObject(JsonObject&&) noexcept = default;
  size_t position(std::string_view key) const;
  /// Null if the key is there.
  JsonMember* insert(std::string_view key);
};
static_assert(sizeof(JsonArray) == 8 && sizeof(JsonObject) == 8 && sizeof(Json) == 16);

}  // namespace multihead
