#include "multihead/nn/feed_forward.h"

#include "multihead/core/error.h"
#include "multihead/ops/dropout.h"

namespace multihead::nn {

FeedForward::FeedForward(const FeedForwardOptions& options, Rng& rng) : options_(options) {
  MH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ValueError,
           "FeedForward: dropout_p must be in [0, 1], got ", options.dropout_p);
  fc1 = Linear(options.embed_dim, options.hidden_dim * (options.gated ? 2 : 1), rng, {.bias = options.bias});
  fc2 = Linear(options.hidden_dim, options.embed_dim, rng, {.bias = options.bias});
}

Tensor FeedForward::operator()(const Tensor& x, Rng* rng, const Tensor& residual) const {
  Tensor hidden =
      options_.gated ? glu(fc1(x), options_.activation) : fc1(x, {.activation = options_.activation});
  return fc2(dropout(hidden, options_.dropout_p, rng), {.residual = residual});
}

}  // namespace multihead::nn
