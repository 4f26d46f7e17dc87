// The lecture notes: masked scores, valid lengths, attention of three input sizes, positions, an encoder.
#include "examples/check.h"
#include "examples/picture.h"

using namespace examples;

namespace {

// [lazy]
// MultiHeadAttention(num_heads, hidden_dim): no biases, input sizes inferred from the first call.
struct LectureAttention {
  int64_t num_heads, hidden_dim;
  mh::nn::MultiHeadAttention mha = {};
  mh::Tensor attention_weights = {};  // before dropout

  mh::Tensor operator()(const mh::Tensor& q, const mh::Tensor& k, const mh::Tensor& v,
                        const mh::Tensor& valid_lens) {
    if (mha.options().embed_dim == 0) build(q.size(2), k.size(2), v.size(2));
    mh::AttentionCapture capture{.stage = mh::CaptureStage::probabilities};
    const mh::Tensor out = mha(q, k, v, {.mask = mh::lengths(valid_lens), .capture = &capture});
    attention_weights = capture.weights;
    return out;
  }
  void build(int64_t query_dim, int64_t key_dim, int64_t value_dim) {
    mh::Rng rng(3);
    mha = mh::nn::MultiHeadAttention({.embed_dim = hidden_dim,
                                      .num_heads = num_heads,
                                      .query_dim = query_dim,
                                      .key_dim = key_dim,
                                      .value_dim = value_dim,
                                      .query_bias = false,
                                      .key_bias = false,
                                      .value_bias = false,
                                      .out_bias = false},
                                     rng);
  }
};
// [lazy end]

// [encoder]
// Post-norm blocks, ReLU, no biases but the norms', no dropout between sub-layers.
mh::nn::TransformerEncoder lecture_encoder(int64_t blocks, int64_t heads, int64_t dim, int64_t ffn,
                                           mh::Rng& rng) {
  mh::nn::StackOptions options{.num_layers = blocks};
  options.layer.attention = {.embed_dim = dim,
                             .num_heads = heads,
                             .query_bias = false,
                             .key_bias = false,
                             .value_bias = false,
                             .out_bias = false};
  options.layer.feed_forward = {
      .embed_dim = dim, .hidden_dim = ffn, .activation = mh::Activation::relu, .bias = false};
  return {options, rng};
}
// [encoder end]

}  // namespace

int main(int argc, char** argv) {
  Checks check;
  mh::io::TensorMap t = stored("lecture");
  // [masked]
  // masked_X: keys at or beyond the valid length get -1e6, in a new tensor.
  const mh::Tensor per_sample = mh::masked_scores(t["scores"], t["lens"]);    // lens: [batch]
  const mh::Tensor per_query = mh::masked_scores(t["scores"], t["lens_2d"]);  // [batch, queries]
  // [masked end]
  check.close("masked scores, one length per sample", per_sample, t["masked"], 0);
  check.close("masked scores, one length per query", per_query, t["masked_2d"], 0);

  // [dot]
  const auto one_head = [&](const char* name) { return mh::reshape(t[name], {2, 1, -1, t[name].size(2)}); };
  mh::AttentionCapture capture;
  const mh::Tensor dot =
      mh::attention(one_head("dot.q"), one_head("dot.k"), one_head("dot.v"),
                    {.mask = mh::lengths(mh::Tensor::of<int64_t>({2}, {2, 4})), .capture = &capture});
  // [dot end]
  check.close("scaled dot-product attention", mh::reshape(dot, {2, 4, 4}), t["dot.out"]);
  check.close("its weights, zero past the lengths", mh::reshape(capture.weights, {2, 4, 6}),
              t["dot.weights"]);

  LectureAttention attention{.num_heads = 2, .hidden_dim = 4};
  attention.build(4, 4, 6);
  attention.mha.q_proj.weight = t["mha.W_q.weight"], attention.mha.k_proj.weight = t["mha.W_k.weight"];
  attention.mha.v_proj.weight = t["mha.W_v.weight"], attention.mha.out_proj.weight = t["mha.W_o.weight"];
  const mh::Tensor lens = mh::Tensor::of<int64_t>({2}, {3, 2});
  const mh::Tensor out = attention(t["mha.q"], t["mha.k"], t["mha.v"], lens);
  check.shape("queries (2,4,4), keys (2,6,4), values (2,6,6)", out, {2, 4, 4});
  check.close("multi-head attention as PyTorch", out, t["mha.out"]);
  check.close("its weights, before dropout", attention.attention_weights, t["mha.weights"]);

  const mh::Tensor& weights = attention.attention_weights;
  picture(argc, argv,
          {{"valid length 3: two heads", mh::reshape(mh::slice(weights, 0, 0, 1), {2, 4, 6})},
           {"valid length 2", mh::reshape(mh::slice(weights, 0, 1, 2), {2, 4, 6})}});

  const mh::Tensor p = mh::nn::sinusoidal_positions(60, 32);
  check.close("positions P (1,60,32)", mh::reshape(p, {1, 60, 32}), t["P"], 2e-6);  // f32 angles up to 59

  mh::Rng rng(4);
  mh::nn::TransformerEncoder encoder = lecture_encoder(2, 4, 8, 16, rng);
  check.that("the encoder's parameters include its blocks",
             mh::nn::parameter_count(encoder) == 2 * (4 * 64 + 2 * 128 + 32));
  for (size_t i = 0; i < encoder.layers.size(); ++i) {
    const std::string at = "encoder." + std::to_string(i) + ".", in = at + "attention.";
    mh::nn::TransformerLayer& layer = encoder.layers[i];
    layer.self_attn.in_proj_weight =
        mh::concat({t[in + "W_q.weight"], t[in + "W_k.weight"], t[in + "W_v.weight"]}, 0);
    layer.self_attn.out_proj.weight = t[in + "W_o.weight"];
    layer.feed_forward.fc1.weight = t[at + "ffn.0.weight"],
    layer.feed_forward.fc2.weight = t[at + "ffn.2.weight"];
    layer.norm1.weight = t[at + "norm1.weight"], layer.norm1.bias = t[at + "norm1.bias"];
    layer.norm2.weight = t[at + "norm2.weight"], layer.norm2.bias = t[at + "norm2.bias"];
  }
  const mh::Tensor x = mh::nn::SinusoidalPositionalEncoding(8)(t["encoder.x"]);
  const mh::Tensor encoded = encoder(x, {.mask = mh::lengths(t["lens"])});
  check.shape("encoder of two blocks on (2,4,8)", encoded, {2, 4, 8});
  check.close("encoder as PyTorch", encoded, t["encoder.out"]);
  return check.finish();
}
