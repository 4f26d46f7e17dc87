// The founding language-model recipe, on a few lines of text: characters, sinusoidal positions, pre-norm
// layers, Noam schedule, Adam, gradient clipping at 1; then greedy decoding. Full size:
//   multihead train lm --preset tutorial --data FILE --out DIR
#include "examples/check.h"

using namespace examples;

namespace {

constexpr const char* kText =
    "the cat sat on the mat. the dog sat on the log. the cat saw the dog, and the dog saw the cat. "
    "the mat was red, the log was brown. the cat ran to the log, and the dog ran to the mat. ";

// Rows of `context` characters at random offsets, and the same one character later.
std::pair<mh::Tensor, mh::Tensor> batch(const std::vector<int32_t>& ids, int64_t rows, int64_t context,
                                        mh::Rng& rng) {
  const mh::RandomStream random = rng.next();
  std::vector<int32_t> x, y;
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin =
        ids.begin() + random.bits(static_cast<uint64_t>(row)) % (ids.size() - static_cast<size_t>(context));
    x.insert(x.end(), begin, begin + context);
    y.insert(y.end(), begin + 1, begin + context + 1);
  }
  return {mh::Tensor::of({rows, context}, x), mh::Tensor::of({rows, context}, y)};
}

}  // namespace

int main() {
  Checks check;
  const auto tokenizer = mh::text::Tokenizer::train_characters(kText);
  const std::vector<int32_t> ids = tokenizer.encode(kText);

  // [model]
  mh::models::LanguageModelConfig config = mh::models::language_model_preset("tutorial");
  config.vocab_size = tokenizer.vocab_size();
  config.num_layers = 2, config.num_heads = 4, config.embed_dim = 64, config.ffn_dim = 256,
  config.context = 64;
  mh::Rng rng(1337);
  mh::models::LanguageModel model(config, rng);
  // [model end]

  // [train]
  const mh::optim::Schedule noam{
      .kind = mh::optim::ScheduleKind::noam, .lr = 0.5, .warmup_steps = 200, .embed_dim = config.embed_dim};
  mh::optim::Adam optimizer(mh::nn::named_parameters(model), {.eps_hat = true});
  double first = 0, last = 0;
  for (int64_t step = 0; step < 480; ++step) {
    const auto [tokens, targets] = batch(ids, 8, 32, rng);
    mh::Tape tape;
    const mh::Tensor loss = model.loss(tokens, targets, {.rng = &rng});
    optimizer.zero_grad();
    tape.backward(loss);
    optimizer.clip_grad_norm(1.0);
    optimizer.set_lr(noam.at(step));
    optimizer.step();
    last = loss.item();
    if (step == 0) first = last;
    if (step % 120 == 0)
      std::printf("step %3d  loss %.3f  lr %.5f\n", static_cast<int>(step), last, noam.at(step));
  }
  // [train end]

  const double uniform = std::log(static_cast<double>(config.vocab_size));
  check.that("the first loss is near that of guessing", std::abs(first - uniform) < 1,
             mh::concat(first, " ~ ln(", config.vocab_size, ") = ", uniform));
  check.that("the text is learnt", last < 0.5, mh::concat(first, " -> ", last, " nats per character"));

  // [sample]
  const std::string prompt = "the cat ";
  const auto continuation =
      mh::generate(model, {tokenizer.encode(prompt)}, {.max_new_tokens = 25, .sampling = {.temperature = 0}});
  const std::string text = prompt + tokenizer.decode(continuation[0], {.continued = true});
  // [sample end]
  check.that("greedy text goes on as the training text does",
             std::string(kText).find(text.substr(0, prompt.size() + 8)) != std::string::npos, text);
  return check.finish();
}
