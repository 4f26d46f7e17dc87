#include "multihead/nn/feed_forward.h"

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/shape.h"

namespace multihead::nn {

FeedForward::FeedForward(const FeedForwardOptions& options, Rng& rng) : options_(options) {
  MH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ValueError,
           "FeedForward: dropout_p must be in [0, 1], got ", options.dropout_p);
  fc1 = Linear(options.embed_dim, options.hidden_dim * (options.gated ? 2 : 1), rng,
               {.bias = options.bias && options.in_bias});
  fc2 = Linear(options.hidden_dim, options.embed_dim, rng, {.bias = options.bias});
}

Tensor FeedForward::operator()(const Tensor& x, Rng* rng, const Tensor& residual) const {
  const Activation activation = options_.activation;
  if (detail::looking()) {
    return fc2(dropout(hidden_at_points(x), options_.dropout_p, rng), {.residual = residual});
  }
  if (options_.gated) {
    return fc2(dropout(glu(fc1(x), activation), options_.dropout_p, rng), {.residual = residual});
  }
  if (rng != nullptr && options_.dropout_p > 0) {
    return fc2(activate_dropout(fc1(x), activation, options_.dropout_p, rng), {.residual = residual});
  }
  // Training keeps the hidden layer once, before the activation; relu's derivative needs no more than after
  // it.
  const bool keeps_less = Tape::current() != nullptr && activation != Activation::relu;
  if (keeps_less) return fc2(fc1(x), {.residual = residual, .input_activation = activation});
  return fc2(fc1(x, {.activation = activation}), {.residual = residual});
}

Tensor FeedForward::hidden_at_points(const Tensor& x) const {
  const Tensor raw = fc1(x);
  if (!options_.gated) {
    return detail::point("mlp_post", activate(detail::point("mlp_pre", raw), options_.activation));
  }
  const int64_t half = raw.size(-1) / 2;
  const Tensor gate = detail::point("mlp_pre", slice(raw, -1, 0, half));
  const Tensor up = detail::point("mlp_pre_linear", slice(raw, -1, half, 2 * half));
  return detail::point("mlp_post", gated(gate, up, options_.activation));
}

}  // namespace multihead::nn
