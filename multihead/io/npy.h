// NumPy's .npy files of f32 matrices.
#pragma once

#include <string>

#include "multihead/core/tensor/tensor.h"

namespace multihead::io {

/// Writes a matrix [rows, columns] f32 (version 1.0, C order), atomically. Throws IoError, ShapeError,
/// DtypeError.
void save_npy(const std::string& path, const Tensor& matrix);
/// Reads such a file. Throws IoError, FormatError (another version, dtype, order or rank, a size that is not
/// the file's) before memory is taken.
Tensor load_npy(const std::string& path);

}  // namespace multihead::io
