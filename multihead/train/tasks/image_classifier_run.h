// A complete run of a vision Transformer: images in folders called by their labels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/embed/images/scaling.h"
#include "multihead/train/data/targets.h"
#include "multihead/train/tasks/classifier_run.h"

namespace multihead::train {

struct ImageClassifierSettings : TrainingSettings {
  /// image_size 0: that of the first image, if it is a square of at most 64 pixels, else 32; patch_size 0: the largest
  /// that divides it, up to 4 and a quarter of the side.
  models::ImageEncoderConfig model = {};
  int64_t batch = 32;       ///< images per micro-batch
  int64_t eval_images = 0;  ///< validation images per evaluation, evenly spread; 0: all. The last takes all
};

/// "tiny" (4 layers of 64), "small" (6 layers of 256), "base" (12 layers of 768 on 224 pixels, ViT's). Throws
/// ValueError for other names.
ImageClassifierSettings image_classifier_settings(const std::string& preset);
std::vector<std::string> image_classifier_presets();
/// The model, resolved; where its size is not known yet, with the smallest there can be.
models::ImageEncoderConfig least_model(const ImageClassifierSettings& settings);
std::vector<Field> fields(ImageClassifierSettings& settings);
/// Throws ValueError naming the first invalid setting.
void check(const ImageClassifierSettings& settings);
/// The model of a folder, to be trained on. Throws IoError, FormatError.
void start_from(ImageClassifierSettings& settings, const std::string& init);

/// Labelled images as the model takes them, their channels one after another.
struct ImageData {
  models::ImageEncoderConfig model;
  embed::ImageScaling scaling;
  Targets targets;
  std::vector<uint8_t> training = {}, validation = {};
  DataSums sums = {};  ///< of the images and their labels
};
/// Throws what embed::list_images(), embed::read_image() and read_targets() throw.
ImageData read_image_data(const RunOf<ImageClassifierSettings>& run);

struct ImageScore : LabelScore {};
Json to_json(const ImageScore& score);

struct ImageClassifierSummary : ScoredSummary<ImageScore> {
  std::vector<std::string> labels;
  int64_t images = 0;
  Json counts() const;
};

/// The training task of a classifier of images: the cross-entropy of each image's label.
class ImageClassifierTask : public ModelTask<ImageClassifierSettings, models::ImageEncoder, ImageScore> {
 public:
  using Data = ImageData;
  using Summary = ImageClassifierSummary;
  /// `data` must outlive the task. `init`: the folder whose weights it begins with; empty: random ones.
  ImageClassifierTask(const ImageClassifierSettings& settings, const ImageData& data,
                      const std::string& init);

  static const Kind& kind();
  static ImageClassifierSettings preset(const std::string& name) { return image_classifier_settings(name); }
  static Data read(const Run& run) { return read_image_data(run); }
  static int64_t pass(const ImageClassifierSettings& s, const Data& data) {
    return (data.targets.training.size(0) + s.batch - 1) / s.batch;
  }
  static ImageClassifierTask make(const Run& run, const Data& data) { return {run.settings, data, run.init}; }

  Loss loss(int64_t index) override;
  double targets(int64_t) const override { return static_cast<double>(settings_.batch); }
  std::optional<ImageScore> score(int64_t most, const Sharing& sharing = {}) const override;
  void save(io::CheckpointContents& contents) override;
  void describe(ImageClassifierSummary& summary) const;
  std::vector<std::string> notes() const { return data_.targets.notes; }
  std::vector<std::string> warnings() const { return data_.targets.warnings; }

 private:
  Tensor pixels_of(const std::vector<uint8_t>& images, const std::vector<int64_t>& rows) const;

  const ImageData& data_;
};

/// `data` and `valid` are folders (embed::list_images).
using ImageClassifierRun = RunOf<ImageClassifierSettings>;
/// See train_task(). ImageClassifier::load() reads the result.
ImageClassifierSummary train_image_classifier(const ImageClassifierRun& run);

}  // namespace multihead::train
