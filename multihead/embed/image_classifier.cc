#include "multihead/embed/image_classifier.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/embed/classifiers-inl.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/io/config.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

// A number for each channel.
std::vector<double> per_channel(io::ConfigReader& reader, const char* key, int64_t channels,
                                io::NumberRange range) {
  const Json* given = reader.find(key);
  if (given == nullptr || !given->is_array() || std::ssize(given->items()) != channels) {
    reader.fail(key, concat("must be a list of ", channels, " numbers"));
  }
  std::vector<double> values;
  for (const Json& value : given->items()) {
    if (!value.is_number() || !range.holds(value.as_double())) reader.fail(key, "holds an invalid number");
    values.push_back(value.as_double());
  }
  return values;
}

// A side's pixels, or height and width.
void check_image_size(io::ConfigReader& reader, int64_t side) {
  const Json* size = reader.find("size");
  const Json square = Json::object({{"height", side}, {"width", side}});
  if (size == nullptr || (*size != Json(side) && *size != square)) {
    reader.fail("size", concat("must be ", square.dump(), ", as the model's image_size"));
  }
}

}  // namespace

ImageClassifier::ImageClassifier(models::ImageEncoder encoder, const std::string& preprocessor)
    : encoder_(std::move(encoder)) {
  const int64_t channels = encoder_.config().channels;
  io::ConfigReader reader(io::load_json(preprocessor), preprocessor);
  if (reader.boolean_or("do_resize", true)) check_image_size(reader, encoder_.config().image_size);
  const io::NumberRange finite = {.min = -1e6, .max = 1e6},
                        positive = {.min = 0, .max = 1e6, .exclude_min = true};
  const double factor =
      reader.boolean_or("do_rescale", true) ? reader.number_or("rescale_factor", 1.0 / 255, positive) : 1;
  std::vector<double> mean(static_cast<size_t>(channels), 0), deviation(mean.size(), 1);
  if (reader.boolean_or("do_normalize", true)) {
    mean = per_channel(reader, "image_mean", channels, finite);
    deviation = per_channel(reader, "image_std", channels, positive);
  }
  for (const char* step : {"do_center_crop", "do_pad", "do_thumbnail", "do_align_long_axis",
                           "do_reduce_labels", "do_flip_channel_order", "do_split_image"}) {
    if (reader.boolean_or(step, false)) reader.fail(step, "true is not supported");
  }
  reader.ignore({"size", "resample", "rescale_factor", "image_mean", "image_std", "do_convert_rgb",
                 "image_processor_type", "feature_extractor_type", "processor_class", "data_format",
                 "input_data_format", "default_to_square", "device", "disable_grouping", "return_tensors"});
  reader.refuse_unknown();
  for (size_t c = 0; c < mean.size(); ++c) {
    factor_.push_back(static_cast<float>(factor / deviation[c]));
    shift_.push_back(static_cast<float>(-mean[c] / deviation[c]));
  }
}

ImageClassifier ImageClassifier::load(const std::string& folder, nn::WeightDtype weights) {
  models::ImageEncoder encoder = models::load_image_encoder(folder);
  MH_CHECK(encoder.config().head == models::EncoderHead::classification, ValueError, folder,
           ": expected an image classification head (ViTForImageClassification), the model has none");
  encoder.pack_weights(weights);
  return {std::move(encoder), (std::filesystem::path(folder) / "preprocessor_config.json").string()};
}

Tensor ImageClassifier::pixels(const Tensor& images) const {
  const models::ImageEncoderConfig& c = encoder_.config();
  MH_CHECK(images.rank() == 4 && images.size(1) == c.channels && images.size(2) == c.image_size &&
               images.size(3) == c.image_size,
           ShapeError, "ImageClassifier: images must be [n, ", c.channels, ", ", c.image_size, ", ",
           c.image_size, "], got ", images.shape(), "; images are not resized");
  Tensor out = Tensor::empty(images.shape(), Dtype::f32);
  out.copy_from(images);
  float* at = out.data<float>();
  const int64_t size = c.image_size * c.image_size, planes = images.size(0) * c.channels;
  for (int64_t plane = 0; plane < planes; ++plane) {
    const auto channel = static_cast<size_t>(plane % c.channels);
    for (int64_t i = 0; i < size; ++i, ++at) *at = *at * factor_[channel] + shift_[channel];
  }
  return out;
}

Tensor ImageClassifier::logits(const Tensor& images) const {
  const NoTape silent;
  const Tensor all = pixels(images);
  const int64_t count = all.size(0),
                together = std::max<int64_t>(1, 1024 / sequence_length(encoder_.config()));
  Tensor out = Tensor::empty({count, num_labels()}, Dtype::f32);
  for (int64_t first = 0; first < count; first += together) {
    const Tensor part = encoder_.logits(slice(all, 0, first, std::min(count, first + together)));
    std::copy_n(part.data<float>(), part.numel(), out.data<float>() + first * num_labels());
  }
  return out;
}

Tensor ImageClassifier::scores(const Tensor& logits) const {
  return label_probabilities(logits, encoder_.config().problem_type);
}

std::string ImageClassifier::label(int64_t index) const {
  return detail::label_name(encoder_.config().labels, index);
}

}  // namespace multihead::embed
