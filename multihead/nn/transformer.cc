#include "multihead/nn/transformer.h"

#include "multihead/core/error.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"

namespace multihead::nn {

using detail::point;

TransformerLayer::TransformerLayer(const TransformerLayerOptions& options, Rng& rng) : options_(options) {
  MH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ValueError,
           "TransformerLayer: dropout_p must be in [0, 1], got ", options.dropout_p);
  MH_CHECK(options.block == Block::sequential || (options.norm_first && !options.cross_attention), ValueError,
           "TransformerLayer: a ", word_of(options.block), " block needs norm_first and no cross_attention");
  const int64_t embed_dim = options.attention.embed_dim;
  self_attn = MultiHeadAttention(options.attention, rng);
  if (options.cross_attention) multihead_attn = MultiHeadAttention(options.attention, rng);
  if (has_feed_forward()) feed_forward = FeedForward(options.feed_forward, rng);
  norm1 = Norm(embed_dim, options.norm);
  if (has_norm2()) norm2 = Norm(embed_dim, options.norm);
  if (options.cross_attention) norm3 = Norm(embed_dim, options.norm);
  if (options.block == Block::sandwich) {
    post_norm1 = Norm(embed_dim, options.norm), post_norm2 = Norm(embed_dim, options.norm);
  }
}

Tensor TransformerLayer::operator()(const Tensor& x, const LayerCall& call) const {
  MH_CHECK(!options_.cross_attention || call.memory.defined() || call.projected != nullptr, ValueError,
           "TransformerLayer: a layer with cross_attention needs a memory");
  const Tensor y = point("resid_pre", x);
  switch (options_.block) {
    case Block::sequential:
      return options_.norm_first ? point("resid_post", pre_norm(y, call)) : post_norm(y, call);
    case Block::attention_only:
      return point("resid_post", add(y, point("attn_out", attend_self(norm1(y, "norm1"), call))));
    case Block::sandwich:
      return point("resid_post", sandwich(y, call));
    default:
      return point("resid_post", parallel(y, call));
  }
}

Tensor TransformerLayer::attend_self(const Tensor& x, const LayerCall& call) const {
  AttentionCall attention = call.attention;
  attention.rng = call.rng;
  const detail::PointPath in("self_attn");
  const Tensor out = call.update.cache != nullptr ? self_attn.decode(x, call.update, attention)
                                                  : self_attn(x, x, x, attention);
  return dropout(out, options_.dropout_p, call.rng);
}

Tensor TransformerLayer::attend_memory(const Tensor& x, const LayerCall& call) const {
  AttentionCall attention = call.cross;
  attention.rng = call.rng;
  const detail::PointPath in("multihead_attn");
  const Tensor out = call.projected != nullptr ? multihead_attn.attend(x, *call.projected, attention)
                                               : multihead_attn(x, call.memory, call.memory, attention);
  return dropout(out, options_.dropout_p, call.rng);
}

// Each sub-layer's result and the stream it joins meet inside the norm that follows: one pass over memory.
Tensor TransformerLayer::pre_norm(const Tensor& x, const LayerCall& call) const {
  AddNorm joined =
      norm2.add(point("attn_out", attend_self(norm1(x, "norm1"), call)), x, "norm2", "resid_mid");
  if (options_.cross_attention) {
    const Tensor cross = point("cross_out", attend_memory(joined.normed, call));
    joined = norm3.add(cross, joined.sum, "norm3", "resid_cross");
  }
  return add_feed_forward(joined.normed, joined.sum, call);
}

Tensor TransformerLayer::add_feed_forward(const Tensor& x, const Tensor& stream,
                                          const LayerCall& call) const {
  if (detail::looking()) {
    return add(stream, dropout(point("mlp_out", feed_forward(x, call.rng)), options_.dropout_p, call.rng));
  }
  if (call.rng == nullptr || options_.dropout_p == 0) return feed_forward(x, call.rng, stream);
  return add_dropout(stream, feed_forward(x, call.rng), options_.dropout_p, call.rng);
}

Tensor TransformerLayer::post_norm(const Tensor& x, const LayerCall& call) const {
  Tensor y = norm1.add(point("attn_out", attend_self(x, call)), x, "norm1", "resid_mid").normed;
  if (options_.cross_attention) {
    y = norm2.add(point("cross_out", attend_memory(y, call)), y, "norm2", "resid_cross").normed;
  }
  const Tensor out = dropout(point("mlp_out", feed_forward(y, call.rng)), options_.dropout_p, call.rng);
  return last_norm().add(out, y, options_.cross_attention ? "norm3" : "norm2", "resid_post").normed;
}

Tensor TransformerLayer::parallel(const Tensor& x, const LayerCall& call) const {
  const Tensor normed = norm1(x, "norm1");
  const Tensor joined = add(x, point("attn_out", attend_self(normed, call)));
  return add_feed_forward(options_.block == Block::parallel ? norm2(x, "norm2") : normed, joined, call);
}

Tensor TransformerLayer::sandwich(const Tensor& x, const LayerCall& call) const {
  const Tensor attended = post_norm1(attend_self(norm1(x, "norm1"), call), "post_norm1");
  const AddNorm joined = norm2.add(point("attn_out", attended), x, "norm2", "resid_mid");
  const Tensor y = dropout(feed_forward(joined.normed, call.rng), options_.dropout_p, call.rng);
  return add(joined.sum, point("mlp_out", post_norm2(y, "post_norm2")));
}

void TransformerLayer::visit(Visitor& visitor) {
  visitor("self_attn", self_attn);
  if (options_.cross_attention) visitor("multihead_attn", multihead_attn);
  if (has_feed_forward()) {
    visitor("linear1", feed_forward.fc1);
    visitor("linear2", feed_forward.fc2);
  }
  visitor("norm1", norm1);
  if (has_norm2()) visitor("norm2", norm2);
  if (options_.cross_attention) visitor("norm3", norm3);
  if (options_.block == Block::sandwich) {
    visitor("post_norm1", post_norm1);
    visitor("post_norm2", post_norm2);
  }
}

}  // namespace multihead::nn
