#include "multihead/models/surgery/prune.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/points.h"
#include "multihead/nn/unfilled-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

using Indices = std::vector<int64_t>;
// New parameters from old ones, by name; those without a change are copied.
using Changes = std::map<std::string, std::function<Tensor(const Tensor&)>>;

template <class Model, class Config>
Model refilled(const Model& from, const Config& config, const Changes& changes) {
  const NoTape silent;
  Model source = from;
  std::map<std::string, Tensor> old;
  for (auto& [name, tensor] : nn::named_parameters(source)) old[name] = tensor;
  const nn::UnfilledParameters unfilled;
  Rng rng(0);
  Model to(config, rng);
  nn::to(to, old.begin()->second.dtype());
  for (auto& [name, tensor] : nn::named_parameters(to)) {
    const auto found = old.find(name);
    MH_CHECK(found != old.end(), ValueError, "prune: ", name,
             " is packed; prune before weights are quantised");
    const auto change = changes.find(name);
    const Tensor value = change == changes.end() ? found->second : change->second(found->second);
    MH_CHECK(value.shape() == tensor.shape(), ShapeError, "prune: ", name, " became ", value.shape(),
             ", expected ", tensor.shape());
    tensor.copy_from(value);
  }
  return to;
}

Tensor take(const Tensor& x, int axis, const Indices& indices) {
  Shape shape = x.shape();
  shape[static_cast<size_t>(axis)] = std::ssize(indices);
  const Tensor out = Tensor::empty(shape, x.dtype());
  for (int64_t i = 0; i < std::ssize(indices); ++i) {
    const int64_t from = indices[static_cast<size_t>(i)];
    slice(out, axis, i, i + 1).copy_from(slice(x, axis, from, from + 1));
  }
  return out;
}

void keep(Changes& changes, const std::string& name, int axis, Indices indices) {
  changes[name] = [=, indices = std::move(indices)](const Tensor& x) { return take(x, axis, indices); };
}

// The rows of some blocks of `size` rows.
void append_blocks(Indices& rows, const Indices& blocks, int64_t size, int64_t begin) {
  for (const int64_t block : blocks) {
    for (int64_t i = 0; i < size; ++i) rows.push_back(begin + block * size + i);
  }
}

// Where the heads and groups that stay are among those that the attention has.
Indices places(const Indices& of, const Indices& among) {
  Indices at;
  for (const int64_t x : of) at.push_back(std::ranges::lower_bound(among, x) - among.begin());
  return at;
}

// `before` and `after` are of the model's options with all heads.
void cut_heads(Changes& changes, const std::string& attention, int64_t head_dim, const KeptHeads& before,
               const KeptHeads& after) {
  const Indices heads = places(after.heads, before.heads), groups = places(after.groups, before.groups);
  const int64_t queries = std::ssize(before.heads) * head_dim, keys = std::ssize(before.groups) * head_dim;
  Indices rows, columns;
  append_blocks(columns, heads, head_dim, 0);
  rows = columns;
  append_blocks(rows, groups, head_dim, queries);
  append_blocks(rows, groups, head_dim, queries + keys);
  keep(changes, attention + ".in_proj_weight", 0, rows);
  keep(changes, attention + ".in_proj_bias", 0, rows);
  keep(changes, attention + ".out_proj.weight", 1, columns);
}

// Adds to what is pruned already and names the changes of the stack's attentions called `name`.
PrunedHeads cut_stack(Changes& changes, const std::string& stack, const char* name,
                      const nn::MultiHeadAttentionOptions& options, const PrunedHeads& before,
                      const PrunedHeads& removed, int64_t layers) {
  PrunedHeads after = before;
  if (std::ssize(removed) > std::ssize(after)) after.resize(removed.size());
  for (size_t i = 0; i < removed.size(); ++i) {
    after[i].insert(after[i].end(), removed[i].begin(), removed[i].end());
  }
  after = resolved("prune", after, layers, options);
  for (int64_t i = 0; i < layers && !after.empty(); ++i) {
    cut_heads(changes, concat(stack, "layers.", i, ".", name), options.head_dim,
              kept_heads(options, before, i), kept_heads(options, after, i));
  }
  return after;
}

