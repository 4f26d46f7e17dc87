#include "multihead/generate/generate.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/generate/generator.h"

namespace multihead {

nn::DecodeStateOptions plan_generate(const models::LanguageModel& model, int64_t rows, int64_t longest_prompt,
                                     const GenerateOptions& options) {
  return model.state_options({.batch = rows,
                              .capacity = std::max<int64_t>(longest_prompt + options.max_new_tokens, 1),
                              .ring = model.has_ring(),
                              .dtype = options.cache_dtype});
}

std::vector<std::vector<int32_t>> generate(const models::LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options) {
  if (prompts.empty()) return {};
  int64_t longest = 1;
  for (const auto& prompt : prompts) longest = std::max(longest, std::ssize(prompt));
  Generator generator(model, {.rows = std::ssize(prompts),
                              .capacity = longest + std::max<int64_t>(options.max_new_tokens, 0),
                              .cache_dtype = options.cache_dtype});
  for (size_t r = 0; r < prompts.size(); ++r) generator.submit(prompts[r], options, r);
  while (generator.step()) {
  }
  std::vector<std::vector<int32_t>> results;
  for (int64_t r = 0; r < std::ssize(prompts); ++r) results.push_back(generator.take(r));
  return results;
}

}  // namespace multihead
