// The lecture's decoder with state: the whole target at once, and token by token with the same result.
#include "examples/check.h"
#include "examples/picture.h"

using namespace examples;

namespace {

// [model]
// Causal self-attention, cross-attention to the encoder's output, feed-forward; then the output projection.
struct LectureDecoder {
  LectureDecoder(int64_t blocks, int64_t heads, int64_t dim, int64_t ffn, int64_t vocab, mh::Rng& rng)
      : positions(dim), stack(options(blocks, heads, dim, ffn), rng), dense(dim, vocab, rng) {}

  static mh::nn::StackOptions options(int64_t blocks, int64_t heads, int64_t dim, int64_t ffn) {
    mh::nn::StackOptions o{.num_layers = blocks};
    o.layer.attention = {.embed_dim = dim,
                         .num_heads = heads,
                         .query_bias = false,
                         .key_bias = false,
                         .value_bias = false,
                         .out_bias = false};
    o.layer.feed_forward = {
        .embed_dim = dim, .hidden_dim = ffn, .activation = mh::Activation::relu, .bias = false};
    o.layer.cross_attention = true;
    return o;
  }
  mh::Tensor operator()(const mh::Tensor& x, const mh::Tensor& memory, const mh::Tensor& lens) const {
    return dense(stack(positions(x), memory, {.memory_mask = mh::lengths(lens)}));
  }
  /// The next token(s): the state knows how many came before.
  mh::Tensor step(const mh::Tensor& x, mh::nn::DecodeState& state) const {
    return dense(stack(positions(x, state.lengths), {}, {.state = &state}));
  }

  mh::nn::SinusoidalPositionalEncoding positions;
  mh::nn::TransformerDecoder stack;
  mh::nn::Linear dense;
};
// [model end]

void load(mh::nn::MultiHeadAttention& mha, mh::io::TensorMap& t, const std::string& at) {
  const mh::Tensor q = t[at + "W_q.weight"], k = t[at + "W_k.weight"], v = t[at + "W_v.weight"];
  if (mha.in_proj_weight)
    mha.in_proj_weight = mh::concat({q, k, v}, 0);
  else
    mha.q_proj.weight = q, mha.k_proj.weight = k, mha.v_proj.weight = v;
  mha.out_proj.weight = t[at + "W_o.weight"];
}

void load(LectureDecoder& decoder, mh::io::TensorMap& t) {
  for (size_t i = 0; i < decoder.stack.layers.size(); ++i) {
    mh::nn::TransformerLayer& layer = decoder.stack.layers[i];
    const std::string at = std::to_string(i) + ".";
    load(layer.self_attn, t, at + "attention1."), load(layer.multihead_attn, t, at + "attention2.");
    layer.feed_forward.fc1.weight = t[at + "ffn.0.weight"],
    layer.feed_forward.fc2.weight = t[at + "ffn.2.weight"];
    mh::nn::Norm* norms[] = {&layer.norm1, &layer.norm2, &layer.norm3};
    for (int n = 0; n < 3; ++n) {
      const std::string name = at + "norm" + std::to_string(n + 1);
      norms[n]->weight = t[name + ".weight"], norms[n]->bias = t[name + ".bias"];
    }
  }
  decoder.dense.weight = t["dense.weight"], decoder.dense.bias = t["dense.bias"];
}

}  // namespace

int main(int argc, char** argv) {
  Checks check;
  mh::io::TensorMap t = stored("decoder");
  mh::Rng rng(5);
  LectureDecoder decoder(2, 4, 8, 16, 11, rng);
  load(decoder, t);

  const mh::Tensor x = t["x"], memory = t["memory"];
  const mh::Tensor full = decoder(x, memory, mh::Tensor::of<int64_t>({2}, {2, 3}));
  check.shape("scores of the next word (batch, target, vocabulary)", full, {2, 5, 11});
  check.close("as PyTorch, residual around the cross-attention restored", full, t["out"]);

  // [state]
  mh::nn::DecodeState state = decoder.stack.start(memory, {2, 3}, 5);  // projects the memory once
  std::vector<mh::Tensor> steps;
  for (int64_t i = 0; i < 5; ++i) steps.push_back(decoder.step(mh::slice(x, 1, i, i + 1), state));
  // [state end]
  check.close("token by token with state = all at once", mh::concat(steps, 1), full, 0);
  check.that("the state counts positions", state.lengths == std::vector<int64_t>{5, 5});

  mh::nn::DecodeState two = decoder.stack.start(memory, {2, 3}, 5);
  const mh::Tensor head = decoder.step(mh::slice(x, 1, 0, 2), two),
                   tail = decoder.step(mh::slice(x, 1, 2, 5), two);
  check.close("several tokens per step are causal too", mh::concat({head, tail}, 1), full, 0);

  std::vector<mh::AttentionCapture> self(2), cross(2);
  decoder.stack(decoder.positions(x), memory,
                {.memory_mask = mh::lengths(mh::Tensor::of<int64_t>({2}, {2, 3})),
                 .capture = &self,
                 .cross_capture = &cross});
  const auto sample = [](const mh::Tensor& w) { return mh::reshape(mh::slice(w, 0, 1, 2), {4, 5, -1}); };
  picture(argc, argv,
          {{"self-attention of the first block", sample(self[0].weights)},
           {"cross-attention, source of length 3", sample(cross[0].weights)}});

  mh::Tensor changed = x.clone();  // the future cannot reach the past
  mh::slice(changed, 1, 3, 5).fill(NAN);
  const mh::Tensor past = decoder(changed, memory, mh::Tensor::of<int64_t>({2}, {2, 3}));
  check.close("NaN at positions 3 and 4 leaves 0 to 2 alone", mh::slice(past, 1, 0, 3),
              mh::slice(full, 1, 0, 3), 0);
  return check.finish();
}
