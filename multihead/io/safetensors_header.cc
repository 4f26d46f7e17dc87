// The header of a safetensors file: parsing is the security boundary, so every rule is checked here.
#include <algorithm>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/io/names-inl.h"
#include "multihead/io/safetensors.h"

namespace multihead::io {
namespace {

constexpr FileDtype kDtypes[] = {
    {"I64", 64, Dtype::i64},          {"F64", 64, Dtype::f64},      {"F32", 32, Dtype::f32},
    {"I32", 32, Dtype::i32},          {"BF16", 16, Dtype::bf16},    {"F16", 16, Dtype::f16},
    {"BOOL", 8, Dtype::boolean},      {"U8", 8, std::nullopt},      {"I8", 8, std::nullopt},
    {"U16", 16, std::nullopt},        {"I16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},        {"C64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},     {"F8_E8M0", 8, std::nullopt}, {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt}, {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
};

const FileDtype* find_dtype(std::string_view name) {
  for (const FileDtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

uint64_t unsigned_item(const Json& item, std::string_view field) {
  MH_CHECK(item.is_integer() && item.as_int() >= 0, FormatError, field, " must hold integers >= 0, got ",
           quote(item.dump(), 40));
  return static_cast<uint64_t>(item.as_int());
}

// As if no size were 0, so that strides cannot overflow either.
uint64_t checked_bits(const std::vector<int64_t>& shape, unsigned bits) {
  uint64_t product = bits;
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    const bool wraps =
        __builtin_mul_overflow(product, static_cast<uint64_t>(std::max<int64_t>(size, 1)), &product);
    MH_CHECK(!wraps && product / 8 <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), FormatError,
             "size of the shape overflows");
  }
  return empty ? 0 : product;
}

void check_size(const TensorInfo& info, unsigned bits) {
  const uint64_t needed = checked_bits(info.shape, bits);
  MH_CHECK(needed % 8 == 0, FormatError, info.dtype_name, " elements of shape ", shape_text(info.shape),
           " do not fill whole bytes");
  MH_CHECK(info.end - info.begin == needed / 8, FormatError, "data_offsets [", info.begin, ", ", info.end,
           "] hold ", info.end - info.begin, " bytes, shape ", shape_text(info.shape), " of ",
           info.dtype_name, " needs ", needed / 8);
}

TensorInfo parse_entry(const Json& entry) {
  MH_CHECK(entry.is_object(), FormatError, "expected an object, got ", name(entry.kind()));
  for (const JsonMember& member : entry.members())
    MH_CHECK(member.key == "dtype" || member.key == "shape" || member.key == "data_offsets", FormatError,
             "unknown key ", quote(member.key));
  TensorInfo info;
  info.dtype_name = entry.at("dtype").as_string();
  for (const Json& size : entry.at("shape").items())
    info.shape.push_back(static_cast<int64_t>(unsigned_item(size, "shape")));
  const std::span<const Json> offsets = entry.at("data_offsets").items();
  MH_CHECK(offsets.size() == 2, FormatError, "data_offsets must hold 2 integers, got ", offsets.size());
  info.begin = unsigned_item(offsets[0], "data_offsets");
  info.end = unsigned_item(offsets[1], "data_offsets");
  MH_CHECK(info.begin <= info.end, FormatError, "data_offsets [", info.begin, ", ", info.end,
           "] end before they begin");
  const FileDtype* dtype = find_dtype(info.dtype_name);
  if (dtype == nullptr) {
    checked_bits(info.shape, 8);  // of unknown size, but countable
  } else {
    info.dtype = dtype->dtype;
    check_size(info, dtype->bits);
  }
  return info;
}

Metadata parse_metadata(const Json& json) {
  Metadata metadata;
  MH_CHECK(json.is_object(), FormatError, "expected an object, got ", name(json.kind()));
  for (const JsonMember& member : json.members()) {
    MH_CHECK(is_printable(member.key), FormatError, "key ", quote(member.key), " holds control characters");
    MH_CHECK(member.value.is_string(), FormatError, quote(member.key), " must be a string, got ",
             name(member.value.kind()));
    MH_CHECK(is_printable(member.value.as_string(), "\n\r\t"), FormatError, "value of ", quote(member.key),
             " holds control characters");
    metadata[member.key] = member.value.as_string();
  }
  return metadata;
}

// Bytes that belong to no tensor, or to two, would let one file mean two things to two programs.
void check_tiling(const std::map<std::string, TensorInfo>& tensors, uint64_t data_bytes,
                  const std::string& where) {
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t end = 0;
  for (const auto* entry : order) {
    MH_CHECK(entry->second.begin == end, FormatError, where, ": tensor ", quote(entry->first),
             " begins at byte ", entry->second.begin, ", the one before it ends at ", end,
             entry->second.begin < end ? " (overlap)" : " (gap)");
    end = entry->second.end;
  }
  MH_CHECK(end == data_bytes, FormatError, where, ": the tensors fill ", end, " bytes, the file has ",
           data_bytes, " of data");
}

}  // namespace

const FileDtype& file_dtype(Dtype dtype) {
  return *std::ranges::find(kDtypes, std::optional(dtype), &FileDtype::dtype);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < std::min<size_t>(shape.size(), 16); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() > 16 ? ", …]" : "]");
}

int64_t TensorInfo::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes,
                                           const std::string& where) {
  const Json json = Json::parse(text, where + ": header");
  MH_CHECK(json.is_object(), FormatError, where, ": header must be an object, got ", name(json.kind()));
  SafetensorsHeader header;
  for (const JsonMember& member : json.members()) {
    try {
      if (member.key == "__metadata__") {
        header.metadata = parse_metadata(member.value);
        continue;
      }
      MH_CHECK(is_printable(member.key), FormatError, "the name holds control characters");
      header.tensors.emplace(member.key, parse_entry(member.value));
    } catch (const FormatError& error) {
      throw FormatError(concat(where, ": tensor ", quote(member.key), ": ", error.what()));
    }
  }
  check_tiling(header.tensors, data_bytes, where);
  return header;
}

}  // namespace multihead::io
