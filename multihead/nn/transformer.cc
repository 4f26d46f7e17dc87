#include "multihead/nn/transformer.h"

#include <cmath>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/arrangement-inl.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"

namespace multihead::nn {

using detail::point;
using detail::Sublayer;

TransformerLayer::TransformerLayer(const TransformerLayerOptions& options, Rng& rng) : options_(options) {
  MH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ValueError,
           "TransformerLayer: dropout_p must be in [0, 1], got ", options.dropout_p);
  MH_CHECK(options.block == Block::sequential || (options.norm_first && !options.cross_attention), ValueError,
           "TransformerLayer: a ", word_of(options.block), " block needs norm_first and no cross_attention");
  MH_CHECK(options.residual_factor > 0 && std::isfinite(options.residual_factor), ValueError,
           "TransformerLayer: residual_factor must be positive, got ", options.residual_factor);
  const int64_t embed_dim = options.attention.embed_dim;
  if (options.latent.dim > 0) {
    own_attn = {"latent", std::make_shared<LatentAttention>(options.attention, options.latent, rng)};
  } else if (options.own_attention.empty()) {
    self_attn = MultiHeadAttention(options.attention, rng);
  } else {
    own_attn = OwnAttentionPart(options.own_attention, options.attention, rng);
  }
  if (options.cross_attention) multihead_attn = MultiHeadAttention(options.attention, rng);
  const FeedForwardOptions& ffn = options.feed_forward;
  if (options.experts.count > 0) {
    MH_CHECK(has_feed_forward() && !ffn.gated && ffn.dropout_p == 0, ValueError,
             "TransformerLayer: experts exclude attention_only, gated and dropout inside");
    experts = Experts(options.experts, embed_dim, ffn.hidden_dim, ffn.activation, rng);
  } else if (has_feed_forward()) {
    MH_CHECK(ffn.embed_dim == embed_dim, ValueError,
             "TransformerLayer: feed_forward.embed_dim must be that of attention, ", embed_dim, ", got ",
             ffn.embed_dim);
    feed_forward = FeedForward(ffn, rng);
  }
  if (has_norm1()) norm1 = Norm(embed_dim, options.norm);
  if (has_norm2()) norm2 = Norm(embed_dim, options.norm);
  if (options.cross_attention) norm3 = Norm(embed_dim, options.norm);
  if (has_post_norms()) {
    post_norm1 = Norm(embed_dim, options.norm), post_norm2 = Norm(embed_dim, options.norm);
  }
}

// Runs the sub-layers on tensors, for arrange(). A result and the stream it joins meet inside the norm or the
// product that follows: one pass over memory.
struct TransformerLayer::Modules {
  const TransformerLayer& layer;
  const LayerCall& call;

  const TransformerLayerOptions& options() const { return layer.options_; }
  bool has_post_norms() const { return layer.has_post_norms(); }
  bool is_scaled() const { return options().residual_factor != 1; }
  Tensor drop(const Tensor& x) const { return dropout(x, options().dropout_p, call.rng); }

  Tensor attend_self(const Tensor& x) const {
    AttentionCall attention = call.attention;
    attention.rng = call.rng;
    const detail::PointPath in("self_attn");
    if (layer.own_attn.defined()) {
      if (!attention.scale) attention.scale = options().attention.scale;
      attention.dropout_p = options().attention.dropout_p;
      if (detail::looking()) attention.mask &= detail::excluded();
      detail::note_headless();
      return drop(layer.own_attn(x, attention, call.update));
    }
    return drop(call.update.cache != nullptr ? layer.self_attn.decode(x, call.update, attention)
                                             : layer.self_attn(x, x, x, attention));
  }

  Tensor attend_memory(const Tensor& x) const {
    AttentionCall attention = call.cross;
    attention.rng = call.rng;
    const detail::PointPath in("multihead_attn");
    return drop(call.projected != nullptr ? layer.multihead_attn.attend(x, *call.projected, attention)
                                          : layer.multihead_attn(x, call.memory, call.memory, attention));
  }

