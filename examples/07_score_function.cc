// Any score function as a lambda: fused into attention, differentiated with dual numbers.
#include "examples/check.h"

using namespace examples;

namespace {

// [function]
// Soft-capped scores plus a distance penalty; one definition for numbers and dual numbers.
struct LimitedDistance {
  std::vector<float> slope;
  auto operator()(auto score, mh::ScoreIndex at) const {
    return 5.0F * mh::fast::tanh(score / 5.0F) -
           slope[static_cast<size_t>(at.head)] * static_cast<float>(at.query - at.key);
  }
};
// [function end]

}  // namespace

int main() {
  Checks check;
  mh::Rng rng(7);
  const std::vector<float> slope = {0.5F, 0.25F};
  mh::Tensor q = mh::randn({2, 2, 7, 8}, rng), k = mh::randn({2, 2, 7, 8}, rng),
             v = mh::randn({2, 2, 7, 8}, rng);

  // [built_in]
  // A lambda equals the built-in form.
  auto alibi = [&](auto score, mh::ScoreIndex at) {
    return score - slope[static_cast<size_t>(at.head)] * static_cast<float>(at.query - at.key);
  };
  const mh::Tensor by_lambda = mh::attention(q, k, v, {.mask = mh::causal()}, mh::score_mod(alibi));
  const mh::Tensor built_in =
      mh::attention(q, k, v, {.mask = mh::causal(), .alibi_slopes = mh::Tensor::of({2}, slope)});
  // [built_in end]
  check.close("ALiBi as a lambda = ALiBi built in", by_lambda, built_in);

  const mh::ScoreMod limited = mh::score_mod(LimitedDistance{slope});
  const mh::Tensor by_options = mh::attention(
      q, k, v, {.mask = mh::causal(), .softcap = 5, .alibi_slopes = mh::Tensor::of({2}, slope)});
  check.close("limit and distance = softcap and ALiBi built in",
              mh::attention(q, k, v, {.mask = mh::causal()}, limited), by_options);

  // [gradient]
  // The gradient against finite differences, in f64.
  mh::Tensor query = q.to(mh::Dtype::f64), key = k.to(mh::Dtype::f64), value = v.to(mh::Dtype::f64);
  const auto loss = [&](const mh::Tensor& x) {
    return mh::sum(mh::square(mh::attention(x, key, value, {.mask = mh::causal()}, limited)));
  };
  query.set_requires_grad();
  {
    mh::Tape tape;
    tape.backward(loss(query));
  }
  const mh::Tensor numeric = mh::Tensor::empty(query.shape(), mh::Dtype::f64);
  const double h = 1e-5;
  for (int64_t i = 0; i < query.numel(); ++i) {
    mh::Tensor moved = query.clone();
    moved.data<double>()[i] += h;
    const double above = loss(moved).item();
    moved.data<double>()[i] -= 2 * h;
    numeric.data<double>()[i] = (above - loss(moved).item()) / (2 * h);
  }
  // [gradient end]
  check.close("gradient through the lambda = finite differences", query.grad(), numeric, 1e-8);

  // [explain]
  const mh::AttentionExplanation plan =
      mh::plan({.heads = 2, .queries = 4096, .head_dim = 64}, {.mask = mh::causal()}, limited);
  // [explain end]
  std::printf("       %s on %s; beyond inputs and outputs %lld KiB, the score matrix would take %lld MiB\n",
              plan.kernel.c_str(), plan.target.c_str(), static_cast<long long>(plan.workspace_bytes >> 10),
              static_cast<long long>(plan.score_matrix_bytes >> 20));
  check.that("fused: less than a tenth of the score matrix",
             plan.workspace_bytes < plan.score_matrix_bytes / 10);
  return check.finish();
}
