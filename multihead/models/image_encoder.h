// A vision Transformer: an image -> a vector for each of its patches (Dosovitskiy et al. 2021).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/models/encoder.h"

namespace multihead::models {

struct ImageEncoderConfig {
  int64_t image_size = 224;  ///< pixels of a side
  int64_t patch_size = 16;   ///< of a patch's side; divides image_size
  int64_t channels = 3;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t embed_dim = 768;
  int64_t ffn_dim = 0;   ///< 0: 4·embed_dim
  bool qkv_bias = true;  ///< of the projections of queries, keys and values
  double norm_eps = 1e-12;
  Activation activation = Activation::gelu;
  bool pooler = true;  ///< a dense layer and an activation on the first vector
  PoolerActivation pooler_activation = PoolerActivation::tanh;
  EncoderHead head = EncoderHead::none;  ///< or classification: it reads the first vector, not the pooler
  int64_t num_labels = 0;                ///< of classification
  ProblemType problem_type = ProblemType::unstated;  ///< of classification
  double dropout_p = 0;
  double attention_dropout_p = 0;
  double init_std = 0.02;
  std::vector<std::string> labels = {};  ///< their names, if known

  bool operator==(const ImageEncoderConfig&) const = default;
};

/// Resolves fields that are 0; throws ValueError naming the first invalid one.
ImageEncoderConfig resolved(ImageEncoderConfig config);
/// Number of matrix weights: all but biases and norms.
int64_t matrix_weights(const ImageEncoderConfig& config);
/// Vectors of an image: one for the whole image ([CLS]), then one per patch.
int64_t sequence_length(const ImageEncoderConfig& config);

/// features = norm(layers([class, linear(patches)] + positions)), pre-norm. An image has the same bits in
/// any batch.
///
/// Shapes    pixels [N, channels, image_size, image_size] -> features [N, 1 + patches, embed_dim], patches
///           row by row; logits [N, num_labels]
/// Gradient  weights, pixels
/// Throws    ShapeError (another size: nothing is resized), ValueError (a call of what the model lacks)
class ImageEncoder {
 public:
  ImageEncoder() = default;
  ImageEncoder(const ImageEncoderConfig& config, Rng& rng);

  /// Dropout is active if and only if `rng` is given.
  Tensor features(const Tensor& pixels, Rng* rng = nullptr) const;
  /// activation(dense(first vector of each image)): [N, T, embed_dim] -> [N, embed_dim].
  Tensor pooled(const Tensor& features) const;
  Tensor logits(const Tensor& pixels, Rng* rng = nullptr) const;

  const ImageEncoderConfig& config() const { return config_; }
  void visit(nn::Visitor& visitor);

  /// As Encoder::pack_weights(); the patches' matrix stays f32.
  void pack_weights(nn::WeightDtype dtype = nn::WeightDtype::f32);
  std::optional<nn::WeightDtype> packed_dtype() const { return packed_dtype_; }

  Tensor class_token;               ///< [1, 1, embed_dim]
  Tensor position_embedding;        ///< [1, 1 + patches, embed_dim]
  Tensor patch_weight, patch_bias;  ///< [embed_dim, channels, patch_size, patch_size], [embed_dim]
  std::vector<nn::TransformerLayer> layers;
  nn::Norm final_norm;
  nn::Linear pooler;
  nn::Linear classifier;

 private:
  Tensor embed(const Tensor& pixels) const;

  ImageEncoderConfig config_;
  std::optional<nn::WeightDtype> packed_dtype_;
};

/// As that of an Encoder.
ImageEncoder with_weights(const ImageEncoderConfig& config, ImageEncoder from, Rng& rng,
                          std::vector<std::string>* fresh = nullptr);

}  // namespace multihead::models
