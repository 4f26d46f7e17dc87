#include "multihead/generate/generate.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/generate/generator.h"
#include "multihead/generate/prefix-inl.h"

namespace multihead {
namespace {

// The number of prompts to cache so that each shared prefix is read once.
int64_t shared_prefixes(const std::vector<std::vector<int32_t>>& prompts) {
  constexpr int64_t kMost = 8;
  int64_t count = 0;
  for (size_t i = 1; i < prompts.size() && count < kMost; ++i) {
    count += common_prefix(prompts[i - 1], prompts[i]) >= kLongPrefix;
  }
  return count;
}

}  // namespace

nn::DecodeStateOptions plan_generate(const models::LanguageModel& model, int64_t rows, int64_t longest_prompt,
                                     const GenerateOptions& options) {
  return model.state_options(
      {.batch = rows,
       .capacity = std::max<int64_t>(whole_length(longest_prompt, options.max_new_tokens), 1),
       .ring = model.has_ring(),
       .dtype = options.cache_dtype});
}

std::vector<std::vector<int32_t>> generate(const models::LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options, GeneratorOptions own) {
  if (prompts.empty()) return {};
  int64_t longest = 1;
  for (const auto& prompt : prompts) longest = std::max<int64_t>(longest, std::ssize(prompt));
  own.max_batch = std::ssize(prompts);
  own.capacity = whole_length(longest, options.max_new_tokens);
  own.cache_dtype = options.cache_dtype;
  own.prompt_chunk = 0;  // nobody waits meanwhile
  if (own.cached_prompts == 0) own.cached_prompts = shared_prefixes(prompts);
  Generator generator(model, own);
  for (size_t r = 0; r < prompts.size(); ++r) generator.submit(prompts[r], options, r);
  while (generator.step()) {
  }
  std::vector<std::vector<int32_t>> results;
  for (int64_t r = 0; r < std::ssize(prompts); ++r) {
    const std::string problem = generator.problem(r);
    MH_CHECK(problem.empty(), ValueError, "generate: row ", r, ": ", problem);
    results.push_back(generator.take(r));
  }
  return results;
}

std::vector<std::vector<int32_t>> generate(const models::LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options) {
  return generate(model, prompts, options, {});
}

std::vector<std::vector<TokenLogprobs>> prompt_logprobs(const models::LanguageModel& model,
                                                        const std::vector<std::vector<int32_t>>& texts,
                                                        int64_t top) {
  std::vector<std::vector<TokenLogprobs>> all(texts.size());
  GenerateOptions options = {.max_new_tokens = 0};
  options.top_logprobs = top;
  options.on_prompt_logprobs = [&](int64_t row, const TokenLogprobs& one) {
    all[static_cast<size_t>(row)].push_back(one);
  };
  generate(model, texts, options);
  return all;
}

}  // namespace multihead
