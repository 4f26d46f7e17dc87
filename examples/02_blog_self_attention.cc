// The blog's self-attention: one input, four projections, and scores divided by sqrt(embed_dim).
#include "examples/check.h"
#include "examples/picture.h"

using namespace examples;

namespace {

// [module]
struct BlogAttention {
  BlogAttention(int64_t embed_dim, int64_t nhead, mh::Rng& rng)
      : mha({.embed_dim = embed_dim,
             .num_heads = nhead,
             .scale = mh::attention_profile(mh::Profile::blog, embed_dim).options.scale},
            rng) {}
  mh::Tensor operator()(const mh::Tensor& x) const { return mha(x, x, x); }

  mh::nn::MultiHeadAttention mha;
};
// [module end]

void load(mh::nn::MultiHeadAttention& mha, mh::io::TensorMap& t) {
  mha.in_proj_weight = mh::concat({t["query_proj.weight"], t["key_proj.weight"], t["value_proj.weight"]}, 0);
  mha.in_proj_bias = mh::concat({t["query_proj.bias"], t["key_proj.bias"], t["value_proj.bias"]}, 0);
  mha.out_proj.weight = t["out_proj.weight"], mha.out_proj.bias = t["out_proj.bias"];
}

}  // namespace

int main(int argc, char** argv) {
  Checks check;
  mh::io::TensorMap t = stored("blog");
  const mh::Tensor x = t["x"];
  mh::Rng rng(2);

  BlogAttention blog(24, 4, rng);
  load(blog.mha, t);
  check.shape("output has the input's shape", blog(x), {2, 7, 24});
  check.close("output as PyTorch", blog(x), t["out"]);

  // [scale]
  // The usual scale is 1/sqrt(head_dim), sqrt(heads) times larger. The two agree only for one head.
  mh::nn::MultiHeadAttention usual({.embed_dim = 24, .num_heads = 4}, rng);
  load(usual, t);
  mh::AttentionCapture sharp, soft;
  usual(x, x, x, {.capture = &sharp});
  blog.mha(x, x, x, {.capture = &soft});
  // [scale end]
  check.close("weights as PyTorch", soft.weights, t["attn"]);
  const auto confidence = [](const mh::Tensor& weights) {  // the mean of w² grows as a softmax gets sharper
    return mh::mean(mh::square(weights)).item();
  };
  check.that("the usual scale is sharper", confidence(sharp.weights) > confidence(soft.weights),
             mh::concat(confidence(sharp.weights), " > ", confidence(soft.weights)));

  mh::nn::MultiHeadAttention usual_one({.embed_dim = 24, .num_heads = 1}, rng);
  BlogAttention blog_one(24, 1, rng);
  load(usual_one, t), load(blog_one.mha, t);
  check.close("one head: both scales are the same", blog_one(x), usual_one(x, x, x), 0);

  // [compose]
  // "Part of a larger Transformer": the same rule inside an encoder layer.
  const mh::nn::TransformerLayer layer(
      {.attention = blog.mha.options(), .feed_forward = {.embed_dim = 24, .hidden_dim = 48}}, rng);
  // [compose end]
  check.shape("inside an encoder layer", layer(x), {2, 7, 24});

  bool refused = false;
  try {
    BlogAttention(24, 5, rng);
  } catch (const mh::ValueError& error) {
    refused = true;
    std::printf("       %s\n", error.what());
  }
  check.that("heads that do not divide embed_dim are refused at once", refused);
  const auto first = [](const mh::Tensor& w) { return mh::reshape(mh::slice(w, 0, 0, 1), {4, 7, 7}); };
  picture(argc, argv,
          {{"divided by sqrt(embed_dim), the blog", first(soft.weights)},
           {"divided by sqrt(head_dim)", first(sharp.weights)}});
  return check.finish();
}
