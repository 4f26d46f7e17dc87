#include "multihead/embed/text_model.h"

#include <utility>

#include "multihead/core/error.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/nn/points.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

using models::Encoder;
using models::Seq2Seq;

// Sentences go through one at a time: Seq2Seq pads batches.
Tensor features_of(const Seq2Seq& model, const models::TokenRows& rows, Rng* rng) {
  rows.check("Seq2Seq", model.config().max_positions);
  const int64_t* ends = rows.cu_seqlens.data<int64_t>();
  std::vector<Tensor> parts;
  for (int64_t s = 0; s < rows.sequences(); ++s) {
    const Tensor tokens = reshape(slice(rows.tokens, 0, ends[s], ends[s + 1]), {1, -1});
    parts.push_back(reshape(model.encode({tokens, {}}, rng), {tokens.size(1), -1}));
  }
  return concat(parts, 0);
}
template <class Model>
Tensor features_of(const Model& model, const models::TokenRows& rows, Rng* rng) {
  return model.features(rows, rng);
}

int64_t layers_of(const models::Seq2SeqConfig& c) { return c.encoder_layers; }
template <class Config>
int64_t layers_of(const Config& c) {
  return c.num_layers;
}

int64_t context_of(const models::Seq2SeqConfig& c) { return c.max_positions; }
template <class Config>
int64_t context_of(const Config& c) {
  return c.context;
}

int64_t words_of(const models::Seq2SeqConfig& c) { return c.source_vocab_size; }
template <class Config>
int64_t words_of(const Config& c) {
  return c.vocab_size;
}

}  // namespace

TextModel::TextModel(Any model) : model_(std::move(model)) {}
TextModel::TextModel(Encoder model) : model_(std::move(model)) {}

TextModel TextModel::load(const std::string& folder, std::optional<nn::WeightDtype> weights, bool packed,
                          const std::string& task) {
  if (models::has_encoder(folder)) return models::load_encoder(folder, weights, packed, task);
  if (!models::is_seq2seq_folder(folder)) return Any(models::load_decoder(folder, weights, packed));
  MH_CHECK(!weights || weights == nn::WeightDtype::f32, ValueError, folder,
           ": the weights of this encoder-decoder model's encoder can only be f32, got ",
           kernels::name(*weights));
  return Any(models::load_seq2seq(folder));
}

Tensor TextModel::features(const models::TokenRows& rows, Rng* rng) const {
  return std::visit([&](const auto& model) { return features_of(model, rows, rng); }, model_);
}

std::vector<Tensor> TextModel::states(const models::TokenRows& rows, Rng* rng) const {
  MH_CHECK(!std::holds_alternative<Seq2Seq>(model_), ValueError,
           "TextModel: states of an encoder-decoder model are not supported");
  nn::Points points;
  points.keep("layers.*.resid_pre");
  const nn::PointScope scope(points);
  const Tensor last = features(rows, rng);
  std::vector<Tensor> all;
  for (int64_t i = 0; i < num_layers(); ++i) {
    all.push_back(reshape(points.kept().at(concat("layers.", i, ".resid_pre")), last.shape()));
  }
  all.push_back(last);
  return all;
}

int64_t TextModel::num_layers() const {
  return std::visit([](const auto& model) { return layers_of(model.config()); }, model_);
}

int64_t TextModel::context() const {
  return std::visit([](const auto& model) { return context_of(model.config()); }, model_);
}

int64_t TextModel::vocab_size() const {
  return std::visit([](const auto& model) { return words_of(model.config()); }, model_);
}

int64_t TextModel::embed_dim() const {
  return std::visit([](const auto& model) { return model.config().embed_dim; }, model_);
}

const Encoder& TextModel::encoder() const {
  const auto* encoder = std::get_if<Encoder>(&model_);
  MH_CHECK(encoder != nullptr, ValueError, "TextModel: the model is not an encoder");
  return *encoder;
}

Encoder& TextModel::encoder() { return const_cast<Encoder&>(std::as_const(*this).encoder()); }

void TextModel::visit(nn::Visitor& visitor) {
  std::visit([&](auto& model) { model.visit(visitor); }, model_);
}

}  // namespace multihead::embed
