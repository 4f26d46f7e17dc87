#include "multihead/embed/image_classifier.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/embed/classifiers-inl.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/directory.h"
#include "multihead/io/file_set.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {

ImageClassifier::ImageClassifier(models::ImageEncoder encoder, ImageScaling scaling)
    : encoder_(std::move(encoder)), scaling_(resolved(std::move(scaling), encoder_.config().channels)) {
  MH_CHECK(encoder_.config().head == models::EncoderHead::classification, ValueError,
           "ImageClassifier: expected an image classification head (ViTForImageClassification), the model "
           "has none");
}

ImageClassifier ImageClassifier::load(const std::string& folder, nn::WeightDtype weights) {
  models::ImageEncoder encoder = models::load_image_encoder(folder);
  MH_CHECK(encoder.config().head == models::EncoderHead::classification, ValueError, folder,
           ": expected an image classification head (ViTForImageClassification), the model has none");
  ImageScaling scaling = read_scaling(folder, encoder.config());
  encoder.pack_weights(weights);
  return ImageClassifier(std::move(encoder), std::move(scaling));
}

void ImageClassifier::save(const std::string& folder, bool overwrite) {
  const Json json = to_json(scaling_, encoder_.config());
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
  scale_pixels(out, scaling_);
  return out;
}

Tensor ImageClassifier::read(const std::vector<std::string>& files) const {
  const models::ImageEncoderConfig& c = encoder_.config();
  Tensor out = Tensor::empty({std::ssize(files), c.channels, c.image_size, c.image_size}, Dtype::f32);
  std::vector<uint8_t> planes(static_cast<size_t>(c.channels * c.image_size * c.image_size));
  float* at = out.data<float>();
  for (const std::string& file : files) {
    copy_planes(read_image(file, scaling_, c), planes.data());
    at = std::copy(planes.begin(), planes.end(), at);
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
