#include "multihead/nn/feed_forward.h"

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/array/gather.h"
#include "multihead/ops/array/sort.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/reduce.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"

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

Experts::Experts(const ExpertsOptions& options, int64_t embed_dim, int64_t hidden_dim, Activation activation,
                 Rng& rng)
    : options_(options), hidden_(hidden_dim), activation_(activation) {
  MH_CHECK(options.used > 0 && options.used <= options.count, ValueError,
           "Experts: the number used must be in [1, ", options.count, "], got ", options.used);
  router = Linear(embed_dim, options.count, rng, {.bias = false});
  in = Linear(embed_dim, options.count * hidden_dim, rng, {.bias = false}).weight;
  out = Linear(embed_dim, options.count * hidden_dim, rng, {.bias = false}).weight;
  bias = constant_parameter({embed_dim}, 0);
  packed_in.resize(static_cast<size_t>(options.count));
  packed_out.resize(static_cast<size_t>(options.count));
}

void Experts::visit(Visitor& visitor) {
  visitor("router", router);
  if (visitor.walks_matrices()) return visit_matrices(visitor);
  visitor("in", in);
  visitor("out", out);
  visitor("bias", bias);
}

void Experts::visit_matrices(Visitor& visitor) {
  for (int64_t e = 0; e < options_.count; ++e) {
    const auto place = static_cast<size_t>(e);
    Tensor own_in = in.defined() ? own_rows(in, e) : Tensor(),
           own_out = out.defined() ? transpose(own_rows(out, e), 0, 1) : Tensor();
    visitor(concat("in.", e), own_in, packed_in[place]);
    visitor(concat("out.", e), own_out, packed_out[place]);
  }
  if (packed_in[0].defined()) in = Tensor();
  if (packed_out[0].defined()) out = Tensor();
}

Tensor Experts::own_rows(const Tensor& of, int64_t expert) const {
  return slice(of, 0, expert * hidden_, (expert + 1) * hidden_);
}

Tensor Experts::computed(const Tensor& x, int64_t expert) const {
  const PackedLinear &own_in = packed_in[static_cast<size_t>(expert)],
                     &own_out = packed_out[static_cast<size_t>(expert)];
  const Tensor inner =
      activate(own_in.defined() ? own_in(x, Tensor()) : linear(x, own_rows(in, expert)), activation_);
  return own_out.defined() ? own_out(inner, Tensor()) : matmul(inner, own_rows(out, expert));
}

Tensor Experts::operator()(const Tensor& x) const {
  const int64_t dim = x.size(-1), used = options_.used;
  const Tensor rows = reshape(x, {-1, dim});
  const std::vector<Tensor> best = topk(softmax(router(rows)), used);  // [N, used] each
  const std::vector<int64_t> chosen = best[1].to_vector<int64_t>();
  // Pairs of a token and one of its experts, expert by expert.
  std::vector<Tensor> parts;
  std::vector<int64_t> place(chosen.size());
  int64_t done = 0;
  for (int64_t e = 0; e < options_.count; ++e) {
    std::vector<int64_t> tokens;
    for (size_t pair = 0; pair < chosen.size(); ++pair) {
      if (chosen[pair] != e) continue;
      tokens.push_back(static_cast<int64_t>(pair) / used);
      place[pair] = done++;
    }
    if (tokens.empty()) continue;
    parts.push_back(computed(take(rows, Tensor::of({std::ssize(tokens)}, tokens), 0), e));
  }
  const Tensor places = Tensor::of({std::ssize(place)}, place);
  const Tensor each = reshape(take(concat(parts, 0), places, 0), {-1, used, dim});
  const int axis = 1;
  const Tensor sum = multihead::sum(mul(each, reshape(best[0], {-1, used, 1})), std::span(&axis, 1));
  return reshape(add(sum, bias), x.shape());
}

}  // namespace multihead::nn
