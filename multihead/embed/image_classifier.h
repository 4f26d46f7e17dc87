// A vision Transformer with a head: labels of images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/embed/images/scaling.h"
#include "multihead/models/image_encoder.h"

namespace multihead::embed {

/// An image encoder with a classification head, and the preprocessing of its folder's
/// preprocessor_config.json. Tensors of images must have the model's size; files are resized. An image's logits
/// have the same bits in any batch.
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
  /// Files as pixels() takes them: [n, channels, image_size, image_size] f32, 0 to 255. Throws what
  /// embed::read_image() throws.
  Tensor read(const std::vector<std::string>& files) const;
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
};

}  // namespace multihead::embed
