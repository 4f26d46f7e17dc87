// A model that takes over what another knows. Private to models/.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "multihead/models/encoder.h"

namespace multihead::models {

/// A model with the weights of `from` that have the same names and shapes, a head's only if it is for the same labels.
/// The names of the others, whose weights are random, go to `fresh`.
template <class Model, class Config>
Model known_weights(const Config& config, Model from, Rng& rng, std::vector<std::string>* fresh) {
  Model model(config, rng);
  std::map<std::string, Tensor> known;
  const auto takes_several = [](const Config& c) { return c.problem_type == ProblemType::multi_label; };
  const bool same_labels = from.config().head == config.head && from.config().labels == config.labels &&
                           takes_several(from.config()) == takes_several(config);
  for (const nn::NamedTensor& p : nn::named_parameters(from)) {
    if (same_labels || !p.name.starts_with("classifier.")) known[p.name] = p.tensor;
  }
  for (const nn::NamedTensor& p : nn::named_parameters(model)) {
    const auto found = known.find(p.name);
    const bool fits = found != known.end() && found->second.shape() == p.tensor.shape();
    if (fits) {
      p.tensor.copy_from(found->second);
    } else if (fresh != nullptr) {
      fresh->push_back(p.name);
    }
  }
  return model;
}

}  // namespace multihead::models
