// Multi-head attention as in the annotated labml module: [seq, batch, dim], mask[query, key, batch].
#include "examples/check.h"
#include "examples/picture.h"

using namespace examples;

namespace {

// [module]
// Biases: queries and keys optional, values and output always. `attn` holds the last call's weights,
// [seq_q, seq_k, batch, heads], after dropout. get_scores() may be overridden.
class LabmlAttention {
 public:
  LabmlAttention(int64_t heads, int64_t d_model, double dropout, bool bias, mh::Rng& rng)
      : mha({.embed_dim = d_model,
             .num_heads = heads,
             .query_bias = bias,
             .key_bias = bias,
             .dropout_p = dropout},
            rng) {}
  virtual ~LabmlAttention() = default;

  mh::Tensor operator()(const mh::Tensor& query, const mh::Tensor& key, const mh::Tensor& value,
                        const mh::Tensor& mask = {}, mh::Rng* rng = nullptr) {
    mh::AttentionCapture capture{.stage = mh::CaptureStage::after_dropout};
    mh::nn::AttentionCall call{{.rng = rng, .capture = &capture}};
    if (mask) {
      MH_CHECK(mask.rank() == 3 && mask.size(1) == key.size(0), ShapeError,
               "LabmlAttention: mask must be [seq_q or 1, ", key.size(0), ", batch or 1], got ",
               mask.shape());
      call.mask = mh::from_labml_mask(mask);
    }
    const auto batch_first = [](const mh::Tensor& x) { return mh::transpose(x, 0, 1); };
    get_scores(query.size(0), key.size(0), call);
    const mh::Tensor out = mha(batch_first(query), batch_first(key), batch_first(value), call);
    attn = mh::permute(capture.weights, {2, 3, 0, 1});
    return mh::transpose(out, 0, 1);
  }
  /// Sets options of the call that modify the scores q·k/sqrt(d_k); none here.
  virtual void get_scores(int64_t /*seq_q*/, int64_t /*seq_k*/, mh::nn::AttentionCall&) const {}

  mh::nn::MultiHeadAttention mha;
  mh::Tensor attn;
};
// [module end]

// [relative]
// Relative positions: (q·k + q·R[k - q] + b[k - q]) / sqrt(d_k). Two learned tables, one row per
// distance.
struct RelativeAttention : LabmlAttention {
  using LabmlAttention::LabmlAttention;
  void get_scores(int64_t /*seq_q*/, int64_t seq_k, mh::nn::AttentionCall& call) const override {
    call.relative_key = mh::transpose(table, 0, 1);
    call.relative_bias =
        mh::scale(mh::transpose(bias, 0, 1), 1 / std::sqrt(static_cast<double>(table.size(2))));
    call.relative_center = seq_k - 1;  // the row of the last query and the last key
  }
  mh::Tensor table, bias;  // [seq_q + seq_k - 1, heads, d_k], [seq_q + seq_k - 1, heads]
};

// A function of a score and its position. Captures are constants: gradients reach queries and keys only.
struct FadingAttention : LabmlAttention {
  using LabmlAttention::LabmlAttention;
  void get_scores(int64_t, int64_t, mh::nn::AttentionCall& call) const override {
    call.score_mod = mh::score_mod([rate = rate](auto score, mh::ScoreIndex at) {
      return score - rate * static_cast<float>(std::abs(at.query - at.key));
    });
  }
  float rate = 0.1F;
};
// [relative end]

void load(mh::nn::MultiHeadAttention& mha, mh::io::TensorMap& t) {
  mha.q_proj.weight = t["query.linear.weight"], mha.k_proj.weight = t["key.linear.weight"];
  mha.v_proj.weight = t["value.linear.weight"], mha.v_proj.bias = t["value.linear.bias"];
  mha.out_proj.weight = t["output.weight"], mha.out_proj.bias = t["output.bias"];
}

// Gradients of sum(out²) with respect to every parameter, as in PyTorch.
void check_gradients(Checks& check, RelativeAttention& relative, mh::io::TensorMap& t) {
  mh::Tensor query = t["query"].clone().set_requires_grad(), key = t["key"].clone().set_requires_grad();
  mh::Tensor& weight = relative.mha.q_proj.weight;
  for (mh::Tensor* x : {&weight, &relative.table, &relative.bias}) *x = x->clone().set_requires_grad();
  mh::Tape tape;
  tape.backward(mh::sum(mh::square(relative(query, key, key, t["mask"]))));
  check.close("gradient of the table", relative.table.grad(), t["grad.relative"], 2e-6);
  check.close("gradient of the bias", relative.bias.grad(), t["grad.relative_bias"], 2e-6);
  check.close("gradient of the queries", query.grad(), t["grad.query"], 2e-6);
  check.close("gradient of their weight", weight.grad(), t["grad.query.linear.weight"], 2e-6);
  check.close("gradient of the keys and values", key.grad(), t["grad.key"], 2e-6);
}

}  // namespace

int main(int argc, char** argv) {
  Checks check;
  mh::io::TensorMap t = stored("labml");
  const mh::Tensor query = t["query"], key = t["key"], mask = t["mask"];
  mh::Rng rng(1);

  LabmlAttention attention(2, 12, 0.1, false, rng);
  load(attention.mha, t);
  const mh::Tensor out = attention(query, key, key, mask);
  check.shape("output [seq, batch, dim]", out, {5, 3, 12});
  check.close("output as PyTorch", out, t["out"]);
  check.close("weights [seq_q, seq_k, batch, heads] as PyTorch", attention.attn, t["attn"]);

  const auto first_sample = [](const mh::Tensor& attn) {
    return mh::reshape(mh::slice(mh::permute(attn, {2, 3, 0, 1}), 0, 0, 1), {2, 5, 7});
  };
  const mh::Tensor undropped = first_sample(attention.attn);
  attention(query, key, key, mask, &rng);
  bool scaled = true;
  const auto kept = attention.attn.to_vector<float>(), before = t["attn"].to_vector<float>();
  for (size_t i = 0; i < kept.size(); ++i)
    scaled &= kept[i] == 0 || std::abs(kept[i] - before[i] / 0.9F) < 1e-6F;
  check.that("with dropout the stored weights are 0 or weight / 0.9", scaled);

  RelativeAttention relative(2, 12, 0, false, rng);
  load(relative.mha, t);
  relative.table = t["relative"], relative.bias = t["relative_bias"];
  check.close("overridden scores: relative positions", relative(query, key, key, mask), t["relative_out"]);
  check_gradients(check, relative, t);

  FadingAttention fading(2, 12, 0, false, rng);
  load(fading.mha, t);
  const mh::Tensor faded = fading(query, key, key, mask);
  fading.rate = 0;
  check.close("overridden scores: a function that changes nothing", fading(query, key, key, mask), t["out"]);
  check.that("and one that does", difference(faded, t["out"]) > 1e-3);

  picture(argc, argv,
          {{"two heads under a mask", undropped}, {"with relative positions", first_sample(relative.attn)}});

  const mh::Tensor nothing = mh::Tensor::zeros({5, 7, 3});
  attention(query, key, key, nothing);
  check.close("a row without any key has weights 0, not NaN", attention.attn,
              mh::Tensor::zeros({5, 7, 3, 2}));
  bool refused = false;
  try {
    attention(query, key, key, mh::Tensor::ones({5, 1, 3}));
  } catch (const mh::ShapeError& error) {
    refused = true;
    std::printf("       %s\n", error.what());
  }
  check.that("a mask of one key for seven is refused", refused);
  return check.finish();
}
