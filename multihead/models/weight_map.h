// How our parameters are named, split and laid out in other formats.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/io/safetensors.h"
#include "multihead/nn/module.h"

namespace multihead::models {

/// A parameter is stored as one or more parts: consecutive rows, each under its own name.
struct WeightPart {
  std::string name;
  int64_t rows = 0;  ///< 0: all
};

struct WeightRule {
  std::string parameter;  ///< our name
  std::vector<WeightPart> parts;
  bool transposed = false;  ///< matrices are stored [in, out]
  bool as_row = false;      ///< a vector is stored [1, n]
  /// Rows [3, heads, head_dim] are stored as [heads, 3, head_dim] (GPT-NeoX); 0: as they are.
  int64_t interleaved_heads = 0;
  bool swapped_halves = false;  ///< the second half of the rows is stored first (GTE's up before gate)
};

using WeightMap = std::vector<WeightRule>;

/// The identity: our names.
WeightMap identity_map(const std::vector<nn::NamedTensor>& parameters);

/// Every stored tensor by name, as the view of the parameter that holds it, in the map's order.
std::vector<std::pair<std::string, Tensor>> stored_views(const std::vector<nn::NamedTensor>& parameters,
                                                         const WeightMap& map);

/// The tensors to write.
io::TensorMap export_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map);

/// A tensor that files may hold besides the weights, and its check.
struct ExtraTensor {
  std::string suffix;  ///< of its name
  /// Returns the problem, or nothing; without this function the tensor is ignored.
  std::function<std::string(const io::SafetensorsFile&, const std::string& name)> problem = {};
  std::string prefix = {};  ///< of its name
};

/// A copy of a tied weight, under either of two names that differ by `optional_prefix`.
ExtraTensor repeated_tensor(const std::string& suffix, const std::string& of,
                            const std::string& optional_prefix = {});
/// Constants that such a tensor may hold, given the shape that the file gives it.
using Constants = std::function<std::vector<Tensor>(const Shape& stored)>;
/// A constant in old files: its elements must be within `tolerance` (times the element, plus 1e-6, or
/// what the stored dtype rounds) of those of one of `expected`.
ExtraTensor constant_tensor(const std::string& suffix, const Constants& expected, double tolerance);

struct ImportOptions {
  /// Names in the file may lack this prefix (or have it extra): "transformer." of GPT-2.
  std::string optional_prefix = {};
  std::vector<ExtraTensor> extras = {};
  /// The parameters are new: weights are read straight into them; unspecified after an error.
  bool fresh = false;
};

/// The weights of a model folder (or file). For another format the error says how to convert
/// it: `loader` is the class of transformers that reads it. Throws IoError, FormatError.
io::SafetensorsFile open_weights(const std::string& path, const char* loader);

/// Called before a model of this many weights is created to be filled from `file`. Throws FormatError if the
/// file is too small for them, MemoryError if memory is.
void check_size(const io::SafetensorsFile& file, int64_t weights);

/// Fills the parameters (dtype converted): check_weights(), then read_weights().
void import_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                    const io::SafetensorsFile& file, const ImportOptions& options = {});
/// Throws FormatError with every missing, unexpected and mis-shaped name, ValueError unless the map fills
/// every parameter.
void check_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                   const io::SafetensorsFile& file, const ImportOptions& options);
/// Fills `parameters`, some of a checked model's or tensors of the same names and shapes. Throws IoError.
void read_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                  const io::SafetensorsFile& file, const ImportOptions& options);

namespace detail {
/// How a matrix's name ends in a file with an adapter beside it (PyTorch's parametrizations).
inline constexpr const char* kOriginal = ".parametrizations.weight.original";
}  // namespace detail

}  // namespace multihead::models
