// What a user's program does: attention with a score function of its own, and a few steps of training.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "multihead/multihead.h"

namespace mh = multihead;

namespace {

bool values_of_one_give_one(mh::Rng& rng) {
  const mh::Tensor query = mh::randn({2, 3, 5, 7}, rng);
  const mh::Tensor key = mh::randn({2, 3, 11, 7}, rng);
  const mh::Tensor value = mh::Tensor::ones({2, 3, 11, 13});
  const auto nearer_is_better = [](auto score, mh::ScoreIndex at) {
    return score - 0.5f * static_cast<float>(at.query - at.key);
  };
  const mh::Tensor out =
      mh::attention(query, key, value, {.mask = mh::causal()}, mh::score_mod(nearer_is_better));
  if (out.shape() != mh::Shape{2, 3, 5, 13}) return false;
  for (const float x : out.span<float>()) {
    if (std::abs(x - 1) > 1e-6f) return false;
  }
  return true;
}

bool training_lowers_the_loss(mh::Rng& rng) {
  mh::nn::MultiHeadAttention attention({.embed_dim = 16, .num_heads = 4}, rng);
  mh::optim::AdamW optimizer(mh::nn::parameters(attention), {.lr = 1e-2});
  const mh::Tensor x = mh::randn({2, 6, 16}, rng);
  const mh::Tensor targets = mh::Tensor::of<int64_t>({2, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    mh::Tape tape;
    const mh::Tensor loss = mh::cross_entropy(attention(x, x, x, {.mask = mh::causal()}), targets);
    tape.backward(loss);
    optimizer.step();
    last = loss.item();
    if (step == 0) first = last;
  }
  return last < 0.8 * first;
}

bool errors_arrive(mh::Rng& rng) {
  try {
    mh::attention(mh::randn({1, 2, 3, 4}, rng), mh::randn({1, 2, 3, 5}, rng), mh::randn({1, 2, 3, 4}, rng));
  } catch (const mh::ShapeError& error) {
    return std::string(error.what()).find("key") != std::string::npos;
  }
  return false;
}

// A field that is left out must not be a warning in the user's program, whatever stands behind it.
bool options_may_leave_fields_out() {
  const mh::AttentionCapture capture{.want_weights = false, .want_entropy = true};
  const mh::GenerateOptions generate{.max_new_tokens = 3, .sampling = {.temperature = 0}};
  const mh::TranslateOptions translate{.batch_tokens = 7};
  const mh::models::TokenBatch batch{.tokens = mh::Tensor::zeros({1, 2}, mh::Dtype::i64)};
  const mh::nn::StackOptions stack{.num_layers = 2};
  const mh::nn::TransformerLayerOptions layer{.norm_first = true};
  const mh::nn::LayerCall call{.memory = batch.tokens};
  const mh::nn::CacheUpdate update{.window = 5};
  const mh::train::LoopOptions loop{.steps = 10};
  const mh::train::DoctorOptions check{.length = 7};
  return capture.heads.empty() && !generate.on_token && translate.prefixes.empty() && batch.lengths.empty() &&
         stack.num_layers == 2 && layer.norm_first && !call.update.cache && update.held.empty() &&
         loop.folder.empty() && !check.on_result;
}

}  // namespace

int main() {
  static_assert(MULTIHEAD_VERSION_MAJOR == 0);
  mh::Rng rng(1337);
  const bool ok = values_of_one_give_one(rng) && training_lowers_the_loss(rng) && errors_arrive(rng) &&
                  options_may_leave_fields_out();
  std::printf("multihead %s %s\n", std::string(mh::version()).c_str(), ok ? "ok" : "FAILED");
  return ok ? 0 : 1;
}
