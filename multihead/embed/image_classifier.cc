#include "multihead/embed/image_classifier.h"

#include <algorithm>
#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/embed/classifiers-inl.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/config.h"
#include "multihead/io/directory.h"
#include "multihead/io/file_set.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

constexpr const char* kPreprocessorFile = "preprocessor_config.json";

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

ImageScaling read_scaling(const std::string& path, const models::ImageEncoderConfig& config) {
  MH_CHECK(node_at(path) == Node::file, IoError, path,
           " is missing, which says how pixels are scaled; ImageClassifier.save() writes it");
  io::ConfigReader reader(io::load_json(path), path);
  if (reader.boolean_or("do_resize", true)) check_image_size(reader, config.image_size);
  const io::NumberRange finite = {.min = -1e6, .max = 1e6},
                        positive = {.min = 0, .max = 1e6, .exclude_min = true};
  const auto channels = static_cast<size_t>(config.channels);
  ImageScaling scaling = {.mean = std::vector<double>(channels, 0),
                          .deviation = std::vector<double>(channels, 1)};
  scaling.rescale_factor =
      reader.boolean_or("do_rescale", true) ? reader.number_or("rescale_factor", 1.0 / 255, positive) : 1;
  if (reader.boolean_or("do_normalize", true)) {
    scaling.mean = per_channel(reader, "image_mean", config.channels, finite);
    scaling.deviation = per_channel(reader, "image_std", config.channels, positive);
  }
  for (const char* step : {"do_center_crop", "do_pad", "do_thumbnail", "do_align_long_axis",
                           "do_reduce_labels", "do_flip_channel_order", "do_split_image"}) {
    if (reader.boolean_or(step, false)) reader.fail(step, "true is not supported");
  }
  reader.ignore({"size", "resample", "rescale_factor", "image_mean", "image_std", "do_convert_rgb",
                 "image_processor_type", "feature_extractor_type", "processor_class", "data_format",
                 "input_data_format", "default_to_square", "device", "disable_grouping", "return_tensors"});
  reader.refuse_unknown();
  return scaling;
}

Json list_of(const std::vector<double>& values) { return std::vector<Json>(values.begin(), values.end()); }

}  // namespace

ImageClassifier::ImageClassifier(models::ImageEncoder encoder, ImageScaling scaling)
    : encoder_(std::move(encoder)), scaling_(std::move(scaling)) {
  const models::ImageEncoderConfig& c = encoder_.config();
  MH_CHECK(c.head == models::EncoderHead::classification, ValueError,
           "ImageClassifier: expected an image classification head (ViTForImageClassification), the model "
           "has none");
  const auto channels = static_cast<size_t>(c.channels);
  for (std::vector<double>* values : {&scaling_.mean, &scaling_.deviation}) {
    if (values->empty()) values->assign(channels, 0.5);
    MH_CHECK(values->size() == channels, ValueError, "ImageClassifier: the scaling is of ", values->size(),
             " channels, the model has ", channels);
  }
  for (size_t i = 0; i < channels; ++i) {
    MH_CHECK(scaling_.deviation[i] > 0, ValueError, "ImageClassifier: a deviation must be positive, got ",
             scaling_.deviation[i]);
    factor_.push_back(static_cast<float>(scaling_.rescale_factor / scaling_.deviation[i]));
    shift_.push_back(static_cast<float>(-scaling_.mean[i] / scaling_.deviation[i]));
  }
}

ImageClassifier ImageClassifier::load(const std::string& folder, nn::WeightDtype weights) {
  models::ImageEncoder encoder = models::load_image_encoder(folder);
  MH_CHECK(encoder.config().head == models::EncoderHead::classification, ValueError, folder,
           ": expected an image classification head (ViTForImageClassification), the model has none");
  ImageScaling scaling = read_scaling(io::join(folder, kPreprocessorFile), encoder.config());
  encoder.pack_weights(weights);
  return ImageClassifier(std::move(encoder), std::move(scaling));
}

void ImageClassifier::save(const std::string& folder, bool overwrite) {
  const int64_t side = encoder_.config().image_size;
  const Json json = Json::object({{"image_processor_type", "ViTImageProcessor"},
                                  {"do_resize", true},
                                  {"size", Json::object({{"height", side}, {"width", side}})},
                                  {"resample", 2},
                                  {"do_rescale", true},
                                  {"rescale_factor", scaling_.rescale_factor},
                                  {"do_normalize", true},
                                  {"image_mean", list_of(scaling_.mean)},
                                  {"image_std", list_of(scaling_.deviation)}});
  models::save_image_encoder(encoder_, folder, overwrite);
  io::save_files(folder, {kPreprocessorFile}, [&](io::DirectoryWriter& writer) {
    io::write_contents(writer, {.files = {{kPreprocessorFile, json.dump(2) + "\n"}}});
  });
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
