// The d2l notebook's attention: hidden size first, biases on, scores beyond valid lengths replaced by -1e6.
#include "examples/check.h"
#include "examples/picture.h"

using namespace examples;

namespace {

// [module]
struct NotebookAttention {
  NotebookAttention(int64_t num_hiddens, int64_t num_heads, double dropout, mh::Rng& rng)
      : mha({.embed_dim = num_hiddens, .num_heads = num_heads, .dropout_p = dropout}, rng) {}

  mh::Tensor operator()(const mh::Tensor& queries, const mh::Tensor& keys, const mh::Tensor& values,
                        const mh::Tensor& valid_lens, mh::EmptyRow empty_row = mh::EmptyRow::zero) {
    mh::AttentionCapture capture{.stage = mh::CaptureStage::probabilities};
    mh::nn::AttentionCall call{{.empty_row = empty_row, .capture = &capture}};
    if (valid_lens) call.mask = mh::lengths(valid_lens);
    const mh::Tensor out = mha(queries, keys, values, call);
    attention_weights = capture.weights;
    return out;
  }

  mh::nn::MultiHeadAttention mha;
  mh::Tensor attention_weights;  // [batch, heads, queries, keys], before dropout
};
// [module end]

}  // namespace

int main(int argc, char** argv) {
  Checks check;
  mh::io::TensorMap t = stored("d2l");
  mh::Rng rng(6);
  NotebookAttention attention(100, 5, 0.5, rng);
  const mh::Tensor lens = mh::Tensor::of<int64_t>({2}, {3, 2});

  // [ones]
  const mh::Tensor ones = attention(mh::Tensor::ones({2, 4, 100}), mh::Tensor::ones({2, 6, 100}),
                                    mh::Tensor::ones({2, 6, 100}), lens);
  check.shape("the notebook's own test", ones, {2, 4, 100});
  bool equal = true;
  for (int64_t key = 0; key < 6; ++key) {
    equal &= std::abs(attention.attention_weights.at({0, 4, 3, key}) - (key < 3 ? 1.0 / 3 : 0)) < 1e-6;
    equal &= std::abs(attention.attention_weights.at({1, 0, 2, key}) - (key < 2 ? 1.0 / 2 : 0)) < 1e-6;
  }
  check.that("equal inputs: weights 1/3 three times, 1/2 twice, then 0", equal);
  // [ones end]
  const auto two_heads = [&](int64_t b) {
    return mh::reshape(mh::slice(mh::slice(attention.attention_weights, 0, b, b + 1), 1, 0, 2), {2, 4, 6});
  };
  const mh::Tensor length_3 = two_heads(0), length_2 = two_heads(1);

  mh::nn::MultiHeadAttention& mha = attention.mha;
  mha.in_proj_weight = mh::concat({t["W_q.weight"], t["W_k.weight"], t["W_v.weight"]}, 0);
  mha.in_proj_bias = mh::concat({t["W_q.bias"], t["W_k.bias"], t["W_v.bias"]}, 0);
  mha.out_proj.weight = t["W_o.weight"], mha.out_proj.bias = t["W_o.bias"];
  check.close("output as the notebook's own code in PyTorch", attention(t["x"], t["y"], t["y"], lens),
              t["out"]);
  check.close("weights", attention.attention_weights, t["weights"]);

  // [empty]
  // A sample of length 0: -1e6 everywhere makes the softmax uniform, so padding is averaged into the output.
  const mh::Tensor empty = mh::Tensor::of<int64_t>({2}, {3, 0});
  const mh::Tensor uniform = attention(t["x"], t["y"], t["y"], empty, mh::EmptyRow::uniform);
  check.close("valid length 0, the notebook's rule", uniform, t["out_empty"]);
  const mh::Tensor zero = attention(t["x"], t["y"], t["y"], empty);
  const mh::Tensor only_bias = mh::expand(t["W_o.bias"], {4, 100});
  check.close("valid length 0, our rule: nothing but the output's bias",
              mh::reshape(mh::slice(zero, 0, 1, 2), {4, 100}), only_bias, 0);
  // [empty end]
  picture(argc, argv,
          {{"all ones, valid length 3: 1/3", length_3},
           {"valid length 2: 1/2", length_2},
           {"random inputs, valid length 3", two_heads(0)}});
  return check.finish();
}
