#include "multihead/train/tasks/image_classifier_run.h"

#include <algorithm>
#include <set>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/images/labelled_files.h"
#include "multihead/io/directory.h"
#include "multihead/io/json.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/train/data/rows.h"

namespace multihead::train {
namespace {

using models::EncoderHead;
using models::ImageEncoderConfig;

int64_t image_bytes_of(const ImageEncoderConfig& c) { return c.channels * c.image_size * c.image_size; }

// What is left to be chosen, by the first image.
ImageEncoderConfig chosen_sizes(ImageEncoderConfig c, const std::string& first) {
  constexpr int64_t kMostOwn = 64, kOther = 32, kMostOfPatch = 4;
  if (c.image_size == 0) {
    const embed::Image image = embed::read_image(first, c.channels);
    const bool keeps = image.height == image.width && image.width <= kMostOwn;
    c.image_size = keeps ? image.width : kOther;
  }
  if (c.patch_size > 0) return c;
  c.patch_size = 1;
  for (int64_t p = 2; p <= std::min(c.image_size / 4, kMostOfPatch); ++p) {
    if (c.image_size % p == 0) c.patch_size = p;
  }
  return c;
}

std::vector<uint8_t> read_planes(const embed::LabelledFiles& files, const ImageEncoderConfig& config,
                                 const embed::ImageScaling& scaling) {
  const int64_t each = image_bytes_of(config), count = std::ssize(files.files);
  check_memory(static_cast<double>(each) * static_cast<double>(count), concat("train: ", count, " images"),
               "choose a smaller --image-size");
  std::vector<uint8_t> planes(static_cast<size_t>(each * count));
  parallel_for(count, [&](int64_t i, int) {
    const std::string& file = files.files[static_cast<size_t>(i)];
    try {
      copy_planes(embed::read_image(file, scaling, config), planes.data() + i * each);
    } catch (const IoError& error) {
      throw FormatError(error.what());  // as any other input that cannot be used
    }
  });
  return planes;
}

// What tells images apart.
std::vector<std::string> checksums_of(const std::vector<uint8_t>& planes, int64_t each) {
  std::vector<std::string> sums;
  for (size_t i = 0; i < planes.size(); i += static_cast<size_t>(each)) {
    const std::string one(planes.begin() + static_cast<std::ptrdiff_t>(i),
                          planes.begin() + static_cast<std::ptrdiff_t>(i) + each);
    sums.push_back(checksum_text(checksum(one)));
  }
  return sums;
}

// A model that is fine-tuned keeps its sizes.
void refuse_sizes(const std::string& init, const std::string& name) {
  throw ValueError(concat("train images: ", init,
                          ": its model has other sizes than those of these settings (", name,
                          "); leave --image-size, --patch-size, --channels, --layers and --width to it"));
}

void warn_of_shared(ImageData& data, const std::vector<std::string>& training,
                    const std::vector<std::string>& validation, const std::vector<std::string>& files) {
  const std::set<std::string> known(training.begin(), training.end());
  const auto is_known = [&](const std::string& sum) { return known.contains(sum); };
  const auto first = std::ranges::find_if(validation, is_known);
  if (first == validation.end()) return;
  data.targets.warnings.push_back(
      concat(std::ranges::count_if(validation, is_known), " of ", validation.size(),
             " validation images are training images, too, so that scores are too good; the first is ",
             quote(files[static_cast<size_t>(first - validation.begin())], 400)));
}

text::LabelledTexts labels_alone(const embed::LabelledFiles& files) {
  return {.labels = files.labels, .lines = std::vector<int64_t>(files.labels.size())};
}

models::ImageEncoder image_model(const ImageEncoderConfig& config, const std::string& init, int64_t seed,
                                 std::vector<std::string>& fresh) {
  Rng rng(static_cast<uint64_t>(seed));
  if (init.empty()) return {config, rng};
  models::ImageEncoder model = models::with_weights(config, models::load_image_encoder(init), rng, &fresh);
  for (const std::string& name : fresh) {
    if (!name.starts_with("classifier.")) refuse_sizes(init, name);
  }
  return model;
}

ImageClassifierSettings with_model(ImageClassifierSettings s, const ImageEncoderConfig& model) {
  s.model = model;
  return s;
}

}  // namespace

std::vector<std::string> image_classifier_presets() { return {"tiny", "small", "base"}; }

ImageClassifierSettings image_classifier_settings(const std::string& preset) {
  ImageClassifierSettings s;
  ImageEncoderConfig& m = s.model;
  set_fine_tuning(s);
  set_new(s, preset == "tiny" ? 10000 : 30000);
  s.schedule = optim::ScheduleKind::cosine;
  s.lr = 1e-3, s.weight_decay = 0.05, m.pooler = false;
  m.image_size = m.patch_size = 0;
  if (preset == "tiny") {
    m.num_layers = 4, m.num_heads = 4, m.embed_dim = 64;
  } else if (preset == "small") {
    m.num_layers = 6, m.num_heads = 4, m.embed_dim = 256, m.dropout_p = 0.1, s.lr = 5e-4;
  } else {
    MH_CHECK(preset == "base", ValueError, "train: unknown preset ", quote(preset),
             "; choose tiny, small or base");
    m.image_size = 224, m.patch_size = 16, m.dropout_p = 0.1, s.lr = 2e-4;
  }
  return s;
}

ImageEncoderConfig least_model(const ImageClassifierSettings& settings) {
  ImageEncoderConfig config = settings.model;
  if (config.image_size == 0) config.image_size = std::max<int64_t>(config.patch_size, 1);
  if (config.patch_size == 0) config.patch_size = config.image_size;
  return models::resolved(config);
}

std::vector<Field> fields(ImageClassifierSettings& s) {
  std::vector<Field> list = model_fields(s.model);
  list.push_back({"batch", "images per micro-batch", &s.batch, 1});
  list.push_back({"eval-images", "validation images per evaluation (0: all)", &s.eval_images, 0});
  add_training_fields(list, s);
  std::erase_if(list, [](const Field& field) { return field.name.starts_with("lora-"); });
  add_report_fields(list, s);
  return list;
}

void check(const ImageClassifierSettings& settings) {
  ImageClassifierSettings s = settings;
  check_training(s, fields(s), s.model.embed_dim);
  const ImageEncoderConfig least = least_model(s);
  MH_CHECK(s.model.channels == 3 || s.model.channels == 1, ValueError,
           "train: --channels must be 3 (colours) or 1 (grey), got ", s.model.channels);
  MH_CHECK(s.batch <= (int64_t{1} << 31) / sequence_length(least), ValueError, "train: a --batch of ",
           s.batch, " images of ", sequence_length(least), " patches is more than 2^31 tokens");
}

void start_from(ImageClassifierSettings& settings, const std::string& init) {
  settings.model = models::load_image_encoder(init).config();
  set_fine_tuning(settings);
}

ImageData read_image_data(const RunOf<ImageClassifierSettings>& run) {
  ImageData data = {.model = run.settings.model};
  const embed::LabelledFiles training = embed::list_images(run.data);
  const embed::LabelledFiles validation =
      run.valid.empty() ? embed::LabelledFiles() : embed::list_images(run.valid);
  data.model = chosen_sizes(data.model, training.files.front());
  if (!run.init.empty()) {
    const std::string path = io::join(run.init, "config.json");
    const auto own = models::image_encoder_config_from_json(io::load_json(path), path);
    if (own.image_size != data.model.image_size) refuse_sizes(run.init, "image_size");
    if (own.channels != data.model.channels) refuse_sizes(run.init, "channels");
  }
  data.scaling = run.init.empty() ? resolved(embed::ImageScaling(), data.model.channels)
                                  : embed::read_scaling(run.init, data.model);
  data.training = read_planes(training, data.model, data.scaling);
  data.validation = read_planes(validation, data.model, data.scaling);
  const models::EncoderConfig known = {
      .head = data.model.head, .num_labels = data.model.num_labels, .labels = data.model.labels};
  data.targets = read_targets(labels_alone(training), labels_alone(validation),
                              models::ProblemType::single_label, known, true, "images");
  data.targets.notes.push_back(concat("images of ", data.model.image_size, "x", data.model.image_size,
                                      " pixels, patches of ", data.model.patch_size, "x",
                                      data.model.patch_size));
  const int64_t each = image_bytes_of(data.model);
  const std::vector<std::string> sums = checksums_of(data.training, each),
                                 others = checksums_of(data.validation, each);
  warn_of_shared(data, sums, others, validation.files);
  data.sums = sums_of_columns({sums, training.labels}, {others, validation.labels});
  data.model.head = EncoderHead::classification, data.model.pooler = false;
  data.model.labels = data.targets.names, data.model.num_labels = std::ssize(data.targets.names);
  data.model.problem_type = models::ProblemType::unstated;
  return data;
}

ImageClassifierTask::ImageClassifierTask(const ImageClassifierSettings& settings, const ImageData& data,
                                         const std::string& init)
    : ModelTask(
          with_model(settings, data.model),
          [&](const ImageClassifierSettings& s, std::vector<std::string>& fresh) {
            return image_model(s.model, init, s.seed, fresh);
          },
          data_id("images", data.sums), settings.eval_images),
      data_(data) {}

Tensor ImageClassifierTask::pixels_of(const std::vector<uint8_t>& images,
                                      const std::vector<int64_t>& rows) const {
  const ImageEncoderConfig& c = data_.model;
  const int64_t each = image_bytes_of(c);
  Tensor pixels = Tensor::empty({std::ssize(rows), c.channels, c.image_size, c.image_size});
  float* at = pixels.data<float>();
  for (const int64_t row : rows) at = std::copy_n(images.begin() + row * each, each, at);
  scale_pixels(pixels, data_.scaling);
  return pixels;
}

Task::Loss ImageClassifierTask::loss(int64_t index) {
  const std::vector<int64_t> rows = batch_rows(index, settings_.batch, data_.targets.training.size(0),
                                               static_cast<uint64_t>(settings_.seed));
  Rng rng = dropout_rng(settings_, index);
  return {
      head_loss(model_.logits(pixels_of(data_.training, rows), &rng),
                target_rows(data_.targets.training, rows), data_.targets.problem, settings_.label_smoothing),
      std::ssize(rows) * sequence_length(data_.model)};
}

std::optional<ImageScore> ImageClassifierTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.empty()) return std::nullopt;
  const std::vector<int64_t> all = spread_rows(data_.targets.validation.size(0), most);
  return ImageScore{score_rows(sharing, all, settings_.batch, data_.targets, [&](const auto& rows) {
    return model_.logits(pixels_of(data_.validation, rows));
  })};
}

