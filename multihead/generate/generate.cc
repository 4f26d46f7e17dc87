#include "multihead/generate/generate.h"

#include <algorithm>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/rng.h"

namespace multihead {
namespace {

// One row of the batch while it is being continued.
struct Row {
  std::vector<int32_t> text;     // prompt and new tokens
  std::vector<int32_t> pending;  // not yet read by the model
  std::vector<int32_t> fresh;    // what generate() returns
  bool done = false;
};

void check_arguments(const models::LanguageModel& model, const std::vector<std::vector<int32_t>>& prompts,
                     const GenerateOptions& options) {
  check(options.sampling);
  MH_CHECK(options.max_new_tokens >= 0, ValueError, "generate: max_new_tokens must be >= 0, got ",
           options.max_new_tokens);
  for (size_t r = 0; r < prompts.size(); ++r) {
    MH_CHECK(!prompts[r].empty(), ValueError, "generate: prompt ", r, " is empty; give at least one token");
    for (const int32_t token : prompts[r]) {
      MH_CHECK(token >= 0 && token < model.config().vocab_size, ValueError, "generate: token ", token,
               " of prompt ", r, " is outside the vocabulary of ", model.config().vocab_size);
    }
    const int64_t total = static_cast<int64_t>(prompts[r].size()) + options.max_new_tokens;
    MH_CHECK(options.overflow == Overflow::slide || total - 1 <= model.config().context, ValueError,
             "generate: prompt ", r, " and ", options.max_new_tokens, " new tokens need a context of ",
             total - 1, ", the model has ", model.config().context);
  }
}

// The last half of the context, to be read again.
std::vector<int32_t> window(const std::vector<int32_t>& text, int64_t context) {
  const auto keep = std::min<size_t>(text.size(), static_cast<size_t>(std::max<int64_t>(context / 2, 1)));
  return {text.end() - static_cast<std::ptrdiff_t>(keep), text.end()};
}

// Makes room: rows whose pending tokens do not fit start again from the window.
void slide(std::vector<Row>& rows, nn::DecodeState& state, int64_t context) {
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].done || state.lengths[r] + static_cast<int64_t>(rows[r].pending.size()) <= context) continue;
    rows[r].pending = window(rows[r].text, context);
    state.lengths[r] = 0;
  }
}

// Logits [B, V] behind the last pending token of every row.
Tensor step(const models::LanguageModel& model, std::vector<Row>& rows, nn::DecodeState& state) {
  size_t longest = 1;
  for (const Row& row : rows) longest = std::max(longest, row.done ? 0 : row.pending.size());
  const auto batch = static_cast<int64_t>(rows.size()), length = static_cast<int64_t>(longest);
  Tensor tokens = Tensor::zeros({batch, length}, Dtype::i32);
  std::vector<int64_t> counts, last;
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t count = rows[r].done ? 0 : rows[r].pending.size();
    std::copy_n(rows[r].pending.begin(), count, tokens.data<int32_t>() + static_cast<int64_t>(r) * length);
    counts.push_back(static_cast<int64_t>(count));
    last.push_back(std::max<int64_t>(static_cast<int64_t>(count) - 1, 0));
  }
  const Tensor features = model.features(tokens, {.state = &state, .counts = counts});
  const int64_t width = features.size(2);
  Tensor ends = Tensor::empty({batch, width}, features.dtype());
  for (int64_t b = 0; b < batch; ++b) {
    ends.as_strided({width}, {1}, b * width)
        .copy_from(features.as_strided({width}, {1}, (b * length + last[static_cast<size_t>(b)]) * width));
  }
  return model.logits(ends).to(Dtype::f32);
}

}  // namespace

std::vector<std::vector<int32_t>> generate(const models::LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options) {
  check_arguments(model, prompts, options);
  if (prompts.empty()) return {};
  const NoTape silent;
  const int64_t context = model.config().context;
  std::vector<Row> rows;
  int64_t needed = 1;
  for (const auto& prompt : prompts) {
    const bool fits = static_cast<int64_t>(prompt.size()) <= context;
    rows.push_back({prompt, fits ? prompt : window(prompt, context), {}, false});
    needed = std::max(needed, static_cast<int64_t>(prompt.size()) + options.max_new_tokens);
  }
  nn::DecodeState state = model.make_state(static_cast<int64_t>(rows.size()), std::min(needed, context));
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    if (std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.done; })) break;
    slide(rows, state, state.capacity);
    const Tensor logits = step(model, rows, state);
    const auto vocabulary = static_cast<size_t>(logits.size(1));
    for (size_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      if (row.done) continue;
      const double uniform = RandomStream{options.seed, r}.uniform(static_cast<uint64_t>(i));
      const int32_t token =
          sample({logits.data<float>() + r * vocabulary, vocabulary}, row.text, options.sampling, uniform);
      row.pending = {token};
      if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) !=
          options.stop_tokens.end()) {
        row.done = true;
        continue;
      }
      row.text.push_back(token);
      row.fresh.push_back(token);
      row.done = options.on_token && !options.on_token(static_cast<int64_t>(r), token);
    }
  }
  std::vector<std::vector<int32_t>> results;
  for (Row& row : rows) results.push_back(std::move(row.fresh));
  return results;
}

}  // namespace multihead
