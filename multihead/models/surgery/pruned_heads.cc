#include "multihead/models/surgery/pruned_heads.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "multihead/core/error.h"

namespace multihead::models {

PrunedHeads resolved(const char* where, PrunedHeads pruned, int64_t layers,
                     const nn::MultiHeadAttentionOptions& options) {
  if (std::all_of(pruned.begin(), pruned.end(), std::mem_fn(&std::vector<int64_t>::empty))) return {};
  MH_CHECK(std::ssize(pruned) <= layers, ValueError, where, ": names ", pruned.size(),
           " layers, the model has ", layers);
  pruned.resize(static_cast<size_t>(layers));
  for (int64_t i = 0; i < layers; ++i) {
    std::vector<int64_t>& heads = pruned[static_cast<size_t>(i)];
    std::sort(heads.begin(), heads.end());
    heads.erase(std::unique(heads.begin(), heads.end()), heads.end());
    try {
      kept_heads(options, pruned, i);
    } catch (const ValueError& error) {
      throw ValueError(concat(where, ": ", error.what()));
    }
  }
  return pruned;
}

KeptHeads kept_heads(const nn::MultiHeadAttentionOptions& options, const PrunedHeads& pruned, int64_t layer) {
  const int64_t count = options.num_heads,
                group = count / (options.num_kv_heads > 0 ? options.num_kv_heads : count);
  const std::vector<int64_t> removed =
      pruned.empty() ? std::vector<int64_t>{} : pruned.at(static_cast<size_t>(layer));
  constexpr int64_t kMost = 1 << 16;  // a number in a file is no reason to take memory
  MH_CHECK(count <= kMost, ValueError, "a layer of ", count, " heads cannot be pruned, one of ", kMost,
           " can");
  for (const int64_t head : removed) {
    MH_CHECK(head >= 0 && head < count, ValueError, "layer ", layer, " has no head ", head, ", it has ",
             count);
  }
  const std::set<int64_t> gone(removed.begin(), removed.end());
  KeptHeads kept;
  std::map<int64_t, int64_t> sizes;  // of the groups that stay
  for (int64_t head = 0; head < count; ++head) {
    if (gone.contains(head)) continue;
    kept.heads.push_back(head);
    if (++sizes[head / group] == 1) kept.groups.push_back(head / group);
  }
  MH_CHECK(!kept.heads.empty(), ValueError, "layer ", layer, " would lose all of its ", count,
           " heads; one must stay");
  for (const auto& [number, size] : sizes) {
    MH_CHECK(size == sizes.begin()->second, ValueError, "layer ", layer, " would keep ", size,
             " query heads of key head ", number, " and ", sizes.begin()->second, " of key head ",
             sizes.begin()->first, "; remove as many of each, or whole groups");
  }
  return kept;
}

nn::MultiHeadAttentionOptions without_heads(nn::MultiHeadAttentionOptions options, const PrunedHeads& pruned,
                                            int64_t layer) {
  if (pruned.empty()) return options;
  const KeptHeads kept = kept_heads(options, pruned, layer);
  if (options.head_dim == 0) options.head_dim = options.embed_dim / options.num_heads;
  options.num_heads = static_cast<int64_t>(kept.heads.size());
  options.num_kv_heads = static_cast<int64_t>(kept.groups.size());
  return options;
}

}  // namespace multihead::models