void ImageClassifierTask::save(io::CheckpointContents& contents) {
  contents.tensors["model.safetensors"] =
      models::export_weights(nn::named_parameters(model_), models::weight_map(model_));
  contents.files["config.json"] = models::config_to_json(model_.config()).dump(2) + "\n";
  contents.files[embed::kPreprocessorFile] = to_json(data_.scaling, data_.model).dump(2) + "\n";
}

void ImageClassifierTask::describe(ImageClassifierSummary& summary) const {
  summary.labels = data_.targets.names, summary.images = data_.targets.training.size(0);
}

const Kind& ImageClassifierTask::kind() {
  static const Kind kind = {
      .name = "images",
      .about = "train a vision Transformer to classify images",
      .examples = {{"multihead train images --data digits/train --valid digits/valid --out model",
                    "a folder of PNG or PPM files for each label"},
                   {"multihead train images --init vit --data images --out model",
                    "fine-tune a ViT; images are resized to its size"},
                   {"multihead train images --data digits/train --out model --resume",
                    "continue an interrupted run"},
                   {"multihead eval model --data digits/test", "accuracy, and figures of each label"},
                   {"multihead classify model --image cat.png", "use it"}},
      .tag = "image-classification",
      .unit = "image",
      .data = "folder of training images: for each label a folder of its name with PNG or PPM files",
      .valid = "folder of validation images; without it there is no evaluation",
      .has_folders = true,
      .presets = image_classifier_presets(),
      .make = TaskRun<ImageClassifierTask>::make};
  return kind;
}

ImageClassifierSummary train_image_classifier(const ImageClassifierRun& run) {
  return train_task<ImageClassifierTask>(run);
}

Json to_json(const ImageScore& score) {
  Json json = to_json(static_cast<const LabelScore&>(score));
  json.erase("texts");
  json["images"] = score.texts;
  return json;
}

Json ImageClassifierSummary::counts() const {
  return Json::object(
      {{"images", images}, {"labels", Json(std::vector<Json>(labels.begin(), labels.end()))}});
}

}  // namespace multihead::train
