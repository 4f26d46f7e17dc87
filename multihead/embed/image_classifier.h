// A vision Transformer with a head: labels of images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/models/image_encoder.h"

namespace multihead::embed {

/// What a model reads of a pixel: (pixel · rescale_factor - mean) / deviation.
struct ImageScaling {
  double rescale_factor = 1.0 / 255;
  std::vector<double> mean = {}, deviation = {};  ///< of each channel; empty: .5, as ViT's
};

/// An image encoder with a classification head, and the preprocessing of its folder's
/// preprocessor_config.json. Images must have the model's size; they are not resized. An image's logits have
/// the same bits in any batch.
class ImageClassifier {
 public:
  /// Reads a folder (ViTForImageClassification). Throws IoError, FormatError (a step that we lack);
  /// ValueError for a model without head.
  static ImageClassifier load(const std::string& folder, nn::WeightDtype weights = nn::WeightDtype::f32);
  /// Throws ValueError (a model without head, scaling of another number of channels).
  explicit ImageClassifier(models::ImageEncoder encoder, ImageScaling scaling = {});

  /// Writes the folder that load() and transformers read. Throws as models::save_image_encoder().
  void save(const std::string& folder, bool overwrite = false);

  /// (images · rescale_factor - image_mean) / image_std, the model's input.
  ///
  /// Shapes    images [n, channels, image_size, image_size] -> the same
  /// Dtypes    any, 0 to 255 -> f32
  /// Throws    ShapeError
  Tensor pixels(const Tensor& images) const;
  /// The logits of images as pixels() takes them: [n, num_labels()] f32.
  Tensor logits(const Tensor& images) const;

  /// As TextClassifier::scores().
  Tensor scores(const Tensor& logits) const;

  int64_t num_labels() const { return encoder_.config().num_labels; }
  /// The folder's name of a label, or LABEL_i.
  std::string label(int64_t index) const;
  const models::ImageEncoder& encoder() const { return encoder_; }

 private:
  models::ImageEncoder encoder_;
  ImageScaling scaling_;
  std::vector<float> factor_, shift_;  // of each channel
};

}  // namespace multihead::embed
