// NumPy's .npy files of f32 matrices.
#pragma once

#include <cstdint>
#include <string>

#include "multihead/core/files.h"
#include "multihead/core/tensor/tensor.h"

namespace multihead::io {

/// Writes a matrix [rows, columns] f32 (version 1.0, C order), atomically. Throws IoError, ShapeError,
/// DtypeError.
void save_npy(const std::string& path, const Tensor& matrix);
/// The same for rows that come one after another. Without commit() there is no file.
class NpyWriter {
 public:
  /// Throws IoError.
  NpyWriter(const std::string& path, int64_t rows, int64_t columns);
  /// [n, columns]. Throws IoError, ShapeError, DtypeError.
  void add(const Tensor& rows);
  /// Throws IoError, ShapeError unless all rows were added.
  void commit();

 private:
  AtomicFile file_;
  int64_t rows_, columns_, added_ = 0;
};

/// Reads such a file. Throws IoError, FormatError (another version, dtype, order or rank, a size that is not
/// the file's) before memory is taken.
Tensor load_npy(const std::string& path);

}  // namespace multihead::io
