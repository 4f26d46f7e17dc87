#include "multihead/models/image_encoder.h"

#include "multihead/core/error.h"
#include "multihead/models/config/transformer_config-inl.h"
#include "multihead/models/known_weights-inl.h"
#include "multihead/models/pooler-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

using nn::detail::point;

nn::TransformerLayerOptions image_layer(const ImageEncoderConfig& c) {
  nn::TransformerLayerOptions o = layer_options(c, {.qkv = c.qkv_bias});
  o.norm_first = true;
  return o;
}

bool classifies(const ImageEncoderConfig& c) { return c.head == EncoderHead::classification; }

int64_t patches_of_side(const ImageEncoderConfig& c) { return c.image_size / c.patch_size; }

int64_t patch_elements(const ImageEncoderConfig& c) {
  return checked_multiply(c.channels, checked_multiply(c.patch_size, c.patch_size, "config"), "config");
}

// Weights of patches and positions.
int64_t embedding_weights(const ImageEncoderConfig& c) {
  return checked_multiply(patch_elements(c) + sequence_length(c) + 1, c.embed_dim, "config");
}

}  // namespace

template <>
const std::vector<ConfigField<ImageEncoderConfig>>& config_fields() {
  using C = ImageEncoderConfig;
  using enum Stored;
  constexpr io::IntegerRange kSide = {.min = 1, .max = 1 << 16};
  static const std::vector<ConfigField<C>> fields = {
      {"image_size", &C::image_size, always, kSide, "image-size",
       "pixels of a side; images are resized (0: the first image's, if it is a square of at most 64; else "
       "32)"},
      {"patch_size", &C::patch_size, always, kSide, "patch-size",
       "pixels of a patch's side (0: up to 4, and a quarter of the image's)"},
      {"channels", &C::channels, always, kSide, "channels", "3: colours, 1: grey"},
      {"num_layers", &C::num_layers, always, kLayers, "layers", "Transformer layers"},
      {"num_heads", &C::num_heads, always, kSize, "heads", "attention heads per layer"},
      {"embed_dim", &C::embed_dim, always, kSize, "width", "embedding dimension"},
      {"ffn_dim", &C::ffn_dim, always, kSize, "ff", "hidden size of the feed-forward layers (0: 4 x width)"},
      {"qkv_bias", &C::qkv_bias, always},
      {"norm_eps", &C::norm_eps, always, kPositive},
      {"activation", &C::activation, always},
      {"pooler", &C::pooler, always},
      {"pooler_activation", &C::pooler_activation, always},
      {"head", &C::head, always},
      {"num_labels", &C::num_labels, always, kSizeOrNone},
      {"problem_type", &C::problem_type, later},
      {"dropout_p", &C::dropout_p, always, kProbability, "dropout",
       "dropout on embeddings and sub-layer outputs"},
      {"attention_dropout_p", &C::attention_dropout_p, always, kProbability, "attention-dropout",
       "dropout on attention weights"},
      {"init_std", &C::init_std, always, kPositive}};
  return fields;
}

ImageEncoderConfig resolved(ImageEncoderConfig c) {
  using C = ImageEncoderConfig;
  resolve_sizes(c, {&C::ffn_dim});
  MH_CHECK(c.image_size % c.patch_size == 0, ValueError, "config: image_size ", c.image_size,
           " is not divisible by patch_size ", c.patch_size);
  MH_CHECK(c.head == EncoderHead::none || classifies(c), ValueError,
           "config: head must be none or classification, got ", word_of(c.head));
  MH_CHECK(classifies(c) == (c.num_labels > 0), ValueError, "config: head ", word_of(c.head), " with ",
           c.num_labels, " labels");
  check_labels(c);
  check_weights(embedding_weights(c), layer_weights(image_layer(c)), c.num_layers);
  return c;
}

int64_t sequence_length(const ImageEncoderConfig& c) { return 1 + patches_of_side(c) * patches_of_side(c); }

int64_t matrix_weights(const ImageEncoderConfig& config) {
  const ImageEncoderConfig c = resolved(config);
  return embedding_weights(c) + c.num_layers * layer_weights(image_layer(c)) +
         (c.pooler ? c.embed_dim * c.embed_dim : 0) + c.num_labels * c.embed_dim;
}

