// Heads that a model has no longer.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/nn/attention.h"

namespace multihead::models {

/// For each layer the heads that were removed from its attention, numbered as before; empty: none anywhere.
/// transformers 4 keeps the same in its "pruned_heads".
using PrunedHeads = std::vector<std::vector<int64_t>>;

/// In order, each head once, empty if nothing is pruned. Throws ValueError "<where>: …" if the layers are
/// fewer or cannot do without these heads.
PrunedHeads resolved(const char* where, PrunedHeads pruned, int64_t layers,
                     const nn::MultiHeadAttentionOptions& options);

/// The heads that stay, and the groups of them that share keys and values.
struct KeptHeads {
  std::vector<int64_t> heads, groups;
};
/// The kept heads of a layer, given by its options with all of its heads. With grouped-query
/// attention whole groups may go, or as many heads of each group that stays; throws ValueError for anything
/// else, and if no head would stay.
KeptHeads kept_heads(const nn::MultiHeadAttentionOptions& options, const PrunedHeads& pruned, int64_t layer);
/// The options of what is left of it.
nn::MultiHeadAttentionOptions without_heads(nn::MultiHeadAttentionOptions options, const PrunedHeads& pruned,
                                            int64_t layer);

}  // namespace multihead::models
