#include "multihead/models/weight_map.h"

#include <algorithm>
#include <map>
#include <set>

#include "multihead/core/error.h"
#include "multihead/core/memory.h"

namespace multihead::models {
namespace {

const Tensor& parameter_named(const std::vector<nn::NamedTensor>& parameters, const std::string& name) {
  for (const nn::NamedTensor& parameter : parameters) {
    if (parameter.name == name) return parameter.tensor;
  }
  throw ValueError(concat("weight map: the model has no parameter ", name));
}

// The rows of one part as they lie in the file: a view, transposed where the file is.
Tensor stored_view(const Tensor& parameter, int64_t first_row, int64_t rows, const WeightRule& rule) {
  Shape shape = parameter.shape(), strides = parameter.strides();
  if (rule.as_row) return parameter.as_strided({1, shape[0]}, {shape[0] * strides[0], strides[0]});
  if (rows > 0) shape[0] = rows;
  const int64_t offset = first_row * strides[0];
  if (rule.transposed && shape.rank() == 2) {
    return parameter.as_strided({shape[1], shape[0]}, {strides[1], strides[0]}, offset);
  }
  return parameter.as_strided(shape, strides, offset);
}

template <class F>
void for_each_part(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map, F&& f) {
  for (const WeightRule& rule : map) {
    const Tensor& parameter = parameter_named(parameters, rule.parameter);
    int64_t row = 0;
    for (const WeightPart& part : rule.parts) {
      f(part.name, stored_view(parameter, row, part.rows, rule));
      row += part.rows;
    }
  }
}

// The file's name for `name`, or nothing.
std::string found_name(const io::SafetensorsFile& file, const std::string& name, const std::string& prefix) {
  if (file.contains(name)) return name;
  if (prefix.empty()) return {};
  const std::string other = name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name;
  return file.contains(other) ? other : std::string();
}

std::string shape_text(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

}  // namespace

WeightMap identity_map(const std::vector<nn::NamedTensor>& parameters) {
  WeightMap map;
  for (const nn::NamedTensor& parameter : parameters) map.push_back({parameter.name, {{parameter.name}}});
  return map;
}

io::TensorMap export_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map) {
  io::TensorMap tensors;
  for_each_part(parameters, map, [&](const std::string& name, const Tensor& view) {
    tensors.emplace(name, view.contiguous());
  });
  return tensors;
}

void check_size(const io::SafetensorsFile& file, int64_t weights) {
  const uint64_t bytes = file.data_bytes();  // at least one for each
  MH_CHECK(weights <= static_cast<int64_t>(bytes), FormatError, file.path(),
           ": the config asks for at least ", weights, " weights, the file holds ", bytes, " bytes");
  check_memory(4.0 * static_cast<double>(weights) + static_cast<double>(bytes),
               concat(file.path(), ": loading its weights"));
}

void import_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                    const io::SafetensorsFile& file, const ImportOptions& options) {
  std::string problems;
  std::set<std::string> used;
  std::vector<std::pair<std::string, Tensor>> plan;
  for_each_part(parameters, map, [&](const std::string& name, const Tensor& view) {
    const std::string found = found_name(file, name, options.optional_prefix);
    if (found.empty()) {
      problems += concat("\n  missing ", name, " ", view.shape());
      return;
    }
    used.insert(found);
    const std::vector<int64_t>& stored = file.info(found).shape;
    if (!std::equal(stored.begin(), stored.end(), view.shape().begin(), view.shape().end())) {
      problems += concat("\n  ", found, ": expected ", view.shape(), ", got ", shape_text(stored));
    }
    plan.emplace_back(found, view);
  });
  for (const std::string& name : file.names()) {
    const bool ignored = std::any_of(options.ignored_suffixes.begin(), options.ignored_suffixes.end(),
                                     [&](const std::string& suffix) { return name.ends_with(suffix); });
    if (!ignored && !used.contains(name)) problems += concat("\n  unexpected ", name);
  }
  MH_CHECK(problems.empty(), FormatError, file.path(), ": the tensors do not fit the model:", problems);
  // All tensors are read (and their bytes checked) before the first parameter changes.
  std::vector<Tensor> loaded;
  for (const auto& [name, view] : plan) loaded.push_back(file.load(name));
  for (size_t i = 0; i < plan.size(); ++i) plan[i].second.copy_from(loaded[i]);
}

}  // namespace multihead::models
