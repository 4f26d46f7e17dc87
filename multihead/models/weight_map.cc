#include "multihead/models/weight_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/near_names.h"
#include "multihead/io/names-inl.h"
#include "multihead/models/files/finite_weights-inl.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

// Or null.
const Tensor* parameter_named(const std::vector<nn::NamedTensor>& parameters, const std::string& name) {
  for (const nn::NamedTensor& parameter : parameters) {
    if (parameter.name == name) return &parameter.tensor;
  }
  return nullptr;
}

// The rows of one part in the order of the file: a view, transposed where the file is. Interleaved heads and
// swapped halves have axes of their own, which the file has not.
Tensor stored_view(const Tensor& parameter, int64_t first_row, int64_t rows, const WeightRule& rule) {
  Shape shape = parameter.shape(), strides = parameter.strides();
  if (rule.interleaved_heads > 0) {
    const int64_t heads = rule.interleaved_heads, dim = shape[0] / (3 * heads), row = strides[0];
    const int64_t columns = shape.rank() == 2 ? shape[1] : 1;
    return parameter.as_strided({heads, 3, dim, columns}, {dim * row, heads * dim * row, row, 1});
  }
  if (rule.swapped_halves) {
    const int64_t half = shape[0] / 2, columns = shape.rank() == 2 ? shape[1] : 1;
    return parameter.as_strided({2, half, columns}, {-half * strides[0], strides[0], 1}, half * strides[0]);
  }
  if (rule.as_row) return parameter.as_strided({1, shape[0]}, {shape[0] * strides[0], strides[0]});
  if (rows > 0) shape[0] = rows;
  const int64_t offset = first_row * strides[0];
  if (rule.transposed && shape.rank() == 2) {
    return parameter.as_strided({shape[1], shape[0]}, {strides[1], strides[0]}, offset);
  }
  return parameter.as_strided(shape, strides, offset);
}

// The shape that a stored view has in the file.
Shape stored_shape(const Tensor& view, const Tensor& parameter, const WeightRule& rule) {
  return rule.interleaved_heads > 0 || rule.swapped_halves ? parameter.shape() : view.shape();
}

// Rules for other parameters are passed over.
template <class F>
void for_each_part(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map, F&& f) {
  for (const WeightRule& rule : map) {
    const Tensor* parameter = parameter_named(parameters, rule.parameter);
    if (parameter == nullptr) continue;
    int64_t row = 0;
    for (const WeightPart& part : rule.parts) {
      const Tensor view = stored_view(*parameter, row, part.rows, rule);
      f(part.name, view, stored_shape(view, *parameter, rule));
      row += part.rows;
    }
  }
}

// The file's name for `name`, or nothing.
std::string found_name(const io::SafetensorsFile& file, const std::string& name, const std::string& prefix) {
  if (file.contains(name)) return name;
  // As BERT's first conversions name the parameters of norms.
  for (const auto& [ours, old] :
       {std::pair("LayerNorm.weight", "LayerNorm.gamma"), {"LayerNorm.bias", "LayerNorm.beta"}}) {
    if (!name.ends_with(ours)) continue;
    const std::string before =
        found_name(file, name.substr(0, name.size() - std::strlen(ours)) + old, prefix);
    if (!before.empty()) return before;
  }
  if (prefix.empty()) return {};
  const std::string other = name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name;
  return file.contains(other) ? other : std::string();
}

}  // namespace

WeightMap identity_map(const std::vector<nn::NamedTensor>& parameters) {
  WeightMap map;
  for (const nn::NamedTensor& parameter : parameters) map.push_back({parameter.name, {{parameter.name}}});
  return map;
}

std::vector<std::pair<std::string, Tensor>> stored_views(const std::vector<nn::NamedTensor>& parameters,
                                                         const WeightMap& map) {
  std::vector<std::pair<std::string, Tensor>> views;
  for_each_part(parameters, map, [&](const std::string& name, const Tensor& view, const Shape&) {
    views.emplace_back(name, view);
  });
  return views;
}

io::TensorMap export_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map) {
  io::TensorMap tensors;
  for_each_part(parameters, map, [&](const std::string& name, const Tensor& view, const Shape& shape) {
    tensors.emplace(name, reshape(view.contiguous(), shape));
  });
  return tensors;
}

ExtraTensor repeated_tensor(const std::string& suffix, const std::string& of,
                            const std::string& optional_prefix) {
  return {suffix, [=](const io::SafetensorsFile& file, const std::string& name) -> std::string {
            const std::string original = found_name(file, of, optional_prefix);
            if (original.empty() || file.is_repeated(name, original)) return {};
            return concat("differs from ", original,
                          ", but tie_word_embeddings is true; set it to false if they are not tied");
          }};
}

ExtraTensor constant_tensor(const std::string& suffix, const Constants& expected, double tolerance) {
  return {suffix, [=](const io::SafetensorsFile& file, const std::string& name) -> std::string {
            const Tensor stored = file.load(name);
            const std::vector<double> got = stored.to_vector<double>();
            const bool rounded = stored.dtype() == Dtype::bf16 || stored.dtype() == Dtype::f16;
            const double relative = rounded ? std::max(tolerance, 0x1p-8) : tolerance;
            for (const Tensor& constant : expected(stored.shape())) {
              const std::vector<double> want = constant.to_vector<double>();
              const auto close = [&](double a, double b) {
                return std::abs(a - b) <= 1e-6 + relative * std::abs(b);
              };
              if (got.size() == want.size() && std::equal(got.begin(), got.end(), want.begin(), close))
                return {};
            }
            return "does not match the config";
          }};
}