ImageEncoder::ImageEncoder(const ImageEncoderConfig& config, Rng& rng) : config_(resolved(config)) {
  const ImageEncoderConfig& c = config_;
  check_weight_memory(matrix_weights(c));
  class_token = nn::normal_parameter({1, 1, c.embed_dim}, c.init_std, rng);
  position_embedding = nn::normal_parameter({1, sequence_length(c), c.embed_dim}, c.init_std, rng);
  patch_weight = nn::normal_parameter({c.embed_dim, c.channels, c.patch_size, c.patch_size}, c.init_std, rng);
  patch_bias = nn::constant_parameter({c.embed_dim}, 0);
  for (int64_t i = 0; i < c.num_layers; ++i) layers.emplace_back(image_layer(c), rng);
  final_norm = nn::Norm(c.embed_dim, {.eps = c.norm_eps});
  if (c.pooler) pooler = nn::Linear(c.embed_dim, c.embed_dim, rng);
  if (classifies(c)) classifier = nn::Linear(c.embed_dim, c.num_labels, rng);
  initialize_weights(*this, c.init_std, rng);
}

void ImageEncoder::visit(nn::Visitor& visitor) {
  visitor("class_token", class_token);
  visitor("position_embedding", position_embedding);
  visitor("patch_weight", patch_weight);
  visitor("patch_bias", patch_bias);
  visitor("layers", layers);
  visitor("final_norm", final_norm);
  if (config_.pooler) visitor("pooler", pooler);
  if (classifies(config_)) visitor("classifier", classifier);
}

void ImageEncoder::pack_weights(nn::WeightDtype dtype) {
  const auto pack = [&](const std::string&, const Tensor& weight) { return nn::PackedLinear(weight, dtype); };
  pack_once("ImageEncoder", *this, packed_dtype_, dtype, pack);
}

// A patch's pixels are a row: channel by channel, as convolutions store their weights.
Tensor ImageEncoder::embed(const Tensor& pixels) const {
  const ImageEncoderConfig& c = config_;
  const int64_t images = pixels.size(0), side = patches_of_side(c), p = c.patch_size;
  const Tensor blocks = permute(reshape(pixels, {images, c.channels, side, p, side, p}), {0, 2, 4, 1, 3, 5});
  const Tensor patches = linear(reshape(blocks, {images, side * side, patch_elements(c)}),
                                reshape(patch_weight, {c.embed_dim, -1}), patch_bias);
  const Tensor x =
      concat({expand(class_token, {images, 1, c.embed_dim}), cast(patches, class_token.dtype())}, 1);
  return add(point("embed", x), position_embedding);
}

Tensor ImageEncoder::features(const Tensor& pixels, Rng* rng) const {
  const ImageEncoderConfig& c = config_;
  const Shape image = {c.channels, c.image_size, c.image_size};
  MH_CHECK(pixels.rank() == 4 && pixels.size(0) > 0 &&
               Shape({pixels.size(1), pixels.size(2), pixels.size(3)}) == image,
           ShapeError, "ImageEncoder: pixels must be [N, ", c.channels, ", ", c.image_size, ", ",
           c.image_size, "], got ", pixels.shape());
  Tensor x = dropout(embed(pixels), c.dropout_p, rng);
  nn::LayerCall call;
  call.rng = rng;
  for (size_t i = 0; i < layers.size(); ++i) {
    const nn::detail::PointPath in("layers", i);
    x = layers[i](x, call);
  }
  return final_norm(x, "final_norm");
}

namespace {

Tensor first_vectors(const Tensor& features) {
  return reshape(slice(features, 1, 0, 1), {features.size(0), features.size(2)});
}

}  // namespace

Tensor ImageEncoder::pooled(const Tensor& features) const {
  MH_CHECK(config_.pooler, ValueError, "ImageEncoder: the model has no pooler");
  MH_CHECK(features.rank() == 3 && features.size(1) > 0, ShapeError,
           "ImageEncoder: features must be [N, T, embed_dim], got ", features.shape());
  return detail::activate_pooled(pooler(first_vectors(features)), config_.pooler_activation);
}

Tensor ImageEncoder::logits(const Tensor& pixels, Rng* rng) const {
  MH_CHECK(classifies(config_), ValueError, "ImageEncoder: the model has no head for logits");
  return classifier(first_vectors(features(pixels, rng)));
}

ImageEncoder with_weights(const ImageEncoderConfig& config, ImageEncoder from, Rng& rng,
                          std::vector<std::string>* fresh) {
  return known_weights(config, std::move(from), rng, fresh);
}

}  // namespace multihead::models
