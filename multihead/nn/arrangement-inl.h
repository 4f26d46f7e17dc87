// The arrangement of a Transformer layer's sub-layers, described once for whoever runs them: the modules on tensors
// (TransformerLayer), or kernel calls on a few rows (decode/token_pass.h).
#pragma once

#include "multihead/nn/transformer.h"

namespace multihead::nn::detail {

enum class Sublayer { self, cross, feed_forward };

/// Returns the layer's output for the stream x. A runner has
///   norm(norm, x, name)                     norm(x), which is x where there is no norm
///   add(sublayer, x, stream)                stream + f(x)
///   join(sublayer, x, stream, norm, name)   {.sum = stream + f(x), .normed = norm(sum)}
/// where f ends with its post-norm, if it has one.
template <class Runner, class Rows>
Rows arrange(const TransformerLayer& layer, Runner& run, Rows x) {
  const Block block = layer.options().block;
  const bool has_cross = layer.options().cross_attention;
  if (!layer.options().norm_first) {
    x = run.join(Sublayer::self, x, x, layer.norm1, "norm1").normed;
    if (!has_cross) return run.join(Sublayer::feed_forward, x, x, layer.norm2, "norm2").normed;
    x = run.join(Sublayer::cross, x, x, layer.norm2, "norm2").normed;
    return run.join(Sublayer::feed_forward, x, x, layer.norm3, "norm3").normed;
  }
  Rows normed = run.norm(layer.norm1, x, "norm1");
  if (block == Block::sequential || layer.has_post_norms()) {
    auto joined = run.join(Sublayer::self, normed, x, layer.norm2, "norm2");
    if (has_cross) joined = run.join(Sublayer::cross, joined.normed, joined.sum, layer.norm3, "norm3");
    return run.add(Sublayer::feed_forward, joined.normed, joined.sum);
  }
  const Rows sum = run.add(Sublayer::self, normed, x);
  if (block == Block::attention_only) return sum;
  if (block == Block::parallel) normed = run.norm(layer.norm2, x, "norm2");
  return run.add(Sublayer::feed_forward, normed, sum);
}

}  // namespace multihead::nn::detail
