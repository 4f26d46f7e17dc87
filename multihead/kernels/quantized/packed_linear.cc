#include "multihead/kernels/quantized/packed_linear.h"

#include <algorithm>
#include <iterator>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"

namespace multihead::kernels {
namespace {

std::optional<WeightDtype> find(std::string_view name) {
  const auto* found = std::find_if(std::begin(kWeightFormats), std::end(kWeightFormats),
                                   [&](const WeightFormat& format) { return format.name == name; });
  if (found == std::end(kWeightFormats)) return std::nullopt;
  return found->dtype;
}

}  // namespace

std::optional<WeightDtype> packed_dtype_of(const BlockFormat& format) { return find(format.packed_as); }

std::vector<std::string> weight_dtype_names() {
  std::vector<std::string> names;
  for (const WeightFormat& format : kWeightFormats) {
    if (format.of_floats()) names.emplace_back(format.name);
  }
  return names;
}

WeightDtype parse_weight_dtype(std::string_view text) {
  const std::optional<WeightDtype> found = find(text);
  if (found && format_of(*found).of_floats()) return *found;
  throw ValueError(concat("weight_dtype: expected ", one_of(weight_dtype_names()), ", got '", text, "'"));
}

int64_t packed_weight_bytes(WeightDtype dtype, int64_t out, int64_t in) {
  const WeightFormat& format = format_of(dtype);
  return (format.functions->bytes(format, out, in) + 63) / 64 * 64;
}

void pack_weight(WeightDtype dtype, const float* weight, int64_t stride, int64_t out, int64_t in,
                 void* packed) {
  const WeightFormat& format = format_of(dtype);
  format.functions->pack(format, weight, stride, out, in, packed);
}

void pack_stored(const StoredWeight& weight, int64_t out, int64_t in, void* packed) {
  const WeightFormat& format = format_of(*packed_dtype_of(weight.format));
  format.functions->pack_stored(format, weight, out, in, packed);
}

void unpack_weight_row(WeightDtype dtype, const void* packed, int64_t row, int64_t out, int64_t in,
                       float* to) {
  const WeightFormat& format = format_of(dtype);
  format.functions->unpack_row(format, packed, row, out, in, to);
}

void packed_linear(const PackedLinearArgs& args) {
  if (args.rows <= 0 || args.out <= 0) return;
  const WeightFormat& format = format_of(args.dtype);
  format.functions->multiply(format, args);
}

}  // namespace multihead::kernels