  Tensor run(Sublayer sublayer, const Tensor& x) const {
    if (sublayer == Sublayer::cross) return point("cross_out", scaled(attend_memory(x)));
    if (sublayer == Sublayer::self) {
      const Tensor out = attend_self(x);
      return point("attn_out", scaled(has_post_norms() ? layer.post_norm1(out, "post_norm1") : out));
    }
    const Tensor out = layer.experts.defined() ? layer.experts(x) : layer.feed_forward(x, call.rng);
    if (has_post_norms()) return point("mlp_out", scaled(layer.post_norm2(drop(out), "post_norm2")));
    return drop(point("mlp_out", scaled(out)));
  }

  Tensor scaled(const Tensor& x) const {
    return is_scaled() ? multihead::scale(x, options().residual_factor) : x;
  }

  Tensor norm(const Norm& norm, const Tensor& x, std::string_view name) const { return norm(x, name); }

  AddNorm join(Sublayer sublayer, const Tensor& x, const Tensor& stream, const Norm& norm,
               std::string_view name) const {
    static constexpr std::string_view kSums[] = {"resid_mid", "resid_cross", "resid_post"};
    return norm.add(run(sublayer, x), stream, name, kSums[static_cast<size_t>(sublayer)]);
  }

  Tensor add(Sublayer sublayer, const Tensor& x, const Tensor& stream) const {
    if (sublayer != Sublayer::feed_forward || has_post_norms() || is_scaled() || detail::looking() ||
        layer.experts.defined()) {
      return multihead::add(stream, run(sublayer, x));
    }
    if (call.rng == nullptr || options().dropout_p == 0) return layer.feed_forward(x, call.rng, stream);
    return add_dropout(stream, layer.feed_forward(x, call.rng), options().dropout_p, call.rng);
  }
};

namespace {

// Attention with a cache records nothing: what flows through it would be missing from every gradient.
void check_unrecorded(const TransformerLayer& layer, const Tensor& x) {
  if (Tape::current() == nullptr) return;
  TransformerLayer same = layer;  // of the same tensors
  bool records = x.requires_grad();
  for (const Tensor& parameter : parameters(same)) records = records || parameter.requires_grad();
  MH_CHECK(
      !records, ValueError,
      "TransformerLayer: attention with a state records no gradients, and a Tape is recording; decode under "
      "NoTape, or call the layer without a state");
}

}  // namespace

Tensor TransformerLayer::operator()(const Tensor& x, const LayerCall& call) const {
  if (call.update.cache != nullptr) check_unrecorded(*this, x);
  MH_CHECK(options_.cross_attention || (!call.memory.defined() && call.projected == nullptr), ValueError,
           "TransformerLayer: a memory is for a layer with cross_attention");
  MH_CHECK(options_.cross_attention || (call.cross.mask.is_empty() && call.cross.capture == nullptr),
           ValueError,
           "TransformerLayer: a mask or a capture of the memory is for a layer with cross_attention");
  MH_CHECK(!options_.cross_attention || call.memory.defined() || call.projected != nullptr, ValueError,
           "TransformerLayer: a layer with cross_attention needs a memory");
  const Modules modules{*this, call};
  const Tensor y = detail::arrange(*this, modules, point("resid_pre", x));
  return options_.norm_first ? point("resid_post", y) : y;
}

void TransformerLayer::visit(Visitor& visitor) {
  if (own_attn.defined()) {
    visitor("self_attn", own_attn);
  } else {
    visitor("self_attn", self_attn);
  }
  if (options_.cross_attention) visitor("multihead_attn", multihead_attn);
  if (experts.defined()) {
    visitor("experts", experts);
  } else if (has_feed_forward()) {
    visitor("linear1", feed_forward.fc1);
    visitor("linear2", feed_forward.fc2);
  }
  if (has_norm1()) visitor("norm1", norm1);
  if (has_norm2()) visitor("norm2", norm2);
  if (options_.cross_attention) visitor("norm3", norm3);
  if (has_post_norms()) {
    visitor("post_norm1", post_norm1);
    visitor("post_norm2", post_norm2);
  }
}

}  // namespace multihead::nn
