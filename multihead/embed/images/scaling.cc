#include "multihead/embed/images/scaling.h"

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/config.h"
#include "multihead/io/directory.h"
#include "multihead/io/json.h"

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

// transformers' classes, by the beginning of their names, and what they do where the file does not say.
struct Processor {
  const char* name;
  int64_t resample;
  bool crops, converts;
};
constexpr Processor kProcessors[] = {{"ViT", 2, false, false},
                                     {"Siglip", 3, false, true},
                                     {"DeiT", 3, true, false},
                                     {"CLIP", 3, true, true},
                                     {"Bit", 3, true, true}};

const Processor& processor_of(io::ConfigReader& reader) {
  for (const char* key : {"image_processor_type", "feature_extractor_type"}) {
    const std::string given = reader.string_or(key, "");
    if (given.empty()) continue;
    const std::string name =
        given.substr(0, std::min(given.find("ImageProcessor"), given.find("FeatureExtractor")));
    for (const Processor& one : kProcessors)
      if (name == one.name) return one;
    reader.fail(key,
                concat(quote(given, 60), " is not supported: ViT's, Siglip's, DeiT's, CLIP's and Bit's are"));
  }
  return kProcessors[0];
}

Json list_of(const std::vector<double>& values) { return std::vector<Json>(values.begin(), values.end()); }

}  // namespace

ImageScaling read_scaling(const std::string& folder, const models::ImageEncoderConfig& config) {
  const std::string path = io::join(folder, kPreprocessorFile);
  MH_CHECK(node_at(path) == Node::file, IoError, path,
           " is missing, which says how pixels are scaled; ImageClassifier.save() writes it");
  io::ConfigReader reader(io::load_json(path), path);
  const io::NumberRange finite = {.min = -1e6, .max = 1e6},
                        positive = {.min = 0, .max = 1e6, .exclude_min = true};
  const Processor& processor = processor_of(reader);
  const auto channels = static_cast<size_t>(config.channels);
  ImageScaling scaling = {.mean = std::vector<double>(channels, 0),
                          .deviation = std::vector<double>(channels, 1),
                          .resizes = reader.boolean_or("do_resize", true),
                          .resample = reader.integer_or("resample", processor.resample, {.min = 0, .max = 5}),
                          .on_white = reader.boolean_or("do_convert_rgb", processor.converts)};
  if (scaling.resizes) check_image_size(reader, config.image_size);
  scaling.rescale_factor =
      reader.boolean_or("do_rescale", true) ? reader.number_or("rescale_factor", 1.0 / 255, positive) : 1;
  if (reader.boolean_or("do_normalize", true)) {
    scaling.mean = per_channel(reader, "image_mean", config.channels, finite);
    scaling.deviation = per_channel(reader, "image_std", config.channels, positive);
  }
  if (reader.boolean_or("do_center_crop", processor.crops))
    reader.fail("do_center_crop",
                concat("true", processor.crops ? ", the default of the class," : "", " is not supported"));
  for (const char* step : {"do_pad", "do_thumbnail", "do_align_long_axis", "do_reduce_labels",
                           "do_flip_channel_order", "do_split_image"}) {
    if (reader.boolean_or(step, false)) reader.fail(step, "true is not supported");
  }
  reader.ignore({"size", "resample", "rescale_factor", "image_mean", "image_std", "processor_class",
                 "data_format", "input_data_format", "default_to_square", "device", "disable_grouping",
                 "return_tensors"});
  reader.refuse_unknown();
  return scaling;
}

Json to_json(const ImageScaling& scaling, const models::ImageEncoderConfig& config) {
  const int64_t side = config.image_size;
  return Json::object({{"image_processor_type", "ViTImageProcessor"},
                       {"do_resize", scaling.resizes},
                       {"size", Json::object({{"height", side}, {"width", side}})},
                       {"resample", scaling.resample},
                       {"do_rescale", true},
                       {"rescale_factor", scaling.rescale_factor},
                       {"do_normalize", true},
                       {"image_mean", list_of(scaling.mean)},
                       {"image_std", list_of(scaling.deviation)},
                       {"do_convert_rgb", scaling.on_white}});
}

ImageScaling resolved(ImageScaling scaling, int64_t channels) {
  for (std::vector<double>* values : {&scaling.mean, &scaling.deviation}) {
    if (values->empty()) values->assign(static_cast<size_t>(channels), 0.5);
    MH_CHECK(std::ssize(*values) == channels, ValueError, "ImageClassifier: the scaling is of ",
             values->size(), " channels, the model has ", channels);
  }
  for (const double deviation : scaling.deviation) {
    MH_CHECK(deviation > 0, ValueError, "ImageClassifier: a deviation must be positive, got ", deviation);
  }
  return scaling;
}

void scale_pixels(Tensor& images, const ImageScaling& scaling) {
  const int64_t channels = images.size(1), planes = images.size(0) * channels,
                size = planes == 0 ? 0 : images.numel() / planes;
  float* at = images.data<float>();
  for (int64_t plane = 0; plane < planes; ++plane) {
    const auto channel = static_cast<size_t>(plane % channels);
    const double deviation = scaling.deviation[channel];
    const auto factor = static_cast<float>(scaling.rescale_factor / deviation),
               shift = static_cast<float>(-scaling.mean[channel] / deviation);
    for (int64_t i = 0; i < size; ++i, ++at) *at = *at * factor + shift;
  }
}

Image read_image(const std::string& path, const ImageScaling& scaling,
                 const models::ImageEncoderConfig& config) {
  Image image = read_image(path, config.channels, scaling.on_white);
  const int64_t side = config.image_size;
  if (image.height == side && image.width == side) return image;
  MH_CHECK(scaling.resizes, FormatError, quote(path), ": has ", image.width, "x", image.height,
           " pixels; the model takes ", side, "x", side, ", and its ", kPreprocessorFile,
           " says that nothing is resized");
  MH_CHECK(scaling.resample == 2 || scaling.resample == 3, FormatError, quote(path), ": has ", image.width,
           "x", image.height, " pixels; the model takes ", side, "x", side, ", and its ", kPreprocessorFile,
           " resizes by \"resample\": ", scaling.resample, "; supported are 2 (bilinear) and 3 (bicubic)");
  return resized(image, side, side, scaling.resample);
}

}  // namespace multihead::embed
