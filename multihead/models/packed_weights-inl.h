// The types of packed weights, and those of a language model in a safetensors file. Internal to models.
#pragma once

#include <optional>

#include "multihead/io/safetensors.h"
#include "multihead/models/language_model.h"
#include "multihead/models/weight_map.h"

namespace multihead::models::detail {

/// Format of the embedding and the output layer where the other matrices are packed as `dtype`: at least 8
/// bits in groups, and such that rows() can read it.
inline nn::WeightDtype embedding_dtype(nn::WeightDtype dtype) {
  return kernels::format_of(dtype).functions->is_float ? dtype : nn::WeightDtype::q8;
}
/// Format of the matrix `name`.
inline nn::WeightDtype dtype_of(const std::string& name, nn::WeightDtype dtype) {
  const bool words = name == "token_embedding.weight" || name == "head.weight";
  return words ? embedding_dtype(dtype) : dtype;
}

/// Parameters under their own names; matrices as "<name>.<dtype>", i32 [bytes / 4], in the order of groups.h,
/// int8.h or half.h in kernels/quantized/.
io::TensorMap packed_tensors(LanguageModel& model);

/// The dtype of the layers' matrices, if the file holds packed ones.
std::optional<nn::WeightDtype> packed_dtype(const io::SafetensorsFile& file);

/// Fills a model without weights. Throws IoError, FormatError.
void fill_packed(LanguageModel& model, const io::SafetensorsFile& file, nn::WeightDtype dtype);

/// Fills a model without weights from a file that is not packed, each matrix packed as `dtype` as soon as it
/// is read: f32 weights and packed ones are never both in memory. Throws IoError, FormatError.
void pack_while_read(LanguageModel& model, const WeightMap& map, const io::SafetensorsFile& file,
                     const ImportOptions& options, nn::WeightDtype dtype);

}  // namespace multihead::models::detail
