// Models without some of their heads and hidden units: smaller and faster, not masked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "multihead/models/seq2seq.h"

namespace multihead::models {

/// The parts to remove from a stack: for each layer the heads of its self-attention and, in a decoder with a
/// memory, of its cross-attention, and the units of its feed-forward layer, as many units in every layer.
/// Empty: nothing. Heads keep the numbers that they had before anything was pruned; those already removed may
/// be named again.
struct Pruning {
  PrunedHeads heads = {}, cross = {};
  std::vector<std::vector<int64_t>> units = {};
};

/// A model equal to `model` with the outputs of these heads and units at zero. Its weights are its own, in
/// the same dtype. A language model whose layers lose as many heads each, in a way that fits the other fields
/// of its configuration, is one with fewer num_heads; others, and translators, list pruned_heads. Throws
/// ValueError: heads or units that do not exist, an attention or a feed-forward layer that would lose all,
/// groups of query heads that would differ in size (see kept_heads), packed or quantised weights.
LanguageModel prune(const LanguageModel& model, const Pruning& pruning);
Seq2Seq prune(const Seq2Seq& model, const Pruning& encoder, const Pruning& decoder);

/// Grouped-query attention from a model with more key and value heads: those of a new group are averaged,
/// which some training repairs (Ainslie et al. 2023, section 2.1). Throws ValueError unless num_kv_heads
/// divides the model's, and for models with pruned_heads.
LanguageModel pool_kv_heads(const LanguageModel& model, int64_t num_kv_heads);

/// |d loss / d gate|, summed over sequences, of a gate on the output of each head (under the name of its
/// point: "layers.0.self_attn.z") and of each hidden unit ("layers.0.mlp_post"); Michel et al. 2019,
/// equation 2.
using Importance = std::map<std::string, std::vector<double>>;
/// Adds that of a batch, the tokens of one sequence to a row; loss() is recorded and must be a scalar.
void add_importance(Importance& importance, const std::function<Tensor()>& loss);

/// For each attention (or feed-forward layer) what to remove so that the share `keep_ratio` of all heads
/// stays, the least important first. Each row is divided by its length, as Michel et al. do, and keeps one;
/// `group` neighbours stay or go together.
std::vector<std::vector<int64_t>> least_important(std::vector<std::vector<double>> importance,
                                                  double keep_ratio, int64_t group = 1);

}  // namespace multihead::models
