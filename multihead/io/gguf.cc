#include "multihead/io/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"

namespace multihead::io {
namespace {

constexpr uint64_t kMostEntries =
    1 << 16;  // of metadata, and of tensors: llama.cpp's largest files have some thousands
constexpr uint64_t kMostAxes = 4;
constexpr int64_t kTaskNumbers = 1 << 18;  // that a thread reads and decodes at once

const BlockFormat* type_of(uint32_t id) {
  const std::vector<BlockFormat>& types = block_formats();
  const auto found =
      std::find_if(types.begin(), types.end(), [&](const BlockFormat& t) { return t.id == id; });
  return found == types.end() ? nullptr : &*found;
}

std::string supported_types() {
  Enumeration names;
  for (const BlockFormat& type : block_formats()) names.add(type.name);
  return names.text();
}

template <class T>
T at(const std::string& bytes, uint64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

int64_t GgufTensor::numel() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

// Reads the header from front to back; every length is checked against what is left of the file.
class GgufFile::Cursor {
 public:
  explicit Cursor(const FileReader& file) : file_(file) {}

  uint64_t place() const { return place_; }
  uint64_t left() const { return file_.size() - place_; }

  void need(uint64_t bytes, const std::string& what) const {
    if (bytes > left()) fail(what, " needs ", bytes, " bytes, but ", left(), " are left of the file");
  }
  std::string take(uint64_t bytes, const std::string& what) {
    need(bytes, what);
    std::string taken(bytes, '\0');
    file_.read(place_, taken.data(), bytes);
    place_ += bytes;
    return taken;
  }
  template <class T>
  T number(const std::string& what) {
    need(sizeof(T), what);
    if (place_ < window_begin_ || place_ + sizeof(T) > window_begin_ + window_.size()) refill();
    T value;
    std::memcpy(&value, window_.data() + (place_ - window_begin_), sizeof value);
    place_ += sizeof value;
    return value;
  }
  void skip(uint64_t bytes, const std::string& what) {
    need(bytes, what);
    place_ += bytes;
  }
  std::string name(const std::string& what) {
    std::string text = take(number<uint64_t>(what), what);
    if (text.empty() || valid_utf8(text) != text) fail(what, " must be UTF-8, got ", quote(text));
    return text;
  }
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FormatError(concat(file_.path(), ": ", parts...));
  }

 private:
  void refill() {
    constexpr uint64_t kWindow = 1 << 16;
    window_.resize(std::min(kWindow, left()));
    window_begin_ = place_;
    file_.read(place_, window_.data(), window_.size());
  }

  const FileReader& file_;
  uint64_t place_ = 0, window_begin_ = 0;
  std::string window_;
};

size_t GgufFile::size_of(Kind kind) {
  constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<size_t>(kind)];
}

bool GgufFile::is_integer(Kind kind) {
  return kind != Kind::f32 && kind != Kind::f64 && kind != Kind::boolean && kind != Kind::string;
}

GgufFile::GgufFile(const std::string& path) : GgufFile(path, OnePart()) {
  const int64_t count = has("split.count") ? integer("split.count") : 1;
  if (count > 1) join_parts(count);
}

GgufFile::GgufFile(const std::string& path, OnePart) {
  parts_.emplace_back(path);
  Cursor cursor(parts_[0]);
  if (parts_[0].size() < 24 || cursor.take(4, "magic") != "GGUF") cursor.fail("not a GGUF file");
  const auto version = cursor.number<uint32_t>("version");
  if (version != 2 && version != 3) cursor.fail("GGUF version must be 2 or 3 (little endian), got ", version);
  const auto tensors = cursor.number<uint64_t>("tensor count"),
             values = cursor.number<uint64_t>("metadata count");
  if (tensors > kMostEntries) cursor.fail("at most ", kMostEntries, " tensors are supported, got ", tensors);
  if (values > kMostEntries)
    cursor.fail("at most ", kMostEntries, " metadata keys are supported, got ", values);
  read_metadata(cursor, values);
  const int64_t alignment = has("general.alignment") ? integer("general.alignment") : 32;
  if (alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)) != 0) {
    cursor.fail("general.alignment must be a power of two up to 1048576, got ", alignment);
  }
  read_tensors(cursor, tensors);
  const auto step = static_cast<uint64_t>(alignment);
  place_tensors((cursor.place() + step - 1) / step * step, step);
}