// The hidden size of feed-forward layers without these units.
int64_t cut_units(Changes& changes, const std::string& stack, const std::vector<Indices>& units,
                  int64_t count, int64_t layers, bool gated) {
  if (units.empty()) return count;
  MH_CHECK(std::ssize(units) == layers, ValueError, "prune: units of ", units.size(), " of ", layers,
           " layers");
  int64_t left = -1;
  for (int64_t i = 0; i < layers; ++i) {
    const Indices& listed = units[static_cast<size_t>(i)];
    const std::set<int64_t> removed(listed.begin(), listed.end());
    MH_CHECK(removed.empty() || (*removed.begin() >= 0 && *removed.rbegin() < count), ValueError,
             "prune: layer ", i, " has the units 0 to ", count - 1, ", got ",
             *removed.begin() < 0 ? *removed.begin() : *removed.rbegin());
    Indices kept, rows;
    for (int64_t u = 0; u < count; ++u) {
      if (!removed.contains(u)) kept.push_back(u);
    }
    MH_CHECK(!kept.empty(), ValueError, "prune: layer ", i, " would lose all of its ", count, " units");
    MH_CHECK(left < 0 || left == std::ssize(kept), ValueError, "prune: layer ", i, " would keep ",
             kept.size(), " units, the one before ", left, "; remove as many in every layer");
    left = std::ssize(kept);
    rows = kept;
    if (gated) append_blocks(rows, kept, 1, count);
    const std::string layer = concat(stack, "layers.", i, ".");
    keep(changes, layer + "linear1.weight", 0, rows);
    keep(changes, layer + "linear1.bias", 0, rows);
    keep(changes, layer + "linear2.weight", 1, kept);
  }
  return left;
}

// The sizes of a model with all of its heads.
template <class Config>
nn::MultiHeadAttentionOptions all_heads(const Config& c, int64_t kv_heads, int64_t head_dim) {
  return {.embed_dim = c.embed_dim, .num_heads = c.num_heads, .num_kv_heads = kv_heads, .head_dim = head_dim};
}

constexpr const char* kJointNorms =
    "the norms of this model's queries and keys are over all heads, of which none can be removed";

// Equal counts in all layers are a number of heads, unless ALiBi's slopes say which they are.
void fold(LanguageModelConfig& c) {
  if (c.pruned_heads.empty() || c.positions == Positions::alibi) return;
  const auto options = all_heads(c, c.num_kv_heads, c.head_dim);
  const KeptHeads first = kept_heads(options, c.pruned_heads, 0);
  for (int64_t i = 1; i < c.num_layers; ++i) {
    const KeptHeads kept = kept_heads(options, c.pruned_heads, i);
    if (kept.heads.size() != first.heads.size() || kept.groups.size() != first.groups.size()) return;
  }
  c.num_heads = std::ssize(first.heads), c.num_kv_heads = std::ssize(first.groups);
  c.pruned_heads = {};
}

}  // namespace

LanguageModel prune(const LanguageModel& model, const Pruning& pruning) {
  MH_CHECK(pruning.cross.empty(), ValueError, "prune: a language model has no cross-attention");
  LanguageModelConfig c = model.config();
  check_plain_attention(c, "prune");
  const auto removes = [](const std::vector<int64_t>& heads) { return !heads.empty(); };
  MH_CHECK(!c.qk_norm_joint || std::ranges::none_of(pruning.heads, removes), ValueError,
           "prune: ", kJointNorms);
  Changes changes;
  c.pruned_heads = cut_stack(changes, "", "self_attn", all_heads(c, c.num_kv_heads, c.head_dim),
                             c.pruned_heads, pruning.heads, c.num_layers);
  c.ffn_dim = cut_units(changes, "", pruning.units, c.ffn_dim, c.num_layers, c.gated);
  fold(c);
  return refilled(model, c, changes);
}

Seq2Seq prune(const Seq2Seq& model, const Pruning& encoder, const Pruning& decoder) {
  MH_CHECK(encoder.cross.empty(), ValueError, "prune: an encoder has no cross-attention");
  Seq2SeqConfig c = model.config();
  Changes changes;
  const auto cut = [&](const char* stack, const char* name, PrunedHeads& pruned, const PrunedHeads& removed,
                       int64_t layers) {
    const auto options = all_heads(c, c.num_heads, head_dim(c));
    pruned = cut_stack(changes, concat("transformer.", stack, "."), name, options, pruned, removed, layers);
  };
  cut("encoder", "self_attn", c.encoder_pruned_heads, encoder.heads, c.encoder_layers);
  cut("decoder", "self_attn", c.decoder_pruned_heads, decoder.heads, c.decoder_layers);
  cut("decoder", "multihead_attn", c.cross_pruned_heads, decoder.cross, c.decoder_layers);
  const int64_t units =
      cut_units(changes, "transformer.encoder.", encoder.units, c.ffn_dim, c.encoder_layers, c.gated);
  c.ffn_dim = cut_units(changes, "transformer.decoder.", decoder.units, c.ffn_dim, c.decoder_layers, c.gated);
  MH_CHECK(units == c.ffn_dim, ValueError, "prune: the encoder's layers would keep ", units,
           " units, the decoder's ", c.ffn_dim);
  return refilled(model, c, changes);
}

