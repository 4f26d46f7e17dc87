#include "multihead/nn/transformer.h"

#include "multihead/core/error.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"

namespace multihead::nn {

TransformerLayer::TransformerLayer(const TransformerLayerOptions& options, Rng& rng) : options_(options) {
  MH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ValueError,
           "TransformerLayer: dropout_p must be in [0, 1], got ", options.dropout_p);
  MH_CHECK(options.block == Block::sequential || (options.norm_first && !options.cross_attention), ValueError,
           "TransformerLayer: a ", word_of(options.block), " block needs norm_first and no cross_attention");
  const int64_t embed_dim = options.attention.embed_dim;
  self_attn = MultiHeadAttention(options.attention, rng);
  if (options.cross_attention) multihead_attn = MultiHeadAttention(options.attention, rng);
  feed_forward = FeedForward(options.feed_forward, rng);
  norm1 = Norm(embed_dim, options.norm);
  if (options.block != Block::parallel_shared) norm2 = Norm(embed_dim, options.norm);
  if (options.cross_attention) norm3 = Norm(embed_dim, options.norm);
  if (options.block == Block::sandwich) {
    post_norm1 = Norm(embed_dim, options.norm), post_norm2 = Norm(embed_dim, options.norm);
  }
}

Tensor TransformerLayer::operator()(const Tensor& x, const LayerCall& call) const {
  MH_CHECK(!options_.cross_attention || call.memory.defined() || call.projected != nullptr, ValueError,
           "TransformerLayer: a layer with cross_attention needs a memory");
  switch (options_.block) {
    case Block::sequential:
      return options_.norm_first ? pre_norm(x, call) : post_norm(x, call);
    case Block::sandwich:
      return sandwich(x, call);
    default:
      return parallel(x, call);
  }
}

Tensor TransformerLayer::attend_self(const Tensor& x, const LayerCall& call) const {
  AttentionCall attention = call.attention;
  attention.rng = call.rng;
  const Tensor out = call.update.cache != nullptr ? self_attn.decode(x, call.update, attention)
                                                  : self_attn(x, x, x, attention);
  return dropout(out, options_.dropout_p, call.rng);
}

Tensor TransformerLayer::attend_memory(const Tensor& x, const LayerCall& call) const {
  AttentionCall attention = call.cross;
  attention.rng = call.rng;
  const Tensor out = call.projected != nullptr ? multihead_attn.attend(x, *call.projected, attention)
                                               : multihead_attn(x, call.memory, call.memory, attention);
  return dropout(out, options_.dropout_p, call.rng);
}

// Each sub-layer's result and the stream it joins meet inside the norm that follows: one pass over memory.
Tensor TransformerLayer::pre_norm(const Tensor& x, const LayerCall& call) const {
  AddNorm joined = norm2.add(attend_self(norm1(x), call), x);
  if (options_.cross_attention) joined = norm3.add(attend_memory(joined.normed, call), joined.sum);
  if (call.rng == nullptr || options_.dropout_p == 0)
    return feed_forward(joined.normed, call.rng, joined.sum);
  return add_dropout(joined.sum, feed_forward(joined.normed, call.rng), options_.dropout_p, call.rng);
}

Tensor TransformerLayer::post_norm(const Tensor& x, const LayerCall& call) const {
  Tensor y = norm1.add(attend_self(x, call), x).normed;
  if (options_.cross_attention) y = norm2.add(attend_memory(y, call), y).normed;
  return last_norm().add(dropout(feed_forward(y, call.rng), options_.dropout_p, call.rng), y).normed;
}

Tensor TransformerLayer::parallel(const Tensor& x, const LayerCall& call) const {
  const Tensor normed = norm1(x);
  const Tensor joined = add(x, attend_self(normed, call));
  const Tensor input = options_.block == Block::parallel ? norm2(x) : normed;
  if (call.rng == nullptr || options_.dropout_p == 0) return feed_forward(input, call.rng, joined);
  return add_dropout(joined, feed_forward(input, call.rng), options_.dropout_p, call.rng);
}

Tensor TransformerLayer::sandwich(const Tensor& x, const LayerCall& call) const {
  const AddNorm joined = norm2.add(post_norm1(attend_self(norm1(x), call)), x);
  const Tensor y = dropout(feed_forward(joined.normed, call.rng), options_.dropout_p, call.rng);
  return add(joined.sum, post_norm2(y));
}

void TransformerLayer::visit(Visitor& visitor) {
  visitor("self_attn", self_attn);
  if (options_.cross_attention) visitor("multihead_attn", multihead_attn);
  visitor("linear1", feed_forward.fc1);
  visitor("linear2", feed_forward.fc2);
  visitor("norm1", norm1);
  if (options_.block != Block::parallel_shared) visitor("norm2", norm2);
  if (options_.cross_attention) visitor("norm3", norm3);
  if (options_.block == Block::sandwich) {
    visitor("post_norm1", post_norm1);
    visitor("post_norm2", post_norm2);
  }
}

}  // namespace multihead::nn
