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
    MH_CHECK(options.overflow == Overflow::slide || total - 1 <= model.longest(), ValueError,
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
    state.clear(static_cast<int64_t>(r));
  }
}

// Reads up to `chunk` pending tokens of every row. The features behind the last one go to `ends` [B, E].
void read(const models::LanguageModel& model, std::vector<Row>& rows, nn::DecodeState& state, int64_t chunk,
          Tensor& ends) {
  std::vector<int64_t> counts;
  for (const Row& row : rows) {
    counts.push_back(row.done ? 0 : std::min(chunk, static_cast<int64_t>(row.pending.size())));
  }
  const auto batch = static_cast<int64_t>(rows.size());
  const int64_t length = std::max<int64_t>(*std::max_element(counts.begin(), counts.end()), 1);
  Tensor tokens = Tensor::zeros({batch, length}, Dtype::i32);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy_n(rows[r].pending.begin(), counts[r],
                tokens.data<int32_t>() + static_cast<int64_t>(r) * length);
  }
  const Tensor features = model.features(tokens, {.state = &state, .counts = counts});
  const int64_t width = features.size(2);
  if (!ends.defined()) ends = Tensor::zeros({batch, width}, features.dtype());
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t count = counts[static_cast<size_t>(b)];
    if (count == 0) continue;
    ends.as_strided({width}, {1}, b * width)
        .copy_from(features.as_strided({width}, {1}, (b * length + count - 1) * width));
    std::vector<int32_t>& pending = rows[static_cast<size_t>(b)].pending;
    pending.erase(pending.begin(), pending.begin() + count);
  }
}

// Logits [B, V] behind the last pending token of every row.
Tensor step(const models::LanguageModel& model, std::vector<Row>& rows, nn::DecodeState& state) {
  const int64_t chunk = state.window > 0 ? state.room() : state.capacity;
  Tensor ends;
  do {
    read(model, rows, state, chunk, ends);
  } while (std::any_of(rows.begin(), rows.end(),
                       [](const Row& row) { return !row.done && !row.pending.empty(); }));
  return model.logits(ends).to(Dtype::f32);
}

}  // namespace

nn::DecodeStateOptions plan_generate(const models::LanguageModel& model, int64_t rows, int64_t longest_prompt,
                                     const GenerateOptions& options) {
  return model.state_options({.batch = rows,
                              .capacity = std::max<int64_t>(longest_prompt + options.max_new_tokens, 1),
                              .ring = model.config().window > 0,
                              .dtype = options.cache_dtype});
}

std::vector<std::vector<int32_t>> generate(const models::LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options) {
  check_arguments(model, prompts, options);
  if (prompts.empty()) return {};
  const NoTape silent;
  const int64_t context = model.longest();
  std::vector<Row> rows;
  int64_t longest = 1;
  for (const auto& prompt : prompts) {
    const bool fits = static_cast<int64_t>(prompt.size()) <= context;
    rows.push_back({prompt, fits ? prompt : window(prompt, context), {}, false});
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  const nn::DecodeStateOptions plan =
      plan_generate(model, static_cast<int64_t>(rows.size()), longest, options);
  const int64_t limit = plan.window > 0 ? context : plan.capacity;
  nn::DecodeState state = nn::make_decode_state(plan);
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    if (std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.done; })) break;
    slide(rows, state, limit);
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
