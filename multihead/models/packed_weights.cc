#include <map>
#include <set>
#include <string>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/models/files/finite_weights-inl.h"
#include "multihead/models/packed_weights-inl.h"

namespace multihead::models::detail {
namespace {

using nn::PackedLinear;
using nn::WeightDtype;

std::string packed_name(const std::string& name, WeightDtype dtype) {
  return concat(name, '.', kernels::name(dtype));
}

// The format in which the file holds a packed matrix.
std::optional<WeightDtype> dtype_in(const io::SafetensorsFile& file, const std::string& name) {
  for (const kernels::WeightFormat& format : kernels::kWeightFormats) {
    if (format.functions->is_portable && file.contains(packed_name(name, format.dtype))) return format.dtype;
  }
  return std::nullopt;
}

PackedLinear load_packed(const io::SafetensorsFile& file, const std::string& name, const Tensor& weight) {
  if (const std::optional<WeightDtype> dtype = dtype_in(file, name)) {
    const std::string stored = packed_name(name, *dtype);
    MH_CHECK(name != "token_embedding.weight" || kernels::format_of(*dtype).has_rows(), FormatError,
             file.path(), ": an embedding cannot be ", kernels::name(*dtype));
    const Tensor packed = file.load(stored);
    try {
      PackedLinear linear(packed, weight.size(0), weight.size(1), *dtype);
      check_finite(file.path(), stored, linear);
      return linear;
    } catch (const std::invalid_argument& error) {
      throw FormatError(concat(file.path(), ": ", quote(stored), ": ", error.what()));
    }
  }
  throw FormatError(concat(file.path(), ": missing packed ", name, ' ', weight.shape()));
}

}  // namespace

io::TensorMap packed_tensors(LanguageModel& model) {
  MH_CHECK(model.weight_dtype() != WeightDtype::f32, ValueError,
           "save: packed f32 weights are in this machine's order; save the model before pack_weights()");
  io::TensorMap tensors;
  for (const nn::NamedTensor& p : nn::named_parameters(model)) tensors[p.name] = p.tensor;
  const auto add = [&](const std::string& name, Tensor&, PackedLinear& packed) {
    const bool again = name == "head.weight" && model.config().tie_embeddings;
    if (!packed.defined() || again) return;
    MH_CHECK(is_finite(packed), ValueError, "save: ", name, " holds numbers that are too large for ",
             kernels::name(packed.dtype()), ", or NaN; pack the model as bf16, or not at all");
    tensors[packed_name(name, packed.dtype())] = packed.packed();
  };
  nn::Visitor visitor = nn::Visitor::of_matrices(add);
  model.visit(visitor);
  return tensors;
}

std::optional<WeightDtype> packed_dtype(const io::SafetensorsFile& file) {
  return dtype_in(file, "layers.0.linear2.weight");
}

void fill_packed(LanguageModel& model, const io::SafetensorsFile& file, WeightDtype dtype) {
  std::set<std::string> matrices;
  model.pack_weights(dtype, [&](const std::string& name, const Tensor& weight) {
    if (const auto stored = dtype_in(file, name)) matrices.insert(packed_name(name, *stored));
    return load_packed(file, name, weight);
  });
  std::map<std::string, Tensor> rest;
  for (const std::string& name : file.names()) {
    const bool is_left_out = !model.config().head && name.starts_with("head.");
    if (matrices.contains(name) || is_left_out) continue;
    rest[name] = file.load(name);
    check_finite(file.path(), name, rest[name]);
  }
  nn::load_parameters(nn::named_parameters(model), rest, file.path());
}

void pack_while_read(LanguageModel& model, const WeightMap& map, const io::SafetensorsFile& file,
                     const ImportOptions& options, WeightDtype dtype) {
  // Held until all is packed: if untouched f32 weights were released one by one, what is read next would
  // touch them.
  std::vector<nn::NamedTensor> parameters = nn::named_parameters(model);
  check_weights(parameters, map, file, options);
  model.pack_weights(dtype, [&](const std::string& name, const Tensor& shape_of) {
    const Tensor weight = Tensor::empty(shape_of.shape());
    read_weights({{name, weight}}, map, file, options);
    return PackedLinear(weight, dtype_of(name, dtype));
  });
  parameters = nn::named_parameters(model);
  read_weights(parameters, map, file, options);
}

}  // namespace multihead::models::detail
