#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/gguf.h"

namespace multihead::io {
namespace {

constexpr uint64_t kAlignment = 32;
constexpr int64_t kPieceNumbers = 1 << 18;  // that are encoded at once

// The bytes of the header.
class Header {
 public:
  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void string(std::string_view text) {
    number<uint64_t>(text.size());
    bytes_.append(text);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

enum Kind : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

template <class T>
T narrow(const std::string& key, int64_t value) {
  MH_CHECK(std::in_range<T>(value), ValueError, "GGUF: ", key, " does not fit its 32 bits: ", value);
  return static_cast<T>(value);
}

struct PutValue {
  Header& header;
  const std::string& key;

  void operator()(int64_t value) const {
    header.number<uint32_t>(kU32);
    header.number(narrow<uint32_t>(key, value));
  }
  void operator()(double value) const {
    header.number<uint32_t>(kF32);
    header.number(static_cast<float>(value));
  }
  void operator()(bool value) const {
    header.number<uint32_t>(kBool);
    header.number<uint8_t>(value);
  }
  void operator()(const std::string& value) const {
    header.number<uint32_t>(kString);
    header.string(value);
  }
  void operator()(const std::vector<int64_t>& values) const {
    array(kI32, values.size());
    for (const int64_t value : values) header.number(narrow<int32_t>(key, value));
  }
  void operator()(const std::vector<std::string>& values) const {
    array(kString, values.size());
    for (const std::string& value : values) header.string(value);
  }

 private:
  void array(Kind kind, size_t count) const {
    header.number<uint32_t>(kArray);
    header.number<uint32_t>(kind);
    header.number<uint64_t>(count);
  }
};

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t blocks_of(const GgufContents::Stored& stored) {
  const int64_t row = stored.tensor.rank() == 0 ? 1 : stored.tensor.size(stored.tensor.rank() - 1);
  MH_CHECK(row % stored.type->block == 0, ValueError, "GGUF: ", stored.name, ": rows of ", row,
           " numbers are not whole blocks of ", stored.type->block, " (", stored.type->name, ")");
  return stored.tensor.numel() / stored.type->block;
}

std::string header_of(const GgufContents& contents) {
  Header header;
  for (const char letter : {'G', 'G', 'U', 'F'}) header.number(letter);
  header.number<uint32_t>(3);
  header.number<uint64_t>(contents.tensors.size());
  header.number<uint64_t>(contents.metadata.size());
  for (const auto& [key, value] : contents.metadata) {
    header.string(key);
    std::visit(PutValue{header, key}, value);
  }
  uint64_t offset = 0;
  for (const GgufContents::Stored& stored : contents.tensors) {
    header.string(stored.name);
    header.number(static_cast<uint32_t>(stored.tensor.rank()));
    for (int axis = stored.tensor.rank(); axis-- > 0;) {
      header.number(static_cast<uint64_t>(stored.tensor.size(axis)));
    }
    header.number(stored.type->id);
    header.number(offset);
    offset += aligned(static_cast<uint64_t>(blocks_of(stored) * stored.type->bytes));
  }
  return header.bytes();
}

void pad(FileWriter& file) {
  const char zeros[kAlignment] = {};
  file.write(zeros, aligned(file.size()) - file.size());
}

// Numbers, and scales of blocks, may be too large for 16 bits.
void check_range(const GgufContents::Stored& stored, const float* numbers, const uint8_t* bytes,
                 int64_t blocks) {
  const BlockFormat& type = *stored.type;
  std::vector<float> kept(static_cast<size_t>(blocks * type.block));
  type.decode(bytes, blocks, kept.data());
  for (size_t i = 0; i < kept.size(); ++i) {
    MH_CHECK(std::isfinite(kept[i]) || !std::isfinite(numbers[i]), ValueError, "GGUF: ", stored.name,
             " holds ", numbers[i], ", which is too large for ", type.name, "; write it as F32 or BF16");
  }
}

void write_tensor(FileWriter& file, const GgufContents::Stored& stored) {
  const BlockFormat& type = *stored.type;
  const Tensor tensor = stored.tensor.contiguous();
  const float* numbers = tensor.data<float>();
  MH_CHECK(type.block == 1 ||
               std::all_of(numbers, numbers + tensor.numel(), [](float x) { return std::isfinite(x); }),
           ValueError, "GGUF: ", stored.name, " holds NaN or Inf, which ", type.name, " cannot express");
  const int64_t blocks = blocks_of(stored), step = kPieceNumbers / type.block;
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min(step, blocks) * type.bytes));
  for (int64_t begin = 0; begin < blocks; begin += step) {
    const int64_t count = std::min(step, blocks - begin);
    const float* own = numbers + begin * type.block;
    type.encode(own, count, bytes.data());
    check_range(stored, own, bytes.data(), count);
    file.write(bytes.data(), static_cast<size_t>(count * type.bytes));
  }
  pad(file);
}

}  // namespace

const BlockFormat& writable_gguf_type(std::string_view name) {
  std::string upper(name);
  Enumeration known;
  for (char& letter : upper) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  for (const BlockFormat& type : block_formats()) {
    if (type.encode == nullptr) continue;
    if (upper == type.name) return type;
    known.add(type.name);
  }
  throw ValueError(concat("a GGUF file is written in one of ", known, ", not in ", quote(name)));
}

void write_gguf(const std::string& path, const GgufContents& contents) {
  const std::string header = header_of(contents);
  write_file_atomically(path, [&](FileWriter& file) {
    file.write(header);
    pad(file);
    for (const GgufContents::Stored& stored : contents.tensors) write_tensor(file, stored);
  });
}

}  // namespace multihead::io
