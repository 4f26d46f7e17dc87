// What becomes of an image before a model reads it: preprocessor_config.json.
#pragma once

#include <string>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/json.h"
#include "multihead/embed/images/image_file.h"
#include "multihead/models/image_encoder.h"

namespace multihead::embed {

inline constexpr const char* kPreprocessorFile = "preprocessor_config.json";

/// What a model reads of a pixel: (pixel · rescale_factor - mean) / deviation.
struct ImageScaling {
  double rescale_factor = 1.0 / 255;
  std::vector<double> mean = {}, deviation = {};  ///< of each channel; empty: .5, as ViT's
  bool resizes = true;                            ///< images of other sizes; else they are refused
  int64_t resample = 2;                           ///< by which filter, see resized()
  bool on_white = false;  ///< transparent pixels are blended with white (do_convert_rgb)
};

/// Reads the file in `folder`. Throws IoError, FormatError (a step that we lack).
ImageScaling read_scaling(const std::string& folder, const models::ImageEncoderConfig& config);
/// The file, as ViTImageProcessor reads it.
Json to_json(const ImageScaling& scaling, const models::ImageEncoderConfig& config);
/// With a mean and a deviation for each channel. Throws ValueError.
ImageScaling resolved(ImageScaling scaling, int64_t channels);

/// Scales images [n, channels, …], f32, in place.
void scale_pixels(Tensor& images, const ImageScaling& scaling);

/// A file as a model takes it, at its size. Throws what read_image() throws; FormatError (another size, where nothing
/// is resized, or resized by a filter that we lack).
Image read_image(const std::string& path, const ImageScaling& scaling,
                 const models::ImageEncoderConfig& config);

}  // namespace multihead::embed
