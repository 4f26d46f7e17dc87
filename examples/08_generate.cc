// Generation with a key/value cache: cached = uncached, rows are independent, seeds are reproducible; many at
// once, and draft tokens that are checked.
#include "examples/check.h"

using namespace examples;

namespace {

// [uncached]
// The reference for the cache: the whole text through the model for every new token.
std::vector<int32_t> greedy_uncached(const mh::models::LanguageModel& model, std::vector<int32_t> ids,
                                     int count) {
  const size_t prompt = ids.size();
  for (int i = 0; i < count; ++i) {
    const auto length = static_cast<int64_t>(ids.size());
    const mh::Tensor logits = model(mh::Tensor::of({1, length}, ids));
    const auto last = mh::slice(logits, 1, length - 1, length).to_vector<float>();
    ids.push_back(static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
}
// [uncached end]

std::string to_string(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

}  // namespace

int main() {
  Checks check;
  mh::models::LanguageModelConfig config = mh::models::language_model_preset("tiny");
  config.vocab_size = 97;
  config.init_std = 0.3;  // an untrained model with opinions
  mh::Rng rng(8);
  const mh::models::LanguageModel model(config, rng);
  const std::vector<int32_t> a = {3, 1, 4, 1, 5}, b = {2, 7};

  // [greedy]
  mh::GenerateOptions greedy{.max_new_tokens = 20, .sampling = {.temperature = 0}};
  const auto alone = mh::generate(model, {a}, greedy);
  const auto together = mh::generate(model, {a, b}, greedy);
  // [greedy end]
  check.that("cached = uncached", alone[0] == greedy_uncached(model, a, 20), to_string(alone[0]));
  check.that("a row in a ragged batch = the row alone", together[0] == alone[0]);
  check.that("the other row too", together[1] == greedy_uncached(model, b, 20), to_string(together[1]));

  // [sample]
  mh::GenerateOptions sampled{
      .max_new_tokens = 20, .sampling = {.temperature = 0.8, .top_k = 40, .top_p = 0.95}, .seed = 42};
  const auto once = mh::generate(model, {a, a}, sampled), again = mh::generate(model, {a, a}, sampled);
  // [sample end]
  check.that("the same seed gives the same text", once == again, to_string(once[0]));
  check.that("the rows of a batch draw for themselves", once[0] != once[1], to_string(once[1]));

  // [stream]
  int seen = 0;
  greedy.on_token = [&](int64_t, int32_t) { return ++seen < 5; };  // called per token; false ends the row
  const auto stopped = mh::generate(model, {a}, greedy);
  // [stream end]
  check.that("streaming stops when told", seen == 5 && stopped[0].size() <= 5);

  // [many]
  mh::Generator generator(
      model, {.max_batch = 2, .cached_prompts = 1});  // decodes two at a time, reads equal beginnings once
  const int64_t first = generator.submit(a, sampled);
  generator.step();
  const int64_t second = generator.submit({3, 1, 4, 1, 5, 9}, sampled);  // joins while the first one runs
  while (generator.step()) {
  }
  // [many end]
  const auto other = mh::generate(model, {{3, 1, 4, 1, 5, 9}}, sampled);
  check.that("a sequence that joins is as alone",
             generator.take(first) == once[0] && generator.take(second) == other[0]);

  // [draft]
  mh::GenerateOptions drafted = sampled;
  drafted.draft = mh::prompt_lookup();  // or draft_model(smaller)
  // [draft end]
  check.that("draft tokens change nothing", mh::generate(model, {a, a}, drafted) == once);

  bool refused = false;
  try {
    mh::generate(model, {{}}, greedy);
  } catch (const mh::ValueError& error) {
    refused = true;
    std::printf("       %s\n", error.what());
  }
  check.that("an empty prompt is refused", refused);
  return check.finish();
}