LanguageModel pool_kv_heads(const LanguageModel& model, int64_t num_kv_heads) {
  LanguageModelConfig c = model.config();
  check_plain_attention(c, "pool_kv_heads");
  MH_CHECK(!c.qk_norm_joint, ValueError, "pool_kv_heads: ", kJointNorms);
  MH_CHECK(num_kv_heads > 0 && c.num_kv_heads % num_kv_heads == 0, ValueError,
           "pool_kv_heads: ", num_kv_heads, " heads of keys and values cannot come from ", c.num_kv_heads);
  MH_CHECK(c.pruned_heads.empty(), ValueError, "pool_kv_heads: the layers have different numbers of heads");
  const int64_t queries = c.num_heads * c.head_dim, keys = c.num_kv_heads * c.head_dim,
                group = c.num_kv_heads / num_kv_heads;
  const auto pool = [=](const Tensor& x) {
    const Tensor old = contiguous(slice(x, 0, queries, queries + 2 * keys)).to(Dtype::f32);
    const Tensor sums = sum(reshape(old, {2 * num_kv_heads, group, -1}), 1);
    Shape shape = x.shape();
    shape[0] = 2 * num_kv_heads * c.head_dim;
    const Tensor pooled = reshape(scale(sums, 1 / static_cast<double>(group)), shape).to(x.dtype());
    return concat(std::vector<Tensor>{slice(x, 0, 0, queries), pooled}, 0);
  };
  Changes changes;
  for (int64_t i = 0; i < c.num_layers; ++i) {
    for (const char* kind : {"weight", "bias"}) {
      changes[concat("layers.", i, ".self_attn.in_proj_", kind)] = pool;
    }
  }
  c.num_kv_heads = num_kv_heads;
  return refilled(model, c, changes);
}

void add_importance(Importance& importance, const std::function<Tensor()>& loss) {
  nn::Points points;
  for (const char* pattern : {"*.z", "*.mlp_post"}) points.keep(pattern).keep_gradient(pattern);
  {
    Tape tape;
    const nn::PointScope scope(points);
    tape.backward(loss());
  }
  for (const auto& [name, gradient] : points.gradients()) {
    // z [B, T, H, D], mlp_post [B, T, F]: over tokens and a head's features, then the sizes of the rows'
    // sums.
    Tensor product = sum(mul(points.kept().at(name).to(Dtype::f32), gradient.to(Dtype::f32)), 1);
    if (product.rank() == 3) product = sum(product, 2);
    std::vector<double>& total = importance[name];
    const auto count = static_cast<size_t>(product.size(1));
    total.resize(count);
    const auto values = product.contiguous().to_vector<float>();
    for (size_t i = 0; i < values.size(); ++i) total[i % count] += std::abs(static_cast<double>(values[i]));
  }
}

std::vector<std::vector<int64_t>> least_important(std::vector<std::vector<double>> importance,
                                                  double keep_ratio, int64_t group) {
  MH_CHECK(keep_ratio >= 0 && keep_ratio <= 1, ValueError,
           "least_important: keep_ratio must be in [0, 1], got ", keep_ratio);
  struct Candidate {
    double importance;
    size_t row;
    int64_t first;
  };
  std::vector<Candidate> candidates;
  for (size_t row = 0; row < importance.size(); ++row) {
    std::vector<double>& x = importance[row];
    const double length = std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
    for (int64_t i = 0; i + group <= std::ssize(x); i += group) {
      const double total = std::accumulate(x.begin() + i, x.begin() + i + group, 0.0);
      candidates.push_back({length > 0 ? total / length : 0, row, i});
    }
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::importance);
  std::vector<std::vector<int64_t>> removed(importance.size());
  auto excess = static_cast<int64_t>(std::llround((1 - keep_ratio) * static_cast<double>(candidates.size())));
  for (const Candidate& candidate : candidates) {
    std::vector<int64_t>& list = removed[candidate.row];
    const bool last = std::ssize(list) + group >= std::ssize(importance[candidate.row]);
    if (excess == 0 || last) continue;
    for (int64_t i = 0; i < group; ++i) list.push_back(candidate.first + i);
    --excess;
  }
  for (std::vector<int64_t>& list : removed) std::ranges::sort(list);
  return removed;
}

}  // namespace multihead::models
