// Published variants of attention, in a few lines each: window and sinks, learned slopes,
// differential attention, talking heads.
#include "examples/check.h"

using namespace examples;

namespace {

// [differential]
// Differential attention (Ye et al. 2024): the difference of two softmax maps over the same values, so that
// common noise cancels. Two fused calls; only their outputs are stored.
struct DifferentialAttention {
  DifferentialAttention(int64_t embed_dim, int64_t heads, mh::Rng& rng)
      : num_heads(heads),
        qkv(embed_dim, 3 * embed_dim, rng),
        out(embed_dim, embed_dim, rng),
        lambda(mh::nn::constant_parameter({1}, 0.5)) {}

  mh::Tensor operator()(const mh::Tensor& x) const {
    const int64_t batch = x.size(0), length = x.size(1), embed_dim = x.size(2),
                  dim = embed_dim / num_heads / 2;
    const auto parts = mh::split(qkv(x), {embed_dim, embed_dim, embed_dim}, 2);
    const mh::Tensor q = mh::reshape(parts[0], {batch, length, 2 * num_heads, dim});
    const mh::Tensor k = mh::reshape(parts[1], {batch, length, 2 * num_heads, dim});
    const mh::Tensor v = mh::reshape(parts[2], {batch, length, num_heads, 2 * dim});
    const auto map = [&](int64_t first) {
      return mh::attention(mh::slice(q, 2, first, first + num_heads),
                           mh::slice(k, 2, first, first + num_heads), v,
                           {.mask = mh::causal(), .layout = mh::Layout::bthd});
    };
    const mh::Tensor difference = mh::sub(map(0), mh::mul(lambda, map(num_heads)));
    return out(mh::reshape(difference, {batch, length, embed_dim}));
  }
  void visit(mh::nn::Visitor& visitor) {
    visitor("qkv", qkv);
    visitor("out", out);
    visitor("lambda", lambda);
  }

  int64_t num_heads;
  mh::nn::Linear qkv, out;
  mh::Tensor lambda;
};
// [differential end]

// [talking]
// Talking heads (Shazeer et al. 2020) mix scores and weights across heads, which a kernel that processes one
// head at a time cannot: matrix products and a softmax, with Tq x Tk scores in memory.
mh::Tensor talking_heads(const mh::Tensor& q, const mh::Tensor& k, const mh::Tensor& v,
                         const mh::Tensor& before, const mh::Tensor& after) {
  const int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), keys = k.size(2);
  const auto mix = [&](const mh::Tensor& weights, const mh::Tensor& x) {
    const mh::Tensor rows = mh::reshape(x, {batch, heads, queries * keys});
    return mh::reshape(mh::matmul(weights, rows), {batch, heads, queries, keys});
  };
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const mh::Tensor scores = mh::scale(mh::matmul(q, mh::transpose(k, 2, 3)), scale);
  return mh::matmul(mix(after, mh::softmax(mix(before, scores))), v);
}
// [talking end]

mh::Tensor eye(int64_t size) {
  const mh::Tensor x = mh::Tensor::zeros({size, size});
  x.as_strided({size}, {size + 1}).fill(1);
  return x;
}

// A mask function as a bool tensor.
template <class F>
mh::Tensor flags(int64_t length, F keep) {
  const mh::Tensor x = mh::Tensor::zeros({length, length}, mh::Dtype::boolean);
  for (int32_t i = 0; i < length; ++i) {
    for (int32_t j = 0; j < length; ++j) x.data<bool>()[i * length + j] = keep({.query = i, .key = j});
  }
  return x;
}

}  // namespace

int main() {
  Checks check;
  mh::Rng rng(9);
  const int64_t length = 300;
  mh::Tensor q = mh::randn({1, 2, length, 16}, rng), k = mh::randn({1, 2, length, 16}, rng),
             v = mh::randn({1, 2, length, 16}, rng);

  // [sinks]
  // A window of 128 keys and the first four (StreamingLLM, Xiao et al. 2023). The second function is
  // only for speed: it classifies blocks that can be skipped.
  auto keep = [](mh::ScoreIndex at) { return at.key <= at.query && (at.key < 4 || at.query - at.key < 128); };
  auto classify = [](const mh::MaskBlock& b) {
    const bool behind = b.key_begin >= 4 && b.query_begin - (b.key_end - 1) >= 128;
    return b.key_begin >= b.query_end || behind ? mh::BlockClass::empty : mh::BlockClass::partial;
  };
  const mh::Tensor windowed = mh::attention(q, k, v, {.mask = mh::mask_mod(keep, classify)});
  // [sinks end]
  check.close("window and sinks by functions = by a tensor of flags", windowed,
              mh::attention(q, k, v, {.mask = mh::keep(flags(length, keep))}));

  // [slopes]
  // ALiBi with learned slopes: tensor options get gradients.
  mh::Tensor slopes = mh::nn::alibi_slopes(2).set_requires_grad();
  const auto loss = [&] {
    return mh::mean(mh::square(mh::attention(q, k, v, {.mask = mh::causal(), .alibi_slopes = slopes})));
  };
  {
    mh::Tape tape;
    tape.backward(loss());
  }
  // [slopes end]
  const double before = loss().item();
  const mh::Tensor step =
      mh::scale(slopes.grad(), -1e-2 / std::sqrt(mh::sum(mh::square(slopes.grad())).item()));
  slopes.copy_from(mh::add(slopes.detach(), step));
  const double fell = before - loss().item(), expected = -mh::sum(mh::mul(slopes.grad(), step)).item();
  check.that("a step along the slopes' gradient lowers the loss as it says",
             std::abs(fell / expected - 1) < 0.1, mh::concat(fell, " ~ ", expected));

  DifferentialAttention differential(32, 2, rng);
  const mh::Tensor x = mh::randn({2, 7, 32}, rng);
  {
    mh::Tape tape;
    tape.backward(mh::mean(mh::square(differential(x))));
  }
  check.that("differential attention learns its lambda", differential.lambda.grad().item() != 0);
  const auto with_lambda = [&](double value) {
    differential.lambda.fill(value);
    return differential(x);
  };
  const mh::Tensor middle = mh::scale(mh::add(with_lambda(0), with_lambda(2)), 0.5);
  check.close("it is linear in lambda", with_lambda(1), middle);

  check.close("talking heads that do not talk = attention", talking_heads(q, k, v, eye(2), eye(2)),
              mh::attention(q, k, v));
  return check.finish();
}