io::SafetensorsFile open_weights(const std::string& path, const char* loader) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto holds = [&](const char* name) { return fs::exists(fs::path(path) / name, ignored); };
  if (fs::is_directory(path, ignored) && !holds("model.safetensors") &&
      !holds("model.safetensors.index.json")) {
    for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                              "flax_model.msgpack", "adapter_model.safetensors"}) {
      MH_CHECK(!holds(other), FormatError, path, ": holds its weights as ", other,
               ", which is not supported; convert them once with transformers: python3 -c \"import "
               "transformers; transformers.",
               loader, ".from_pretrained('DIR').save_pretrained('DIR')\"");
    }
  }
  return io::SafetensorsFile(path);
}

void check_size(const io::SafetensorsFile& file, int64_t weights) {
  const uint64_t bytes = file.data_bytes();  // at least one for each
  MH_CHECK(weights <= static_cast<int64_t>(bytes), FormatError, file.path(), ": the config needs at least ",
           weights, " weights, but the file has ", bytes, " bytes");
  check_memory(4.0 * static_cast<double>(weights), concat(file.path(), ": loading its weights"));
}

namespace {

// A parameter that the map forgets, or fills in part, would keep what it was made of.
void check_complete(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map) {
  std::map<std::string, int64_t> missing;
  for (const auto& [name, tensor] : parameters) missing[name] = tensor.rank() == 0 ? 1 : tensor.size(0);
  for (const WeightRule& rule : map) {
    MH_CHECK(missing.contains(rule.parameter), ValueError, "weight map: the model has no parameter ",
             rule.parameter);
    for (const WeightPart& part : rule.parts) {
      int64_t& rows = missing[rule.parameter];
      rows -= part.rows > 0 ? part.rows : rows;
    }
  }
  for (const auto& [name, rows] : missing)
    MH_CHECK(rows == 0, ValueError, "weight map: ", rows, " rows of ", name, " are not in the file's layout");
}

}  // namespace

void check_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                   const io::SafetensorsFile& file, const ImportOptions& options) {
  check_complete(parameters, map);
  std::vector<std::pair<const ExtraTensor*, std::string>> extras;
  std::string problems;
  std::vector<std::pair<std::string, Shape>> missing;
  std::set<std::string> used;
  for_each_part(parameters, map, [&](const std::string& name, const Tensor&, const Shape& shape) {
    const std::string found = found_name(file, name, options.optional_prefix);
    if (found.empty()) {
      missing.emplace_back(name, shape);
      return;
    }
    used.insert(found);
    const std::vector<int64_t>& stored = file.info(found).shape;
    if (!std::equal(stored.begin(), stored.end(), shape.begin(), shape.end())) {
      problems += concat("\n  ", found, ": expected ", shape, ", got ", io::shape_text(stored));
    }
  });
  std::vector<std::string> unexpected;
  for (const std::string& name : file.names()) {
    if (used.contains(name)) continue;
    const auto extra = std::find_if(options.extras.begin(), options.extras.end(), [&](const ExtraTensor& e) {
      return name.starts_with(e.prefix) && name.ends_with(e.suffix);
    });
    if (extra == options.extras.end()) {
      unexpected.push_back(name);
    } else if (extra->problem) {
      extras.emplace_back(&*extra, name);
    }
  }
  NearNames hint(unexpected);
  for (const auto& [name, shape] : missing) problems += concat("\n  missing ", name, " ", shape, hint(name));
  for (const std::string& name : unexpected) problems += concat("\n  unexpected ", name);
  MH_CHECK(problems.empty(), FormatError, file.path(), ": the tensors do not fit the model:", problems);
  for (const auto& [extra, name] : extras) {
    const std::string problem = extra->problem(file, name);
    MH_CHECK(problem.empty(), FormatError, file.path(), ": ", name, " ", problem);
  }
}

void read_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                  const io::SafetensorsFile& file, const ImportOptions& options) {
  // All tensors are read before the first parameter changes; new parameters may take them at once.
  std::vector<std::pair<std::string, Tensor>> loaded;
  std::vector<std::pair<Tensor, size_t>> copied;  // a view of a parameter, and which of `loaded` it takes
  for_each_part(parameters, map, [&](const std::string& name, const Tensor& view, const Shape& shape) {
    const bool in_place = options.fresh && view.shape() == shape;
    if (!in_place) copied.emplace_back(view, loaded.size());
    loaded.emplace_back(found_name(file, name, options.optional_prefix),
                        in_place ? view : Tensor::empty(shape, view.dtype()));
  });
  file.read_into(loaded);
  for (const auto& [name, tensor] : loaded) detail::check_finite(file.path(), name, tensor);
  for (const auto& [view, i] : copied) view.copy_from(reshape(loaded[i].second, view.shape()));
}

void import_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                    const io::SafetensorsFile& file, const ImportOptions& options) {
  check_weights(parameters, map, file, options);
  read_weights(parameters, map, file, options);
}

}  // namespace multihead::models