GgufFile::Value GgufFile::read_value(Cursor& cursor, const std::string& key) const {
  const auto read_kind = [&] {
    const auto kind = cursor.number<uint32_t>(key);
    if (kind > static_cast<uint32_t>(Kind::f64)) cursor.fail(key, ": unknown type ", kind);
    return static_cast<Kind>(kind);
  };
  Value value;
  value.kind = read_kind();
  value.is_array = value.kind == Kind::array;
  if (value.is_array) {
    value.kind = read_kind();
    value.count = cursor.number<uint64_t>(key);
    if (value.kind == Kind::array) cursor.fail(key, ": arrays of arrays are not supported");
  }
  value.begin = cursor.place();
  if (value.kind != Kind::string) {
    const size_t size = size_of(value.kind);
    if (value.count > cursor.left() / size) cursor.need(std::numeric_limits<uint64_t>::max(), key);
    cursor.skip(value.count * size, key);
  } else {
    if (value.count > cursor.left() / sizeof(uint64_t))
      cursor.need(std::numeric_limits<uint64_t>::max(), key);
    for (uint64_t i = 0; i < value.count; ++i) cursor.skip(cursor.number<uint64_t>(key), key);
  }
  value.size = cursor.place() - value.begin;
  return value;
}

void GgufFile::read_metadata(Cursor& cursor, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = cursor.name(concat("metadata key ", i));
    if (has(key)) cursor.fail("metadata key ", quote(key), " appears twice");
    metadata_[key] = read_value(cursor, key);
  }
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = cursor.name(concat("tensor name ", i)), what = "tensor " + quote(name);
    if (tensors_.contains(name)) cursor.fail(what, " appears twice");
    GgufTensor tensor;
    const auto axes = cursor.number<uint32_t>(what);
    if (axes > kMostAxes) cursor.fail(what, " has ", axes, " axes; at most ", kMostAxes, " are supported");
    uint64_t numbers = 1;
    for (uint32_t axis = 0; axis < axes; ++axis) {
      const auto size = cursor.number<uint64_t>(what);
      constexpr uint64_t kMost = uint64_t{1} << 40;
      if (size > kMost || (numbers *= std::max<uint64_t>(size, 1)) > kMost)
        cursor.fail(what, " is too large");
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    tensor.type_id = cursor.number<uint32_t>(what);
    tensor.type = type_of(tensor.type_id);
    tensor.offset = cursor.number<uint64_t>(what);
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (tensor.type != nullptr && row % tensor.type->block != 0) {
      cursor.fail(what, ": rows of ", row, " numbers are not whole blocks of ", tensor.type->block, " (",
                  tensor.type->name, ")");
    }
    tensors_[name] = std::move(tensor);
  }
}

// Offsets from the start of the data become offsets in the file. Tensors may not overlap: no file is larger
// decoded than its bytes allow.
void GgufFile::place_tensors(uint64_t data_begin, uint64_t alignment) {
  const uint64_t size = parts_[0].size();
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (auto& [name, tensor] : tensors_) {
    const auto fail = [&, &name = name](const std::string& problem) {
      throw FormatError(concat(path(), ": tensor ", quote(name), " ", problem));
    };
    if (tensor.offset % alignment != 0) fail(concat("is not aligned to ", alignment, " bytes"));
    if (data_begin > size || tensor.offset > size - data_begin) fail("begins after the end of the file");
    tensor.offset += data_begin;
    if (tensor.type == nullptr) continue;  // of unknown size
    const auto bytes = static_cast<uint64_t>(tensor.numel() / tensor.type->block * tensor.type->bytes);
    if (bytes > size - tensor.offset) {
      fail(concat("needs ", bytes, " bytes, but ", size - tensor.offset, " are left of the file"));
    }
    ranges.emplace_back(tensor.offset, tensor.offset + bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      throw FormatError(concat(path(), ": tensors overlap at byte ", ranges[i].first));
    }
  }
}

