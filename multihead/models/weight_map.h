// How parameters of ours are named, split and laid out in somebody else's file.
#pragma once

#include <string>
#include <string_view>
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
};

using WeightMap = std::vector<WeightRule>;

/// The identity: our names.
WeightMap identity_map(const std::vector<nn::NamedTensor>& parameters);

/// What to write.
io::TensorMap export_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map);

struct ImportOptions {
  /// Names in the file may lack this (or have it in excess): "transformer." of GPT-2.
  std::string optional_prefix = {};
  /// Names that end so are no weights and are passed over.
  std::vector<std::string> ignored_suffixes = {};
};

/// Before a model of so many weights is made to be filled from `file`. Throws FormatError if the file is too
/// small to hold them, MemoryError if memory is too small for both.
void check_size(const io::SafetensorsFile& file, int64_t weights);

/// Fills the parameters (dtype converted). Every missing, unexpected and mis-shaped name is listed in one
/// FormatError, before anything is changed.
void import_weights(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                    const io::SafetensorsFile& file, const ImportOptions& options = {});

}  // namespace multihead::models
