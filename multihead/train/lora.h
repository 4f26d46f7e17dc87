// Fine-tuning by adapters: any task of a model that a folder holds, with low-rank additions in place of its
// weights.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "multihead/autograd/tape.h"
#include "multihead/embed/sentence_encoder.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/train/run.h"

namespace multihead::train {

/// Their options from --lora-targets "q_proj,v_proj" and the rest.
models::AdapterOptions adapter_options(const LoraSettings& settings);

namespace detail {

// The network that a task trains, and PEFT's name for its kind; of a kind without one there are no adapters.
inline auto& network_of(models::LanguageModel& model) { return model; }
inline auto& network_of(models::Seq2Seq& model) { return model; }
inline auto& network_of(models::Encoder& model) { return model; }
inline auto& network_of(models::ImageEncoder& model) { return model; }
inline auto& network_of(embed::SentenceEncoder& model) { return model.encoder(); }
inline const char* task_type(const models::LanguageModel&) { return "CAUSAL_LM"; }
inline const char* task_type(const models::Seq2Seq&) { return "SEQ_2_SEQ_LM"; }
inline const char* task_type(const models::Encoder& model) {
  if (model.config().head == models::EncoderHead::tokens) return "TOKEN_CLS";
  return model.config().head == models::EncoderHead::classification ? "SEQ_CLS" : "FEATURE_EXTRACTION";
}

}  // namespace detail

/// A task whose model keeps its weights but for A and B of an Adapter, and a head that its folder lacks.
/// Checkpoints and result hold the adapter and the head alone, beside the task's other files.
template <class Inner>
class LoraTask : public Task {
 public:
  /// `inner` outlives this and holds the weights of `init`.
  LoraTask(Inner& inner, const TrainingSettings& settings, const std::string& init)
      : inner_(inner), init_(init), adapter_(make_adapter(settings)) {
    const std::vector<std::string>& names = inner.fresh();
    for (nn::NamedTensor& p : nn::named_parameters(network())) {
      const bool is_fresh = std::find(names.begin(), names.end(), p.name) != names.end();
      if (is_fresh) {
        fresh_.push_back(p);
      } else {
        p.tensor.set_requires_grad(false);
      }
    }
    whole_ = stored_names();
  }

  Loss loss(int64_t index) override {
    adapter_.apply(network());
    return inner_.loss(index);
  }
  double targets(int64_t index) const override { return inner_.targets(index); }
  std::optional<double> evaluate(const Sharing& sharing) override {
    merge();
    return inner_.evaluate(sharing);
  }
  Figures metrics() const override { return inner_.metrics(); }
  void save(io::CheckpointContents& contents) override {
    merge();
    inner_.save(contents);
    contents.tensors.erase("model.safetensors");
    adapter_.save(contents, init_, detail::task_type(network()), whole_);
  }
  void load(const std::string& path) override {
    adapter_.load(path + "/adapter_model.safetensors", whole_);
    merge();
  }
  Json identity() const override { return inner_.identity(); }
  Json defaults() const override { return inner_.defaults(); }

  /// The trained parameters are visited by the task itself.
  LoraTask& model() { return *this; }
  /// The model has the weights of the adapter.
  void merge() {
    const NoTape silent;
    adapter_.apply(network());
  }
  void visit(nn::Visitor& visitor) {
    adapter_.visit(visitor);
    for (nn::NamedTensor& p : fresh_) visitor(p.name, p.tensor);
  }

 private:
  auto& network() { return detail::network_of(inner_.model()); }

  models::Adapter make_adapter(const TrainingSettings& settings) {
    // Apart from the streams of weights and dropout.
    Rng rng(static_cast<uint64_t>(settings.seed), uint64_t{1} << 39);
    return {nn::named_parameters(network()), models::weight_map(network()), adapter_options(settings.lora),
            rng};
  }
  // Of what the folder lacks and, where PEFT expects a head of its own, of the head that the folder has: it wants every
  // module whose name ends in "classifier" or "score".
  std::vector<std::pair<std::string, Tensor>> stored_names() {
    const bool has_head = std::string_view(detail::task_type(network())).ends_with("_CLS");
    models::WeightMap map = models::weight_map(network());
    std::vector<nn::NamedTensor> stored = fresh_, all = nn::named_parameters(network());
    const auto is_stored = [&](const models::WeightRule& rule) {
      const auto is_it = [&](const nn::NamedTensor& p) { return p.name == rule.parameter; };
      if (std::ranges::any_of(fresh_, is_it)) return true;
      const auto is_head = [](const models::WeightPart& part) {
        return part.name.find("classifier.") != part.name.npos || part.name.find("score.") != part.name.npos;
      };
      if (!has_head || std::ranges::none_of(rule.parts, is_head)) return false;
      stored.push_back(*std::ranges::find_if(all, is_it));
      return true;
    };
    std::erase_if(map, [&](const models::WeightRule& rule) { return !is_stored(rule); });
    return models::stored_views(stored, map);
  }

  Inner& inner_;
  std::string init_;
  models::Adapter adapter_;
  std::vector<nn::NamedTensor> fresh_;
  std::vector<std::pair<std::string, Tensor>> whole_;  // the same, as stored
};

}  // namespace multihead::train
