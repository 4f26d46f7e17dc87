// Multi-head attention as the annotated labml module has it: [seq, batch, dim], mask[query, key, batch].
#include "examples/check.h"
#include "examples/picture.h"

using namespace examples;

namespace {

// [module]
// Biases: queries and keys by flag, values and output always. `attn` keeps the weights of the last call,
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
    mh::nn::AttentionCall call{.rng = rng, .capture = &capture};
    if (mask) {
      MH_CHECK(mask.rank() == 3 && mask.size(1) == key.size(0), ShapeError,
               "LabmlAttention: mask must be [seq_q or 1, ", key.size(0), ", batch or 1], got ",
               mask.shape());
      call.mask = mh::from_labml_mask(mask);
    }
    const auto batch_first = [](const mh::Tensor& x) { return mh::transpose(x, 0, 1); };
    call.score_mod = get_scores(batch_first(query));
    const mh::Tensor out = mha(batch_first(query), batch_first(key), batch_first(value), call);
    attn = mh::permute(capture.weights, {2, 3, 0, 1});
    return mh::transpose(out, 0, 1);
  }
  /// What happens to a scaled score q·k/sqrt(d_k); nothing here.
  virtual mh::ScoreMod get_scores(const mh::Tensor&) { return {}; }

  mh::nn::MultiHeadAttention mha;
  mh::Tensor attn;
};
// [module end]

// [relative]
// Relative positions: q·k + q·R[k - q] + b[k - q], one table row per distance.
struct RelativeAttention : LabmlAttention {
  using LabmlAttention::LabmlAttention;
  mh::ScoreMod get_scores(const mh::Tensor& query) override {
    const int64_t rows = table.size(0), heads = table.size(1), d_k = table.size(2), seq = query.size(1);
    const mh::Tensor q = mh::reshape(mha.q_proj(query), {query.size(0), seq, heads, d_k});
    const mh::Tensor by_distance = mh::matmul(mh::transpose(q, 1, 2), mh::permute(table, {1, 2, 0}));
    extra = mh::contiguous(mh::add(by_distance, mh::reshape(mh::transpose(bias, 0, 1), {heads, 1, rows})));
    const float scale = 1 / std::sqrt(static_cast<float>(d_k));
    return mh::score_mod([=, e = extra.data<float>()](auto score, mh::ScoreIndex at) {
      const int64_t row = (at.batch * heads + at.head) * seq + at.row;
      return score + scale * e[row * rows + at.key - at.row + seq - 1];
    });
  }
  mh::Tensor table, bias, extra;
};
// [relative end]

void load(mh::nn::MultiHeadAttention& mha, mh::io::TensorMap& t) {
  mha.q_proj.weight = t["query.linear.weight"], mha.k_proj.weight = t["key.linear.weight"];
  mha.v_proj.weight = t["value.linear.weight"], mha.v_proj.bias = t["value.linear.bias"];
  mha.out_proj.weight = t["output.weight"], mha.out_proj.bias = t["output.bias"];
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