const GgufFile::Value& GgufFile::value(const std::string& key, bool is_array) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) throw FormatError(concat(path(), ": metadata ", quote(key), " is missing"));
  if (found->second.is_array != is_array) fail_kind(key, is_array ? "an array" : "a single value");
  return found->second;
}

void GgufFile::fail_kind(const std::string& key, const char* expected) const {
  throw FormatError(concat(path(), ": metadata ", quote(key), " must be ", expected));
}

int64_t GgufFile::integer_at(Kind kind, const std::string& bytes, uint64_t i) {
  switch (kind) {
    case Kind::u8:
      return at<uint8_t>(bytes, i);
    case Kind::i8:
      return at<int8_t>(bytes, i);
    case Kind::u16:
      return at<uint16_t>(bytes, i);
    case Kind::i16:
      return at<int16_t>(bytes, i);
    case Kind::u32:
      return at<uint32_t>(bytes, i);
    case Kind::i32:
      return at<int32_t>(bytes, i);
    default:
      return at<int64_t>(bytes, i);  // u64 above 2^63 turns negative, which no setting is
  }
}

std::string GgufFile::bytes_of(const Value& value) const {
  std::string bytes(value.size, '\0');
  parts_[0].read(value.begin, bytes.data(), bytes.size());
  return bytes;
}

std::vector<int64_t> GgufFile::integers_of(const Value& value) const {
  const std::string bytes = bytes_of(value);
  std::vector<int64_t> list(value.count);
  for (uint64_t i = 0; i < value.count; ++i) list[i] = integer_at(value.kind, bytes, i);
  return list;
}

std::vector<double> GgufFile::numbers_of(const std::string& key, const Value& value) const {
  if (is_integer(value.kind)) {
    const std::vector<int64_t> integers = integers_of(value);
    return {integers.begin(), integers.end()};
  }
  if (value.kind != Kind::f32 && value.kind != Kind::f64)
    fail_kind(key, value.is_array ? "an array of numbers" : "a number");
  const std::string bytes = bytes_of(value);
  std::vector<double> list(value.count);
  for (uint64_t i = 0; i < value.count; ++i)
    list[i] = value.kind == Kind::f32 ? at<float>(bytes, i) : at<double>(bytes, i);
  return list;
}

// The lengths were checked when the file was opened, but may have changed since.
std::vector<std::string> GgufFile::strings_of(const std::string& key, const Value& value) const {
  const std::string bytes = bytes_of(value);
  std::vector<std::string> list(value.count);
  size_t place = 0;
  for (std::string& text : list) {
    uint64_t length = 0;
    const bool has_length = bytes.size() - place >= sizeof length;
    if (has_length) std::memcpy(&length, bytes.data() + place, sizeof length);
    if (!has_length || length > bytes.size() - place - sizeof length)
      throw FormatError(concat(path(), ": metadata ", quote(key), " changed while it was read"));
    text.assign(bytes, place + sizeof length, length);
    place += sizeof length + length;
  }
  return list;
}

bool GgufFile::is_array(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found != metadata_.end() && found->second.is_array;
}

bool GgufFile::is_single(const std::string& key, Kind kind) const {
  const auto found = metadata_.find(key);
  return found != metadata_.end() && !found->second.is_array && found->second.kind == kind;
}
bool GgufFile::is_string(const std::string& key) const { return is_single(key, Kind::string); }
bool GgufFile::is_boolean(const std::string& key) const { return is_single(key, Kind::boolean); }

