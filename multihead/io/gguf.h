// Models in the GGUF format, as llama.cpp reads and writes them.
//
// Source: the specification in ggml's repository (gguf.md), versions 2 and 3, little endian.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "multihead/core/blocks.h"
#include "multihead/core/files.h"
#include "multihead/core/tensor/tensor.h"

namespace multihead::io {

/// One that can be written: F32, F16, BF16, Q4_0, Q4_1, Q8_0, in any case. Throws ValueError for others.
const BlockFormat& writable_gguf_type(std::string_view name);

/// A tensor's entry in the header.
struct GgufTensor {
  uint32_t type_id = 0;
  const BlockFormat* type = nullptr;  ///< none: an unsupported type; listed, but not loaded
  std::vector<int64_t> shape;         ///< row-major: the reverse of the file's
  size_t part = 0;                    ///< of a model in several files, from 0
  uint64_t offset = 0;                ///< in that file
  int64_t numel() const;
};

/// Whether a path names a GGUF file: by its extension, .gguf in any case, or by how the file begins, since
/// stores of models name files by their checksums.
bool is_gguf_file(const std::string& path);

/// A file open for reading: the header is checked when it is opened, load() loads. The first of several
/// files of one model, NAME-00001-of-00003.gguf, stands for all of them.
class GgufFile {
 public:
  /// Throws IoError; FormatError that names the file and the entry.
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return parts_[0].path(); }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }

  /// Metadata, of the first file. All throw FormatError if the key is missing or of another kind; has() does
  /// not.
  bool has(const std::string& key) const { return metadata_.contains(key); }
  bool is_array(const std::string& key) const;
  bool is_string(const std::string& key) const;
  bool is_boolean(const std::string& key) const;
  int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key) const;
  std::string string(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;
  std::vector<std::string> strings(const std::string& key) const;
  /// Sorted.
  std::vector<std::string> keys() const;

  /// A copy in f32. Throws ValueError (unknown name), FormatError (an unsupported type), IoError.
  Tensor load(const std::string& name) const;
  /// Rows [begin, begin + count) of a matrix as stored, row_bytes() each. Throw as load() does.
  int64_t row_bytes(const std::string& name) const;
  void load_rows(const std::string& name, int64_t begin, int64_t count, uint8_t* to) const;
  /// Also throws MemoryError if they exceed the available memory.
  std::map<std::string, Tensor> load_all() const;

 private:
  enum class Kind : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
  // Where a value lies in the file; an array's elements follow each other.
  struct Value {
    Kind kind = Kind::u8;  // of the elements
    bool is_array = false;
    uint64_t count = 1, begin = 0, size = 0;
  };
  class Cursor;
  struct OnePart {};
  GgufFile(const std::string& path, OnePart);
  void join_parts(int64_t count);
  Value read_value(Cursor& cursor, const std::string& key) const;
  void read_metadata(Cursor& cursor, uint64_t count);
  void read_tensors(Cursor& cursor, uint64_t count);
  void place_tensors(uint64_t data_begin, uint64_t alignment);
  bool is_single(const std::string& key, Kind kind) const;
  const Value& value(const std::string& key, bool is_array) const;
  const GgufTensor& readable(const std::string& name) const;
  [[noreturn]] void fail_kind(const std::string& key, const char* expected) const;
  static size_t size_of(Kind kind);
  static bool is_integer(Kind kind);
  static int64_t integer_at(Kind kind, const std::string& bytes, uint64_t i);
  std::string bytes_of(const Value& value) const;
  std::vector<std::string> strings_of(const std::string& key, const Value& value) const;
  std::vector<int64_t> integers_of(const Value& value) const;
  std::vector<double> numbers_of(const std::string& key, const Value& value) const;

  std::vector<FileReader> parts_;
  std::map<std::string, Value> metadata_;
  std::map<std::string, GgufTensor> tensors_;
};

/// Written as u32, f32, bool, string and arrays of i32 and string.
using GgufValue =
    std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<std::string>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufContents {
  struct Stored {
    std::string name;
    Tensor tensor;  ///< f32
    const BlockFormat* type = nullptr;
  };
  GgufMetadata metadata;
  std::vector<Stored> tensors;
};

/// Writes a file of version 3, atomically. Throws ValueError (an integer that does not fit; rows that are not
/// whole blocks; NaN or Inf in a quantised tensor; numbers that are too large for their type), IoError.
void write_gguf(const std::string& path, const GgufContents& contents);

}  // namespace multihead::io
