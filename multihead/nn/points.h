// Named points: tensors inside a model that can be kept, replaced or cut off while it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/ops/attention/masks/mask.h"

namespace multihead::nn {

/// Part of the tensor at a point. Empty: all.
struct PointPart {
  std::vector<int64_t> heads = {};  ///< ignored by points without an axis of heads
  std::vector<int64_t> rows = {};   ///< tokens; of scores and patterns, the queries. -1 is the last
};

namespace detail {
struct PointAxes;
}

/// Requests at named points. They apply to whatever this thread runs while a PointScope of them is alive;
/// without a scope, modules run unchanged, bit for bit.
///
/// Points are named like the module's parameters, with H heads, E = embed_dim, F = ffn_dim:
///
///   embed, pos_embed                    [B, T, E]    token embeddings (scaled), learned positions
///   layers.0.resid_pre, .resid_mid, .resid_post      the stream before, between and after the sub-layers
///   layers.0.attn_out, .mlp_out                      a sub-layer's contribution (cross_out: cross-attention)
///   layers.0.norm1.scale                [B, T, 1]    sqrt(var + eps); .normalized: before weight and bias
///   layers.0.self_attn.q, .k, .v        [B, T, H, D] projected; .rot_q, .rot_k: after the rotation
///   layers.0.self_attn.scores, .pattern [B, H, T, Tk] before and after the softmax
///   layers.0.self_attn.z                [B, T, H, D] a head's weighted values
///   layers.0.self_attn.result           [B, T, H, E] its contribution to attn_out, without the bias
///   layers.0.mlp_pre, .mlp_post         [B, T, F]    around the activation (mlp_pre_linear: the gated half)
///   final_norm.scale, .normalized
///
/// With post-norm, resid_post is the sum before the last norm. Encoders run all their sequences as one row of
/// tokens. The stacks of a Seq2Seq begin with "encoder." and "decoder.", cross-attention is multihead_attn.
///
/// Names are shell patterns, in which * also spans dots, and may be TransformerLens's:
/// "blocks.0.attn.hook_z" is layers.0.self_attn.z. Requests are carried out in the order they were made.
///
/// Keeping scores or patterns stores only the part kept, not the whole [Tq, Tk] matrix. If they are edited,
/// the edited rows are computed by plain products. Under a tape an edit of scores is shown -1e30 for excluded
/// pairs, not -inf, which would make its gradient NaN; they stay excluded, and another number there is an
/// error.
class Points {
 public:
  /// Returns the new value at a point, of x's shape and dtype; x itself or an undefined tensor keeps it.
  using Edit = std::function<Tensor(const std::string& point, const Tensor& x)>;

  Points();
  Points& keep(const std::string& pattern, const PointPart& part = {});
  /// Keeps the gradient with respect to the tensor at the point once a tape's backward() has passed it.
  Points& keep_gradient(const std::string& pattern);
  /// With a part, `edit` sees only that part.
  Points& edit(const std::string& pattern, Edit edit, const PointPart& part = {});
  /// Excludes (query, key) pairs from attention; the pattern names attentions, as in "layers.3.self_attn".
  Points& exclude(const std::string& pattern, const Mask& mask);

  /// By full name; a point that was reached several times has its last value.
  const std::map<std::string, Tensor>& kept() const { return kept_; }
  const std::map<std::string, Tensor>& gradients() const { return *gradients_; }
  /// The names of all points that were reached, requested or not.
  const std::set<std::string>& seen() const { return seen_; }
  /// Throws ValueError for a pattern that has matched no point so far.
  void check() const;

  /// The name of a point here for one of TransformerLens's; others are returned as they are.
  static std::string name_of(std::string_view name);

 private:
  friend struct PointAccess;
  enum class Kind { keep, gradient, edit, exclude };
  struct Entry {
    Kind kind;
    std::string pattern;
    PointPart part = {};
    Edit edit = {};
    Mask mask = {};
    bool met = false;
  };
  Points& add(Entry entry);
  Tensor pass(const std::string& name, const Tensor& x, const detail::PointAxes& axes);
  Tensor watch(const std::string& name, const Tensor& x);
  void check_heads(const std::string& pattern) const;

  std::vector<Entry> entries_;
  std::map<std::string, Tensor> kept_;
  std::shared_ptr<std::map<std::string, Tensor>> gradients_;
  std::set<std::string> seen_, headless_;  // the latter: attentions without points inside
};

/// Activates `points` on this thread while it is alive. The innermost scope applies.
class PointScope {
 public:
  explicit PointScope(Points& points);
  ~PointScope();
  PointScope(const PointScope&) = delete;
  PointScope& operator=(const PointScope&) = delete;

 private:
  Points* outer_;
  std::string outer_path_;
};

}  // namespace multihead::nn