int64_t GgufFile::integer(const std::string& key) const {
  const Value& found = value(key, false);
  if (!is_integer(found.kind)) fail_kind(key, "an integer");
  return integers_of(found)[0];
}

std::vector<int64_t> GgufFile::integers(const std::string& key) const {
  const Value& found = value(key, true);
  if (!is_integer(found.kind)) fail_kind(key, "an array of integers");
  return integers_of(found);
}

double GgufFile::number(const std::string& key) const {
  const double found = numbers_of(key, value(key, false))[0];
  if (!std::isfinite(found)) fail_kind(key, "finite");
  return found;
}

std::vector<double> GgufFile::numbers(const std::string& key) const {
  return numbers_of(key, value(key, true));
}

bool GgufFile::boolean(const std::string& key) const {
  const Value& found = value(key, false);
  if (found.kind != Kind::boolean) fail_kind(key, "true or false");
  return bytes_of(found)[0] != 0;
}

std::string GgufFile::string(const std::string& key) const {
  const Value& found = value(key, false);
  if (found.kind != Kind::string) fail_kind(key, "a string");
  return strings_of(key, found)[0];
}

std::vector<std::string> GgufFile::strings(const std::string& key) const {
  const Value& found = value(key, true);
  if (found.kind != Kind::string) fail_kind(key, "an array of strings");
  return strings_of(key, found);
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> list;
  for (const auto& [key, value] : metadata_) list.push_back(key);
  return list;
}

const GgufTensor& GgufFile::readable(const std::string& name) const {
  const auto found = tensors_.find(name);
  MH_CHECK(found != tensors_.end(), ValueError, path(), ": no tensor ", quote(name));
  const GgufTensor& tensor = found->second;
  if (tensor.type == nullptr) {
    throw FormatError(concat(path(), ": tensor ", quote(name), " has the type ", tensor.type_id,
                             ", which is not supported; supported are ", supported_types()));
  }
  return tensor;
}

int64_t GgufFile::row_bytes(const std::string& name) const {
  const GgufTensor& tensor = readable(name);
  const int64_t numbers = tensor.shape.empty() ? 1 : tensor.shape.back();
  return numbers / tensor.type->block * tensor.type->bytes;
}

void GgufFile::load_rows(const std::string& name, int64_t begin, int64_t count, uint8_t* to) const {
  const int64_t bytes = row_bytes(name);
  const GgufTensor& tensor = readable(name);
  parts_[tensor.part].read(tensor.offset + static_cast<uint64_t>(begin * bytes), to,
                           static_cast<size_t>(count * bytes));
}

Tensor GgufFile::load(const std::string& name) const {
  const GgufTensor& tensor = readable(name);
  const BlockFormat& type = *tensor.type;
  Shape shape;
  for (const int64_t size : tensor.shape) shape.push_back(size);
  const Tensor loaded = Tensor::empty(shape, Dtype::f32);
  const int64_t blocks = tensor.numel() / type.block, step = kTaskNumbers / type.block;
  parallel_for((blocks + step - 1) / step, [&](int64_t task, int) {
    const int64_t begin = task * step, count = std::min(step, blocks - begin);
    std::vector<uint8_t> bytes(static_cast<size_t>(count * type.bytes));
    parts_[tensor.part].read(tensor.offset + static_cast<uint64_t>(begin * type.bytes), bytes.data(),
                             bytes.size());
    type.decode(bytes.data(), count, loaded.data<float>() + begin * type.block);
  });
  return loaded;
}

std::map<std::string, Tensor> GgufFile::load_all() const {
  double bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += 4 * static_cast<double>(tensor.numel());
  check_memory(bytes, path() + ": loading its tensors");
  std::map<std::string, Tensor> loaded;
  for (const auto& [name, tensor] : tensors_) loaded.emplace(name, load(name));
  return loaded;
}

}  // namespace multihead::io
