#include "multihead/generate/generator.h"

#include <algorithm>
#include <tuple>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/rng.h"

namespace multihead {
namespace {

void check_prompt(const models::LanguageModel& model, const std::vector<int32_t>& prompt, int64_t sequence,
                  const GenerateOptions& options) {
  check(options.sampling);
  MH_CHECK(options.max_new_tokens >= 0, ValueError, "generate: max_new_tokens must be >= 0, got ",
           options.max_new_tokens);
  MH_CHECK(!prompt.empty(), ValueError, "generate: prompt ", sequence, " is empty; give at least one token");
  for (const int32_t token : prompt) {
    MH_CHECK(token >= 0 && token < model.config().vocab_size, ValueError, "generate: token ", token,
             " of prompt ", sequence, " is outside the vocabulary of ", model.config().vocab_size);
  }
  const int64_t total = static_cast<int64_t>(prompt.size()) + options.max_new_tokens;
  MH_CHECK(options.overflow == Overflow::slide || total - 1 <= model.longest(), ValueError,
           "generate: prompt ", sequence, " and ", options.max_new_tokens, " new tokens need a context of ",
           total - 1, ", the model has ", model.config().context);
}

// The last half of the context, to be read again.
std::vector<int32_t> window(const std::vector<int32_t>& text, int64_t context) {
  const auto keep = std::min<size_t>(text.size(), static_cast<size_t>(std::max<int64_t>(context / 2, 1)));
  return {text.end() - static_cast<std::ptrdiff_t>(keep), text.end()};
}

int64_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

Generator::Generator(const models::LanguageModel& model, const GeneratorOptions& options)
    : model_(model), options_(options) {
  MH_CHECK(options.rows >= 1, ValueError, "Generator: rows must be at least 1, got ", options.rows);
  MH_CHECK(options.capacity >= 0, ValueError, "Generator: capacity must not be negative, got ",
           options.capacity);
  MH_CHECK(options.remembered >= 0, ValueError, "Generator: remembered must not be negative, got ",
           options.remembered);
  const nn::DecodeStateOptions plan = model.state_options(
      {.capacity = options.capacity, .ring = model.config().window > 0, .dtype = options.cache_dtype});
  limit_ = plan.window > 0 ? model.longest() : plan.capacity;
}

const Generator::Sequence& Generator::at(int64_t sequence) const {
  const auto found = sequences_.find(sequence);
  MH_CHECK(found != sequences_.end(), ValueError, "Generator: there is no sequence ", sequence);
  return found->second;
}

bool Generator::finished(int64_t sequence) const {
  const Lock lock(mutex_);
  return at(sequence).done;
}

std::vector<int32_t> Generator::tokens(int64_t sequence) const {
  const Lock lock(mutex_);
  return at(sequence).fresh;
}

int64_t Generator::submit(std::vector<int32_t> prompt, const GenerateOptions& options, uint64_t stream) {
  const Lock lock(mutex_);
  check_prompt(model_, prompt, next_, options);
  MH_CHECK(!options.cache_dtype || options.cache_dtype == options_.cache_dtype, ValueError,
           "Generator: cache_dtype is an option of the generator, not of a sequence");
  const bool fits = static_cast<int64_t>(prompt.size()) <= limit_;
  Sequence sequence = {.options = options, .stream = stream, .text = std::move(prompt)};
  sequence.pending = fits ? sequence.text : window(sequence.text, limit_);
  sequence.done = options.max_new_tokens == 0;
  if (!sequence.done) queue_.push_back(next_);
  sequences_.emplace(next_, std::move(sequence));
  return next_++;
}

void Generator::cancel(int64_t sequence) {
  const Lock lock(mutex_);
  at(sequence).done = true;
  std::erase(queue_, sequence);
}

std::vector<int32_t> Generator::take(int64_t sequence) {
  const Lock lock(mutex_);
  MH_CHECK(finished(sequence), ValueError, "Generator: sequence ", sequence,
           " has not ended; cancel it to take what there is");
  std::replace(rows_.begin(), rows_.end(), sequence, int64_t{-1});
  return std::move(sequences_.extract(sequence).mapped().fresh);
}

int64_t Generator::waiting() const {
  const Lock lock(mutex_);
  return std::ssize(queue_);
}

int64_t Generator::running() const {
  const Lock lock(mutex_);
  return std::count_if(rows_.begin(), rows_.end(),
                       [&](int64_t sequence) { return sequence >= 0 && !finished(sequence); });
}

size_t Generator::bytes() const {
  const Lock lock(mutex_);
  size_t total = state_.bytes();
  for (const Prompt& prompt : prompts_) total += prompt.state.bytes();
  return total;
}

nn::DecodeState Generator::make_state(int64_t rows) const {
  return model_.make_state({.batch = rows,
                            .capacity = options_.capacity,
                            .ring = model_.config().window > 0,
                            .dtype = options_.cache_dtype});
}

void Generator::drop_ended() {
  for (int64_t& sequence : rows_) {
    if (sequence >= 0 && finished(sequence)) sequence = -1;
  }
}

// Half of the rows free: the rest is computed without them.
void Generator::shrink() {
  const auto left = running(), batch = static_cast<int64_t>(rows_.size());
  if (left <= batch / 2 && batch > 0) resize(left);
}

// A state of `rows` rows with the running sequences in front.
void Generator::resize(int64_t rows) {
  if (rows == 0) {
    state_ = {}, rows_ = {};
    return;
  }
  nn::DecodeState state = make_state(rows);
  Rows kept;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] < 0) continue;
    state.put(static_cast<int64_t>(kept.size()), state_, static_cast<int64_t>(r), state_.lengths[r]);
    kept.push_back(rows_[r]);
  }
  kept.resize(static_cast<size_t>(rows), -1);
  state_ = std::move(state), rows_ = std::move(kept);
}

// Sequences whose text is read from its beginning: those for which the context is full, which leave their
// rows, and those from the queue for which there are rows.
Generator::Rows Generator::newcomers() {
  Rows list;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] < 0) continue;
    Sequence& sequence = at(rows_[r]);
    if (state_.lengths[r] + static_cast<int64_t>(sequence.pending.size()) <= limit_) continue;
    sequence.pending = window(sequence.text, limit_);
    list.push_back(std::exchange(rows_[r], -1));
  }
  for (int64_t free = options_.rows - running() - static_cast<int64_t>(list.size());
       free > 0 && !queue_.empty(); --free) {
    list.push_back(queue_.front());
    queue_.pop_front();
  }
  return list;
}

// What a remembered prompt has of this one need not be read; the last token is read for its logits.
void Generator::recall(nn::DecodeState& state, int64_t row, Sequence& sequence) {
  std::vector<int32_t>& pending = sequence.pending;
  int64_t longest = 0;
  const Prompt* best = nullptr;
  for (const Prompt& prompt : prompts_) {
    const int64_t length =
        std::min(common_prefix(prompt.tokens, pending), static_cast<int64_t>(pending.size()) - 1);
    if (length > longest) std::tie(longest, best) = std::pair(length, &prompt);
  }
  if (best == nullptr) return;
  state.put(row, best->state, 0, longest);
  pending.erase(pending.begin(), pending.begin() + longest);
}

void Generator::remember(const nn::DecodeState& state, int64_t row, const std::vector<int32_t>& tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (options_.remembered == 0 || state.window > 0) return;  // a ring drops the keys of its beginning
  std::erase_if(prompts_, [&](const Prompt& p) {
    return common_prefix(p.tokens, tokens) == std::ssize(p.tokens);  // this one says more
  });
  nn::DecodeState own = model_.make_state({.capacity = length, .dtype = options_.cache_dtype});
  own.put(0, state, row, length);
  prompts_.push_front({tokens, std::move(own)});
  if (std::ssize(prompts_) > options_.remembered) prompts_.pop_back();
}

// Reads the pending tokens of every row, as many at once as the state takes. The features behind the last
// ones go to `ends` [B, E].
void Generator::read(const Rows& rows, nn::DecodeState& state, Tensor& ends) {
  const int64_t chunk = state.window > 0 ? state.room() : state.capacity;
  std::vector<int64_t> counts;
  for (const int64_t row : rows) {
    counts.push_back(row < 0 ? 0 : std::min(chunk, std::ssize(at(row).pending)));
  }
  const auto batch = static_cast<int64_t>(rows.size());
  const int64_t length = std::max<int64_t>(*std::max_element(counts.begin(), counts.end()), 1);
  Tensor tokens = Tensor::zeros({batch, length}, Dtype::i32);
  for (int64_t r = 0; r < batch; ++r) {
    const int64_t count = counts[static_cast<size_t>(r)];
    if (count > 0) {
      std::copy_n(at(rows[static_cast<size_t>(r)]).pending.begin(), count,
                  tokens.data<int32_t>() + r * length);
    }
  }
  const Tensor features = model_.features(tokens, {.state = &state, .counts = counts});
  const int64_t width = features.size(2);
  if (!ends.defined()) ends = Tensor::zeros({batch, width}, features.dtype());
  for (int64_t r = 0; r < batch; ++r) {
    const int64_t count = counts[static_cast<size_t>(r)];
    if (count == 0) continue;
    ends.as_strided({width}, {1}, r * width)
        .copy_from(features.as_strided({width}, {1}, (r * length + count - 1) * width));
    std::vector<int32_t>& pending = at(rows[static_cast<size_t>(r)]).pending;
    pending.erase(pending.begin(), pending.begin() + count);
  }
}

// Reads what is pending and samples the next token of every row.
void Generator::advance(const Rows& rows, nn::DecodeState& state) {
  Tensor ends;
  const auto is_behind = [&](int64_t row) { return row >= 0 && !at(row).pending.empty(); };
  while (std::any_of(rows.begin(), rows.end(), is_behind)) read(rows, state, ends);
  const Tensor logits = model_.logits(ends).to(Dtype::f32);
  const auto vocabulary = static_cast<size_t>(logits.size(1));
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] < 0) continue;
    Sequence& sequence = at(rows[r]);
    const GenerateOptions& options = sequence.options;
    const double uniform = RandomStream{options.seed, sequence.stream}.uniform(sequence.fresh.size());
    const int32_t token =
        sample({logits.data<float>() + r * vocabulary, vocabulary}, sequence.text, options.sampling, uniform);
    const auto& stops = options.stop_tokens;
    sequence.done = std::find(stops.begin(), stops.end(), token) != stops.end();
    if (sequence.done) continue;
    sequence.pending = {token};
    sequence.text.push_back(token);
    sequence.fresh.push_back(token);
  }
}

// The rows of `state` move into free rows of ours.
void Generator::join(const Rows& rows, nn::DecodeState& state) {
  drop_ended();
  if (running() == 0) {
    state_ = std::move(state), rows_ = rows;
    return;
  }
  const int64_t needed = running() + static_cast<int64_t>(rows.size());
  if (needed > static_cast<int64_t>(rows_.size())) {
    resize(std::min(std::max(needed, 2 * static_cast<int64_t>(rows_.size())), options_.rows));
  }
  size_t free = 0;
  for (size_t r = 0; r < rows.size(); ++r, ++free) {
    while (rows_[free] >= 0) ++free;
    rows_[free] = rows[r];
    state_.put(static_cast<int64_t>(free), state, static_cast<int64_t>(r), state.lengths[r]);
  }
}

// One token for every running sequence, the newcomers included; returns their numbers in order.
std::vector<int64_t> Generator::compute() {
  const NoTape silent;
  drop_ended();
  shrink();
  const Rows fresh = newcomers();
  std::vector<int64_t> numbers;
  for (const Rows* rows : {&std::as_const(rows_), &fresh}) {
    std::copy_if(rows->begin(), rows->end(), std::back_inserter(numbers), [](int64_t s) { return s >= 0; });
  }
  std::sort(numbers.begin(), numbers.end());
  if (running() > 0) advance(rows_, state_);
  if (fresh.empty()) return numbers;
  nn::DecodeState state = make_state(std::ssize(fresh));
  std::vector<std::vector<int32_t>> texts;
  for (int64_t r = 0; r < std::ssize(fresh); ++r) {
    Sequence& sequence = at(fresh[static_cast<size_t>(r)]);
    texts.push_back(sequence.pending);
    recall(state, r, sequence);
  }
  advance(fresh, state);
  for (int64_t r = 0; r < std::ssize(fresh); ++r) remember(state, r, texts[static_cast<size_t>(r)]);
  join(fresh, state);
  return numbers;
}

// Tells the sequence's owner, who may also take it away.
void Generator::report(int64_t number) {
  const auto found = sequences_.find(number);
  if (found == sequences_.end() || found->second.done) return;
  Sequence& sequence = found->second;
  sequence.done = std::ssize(sequence.fresh) >= sequence.options.max_new_tokens;
  const auto on_token = sequence.options.on_token;
  if (!on_token || on_token(number, sequence.fresh.back())) return;
  if (sequences_.contains(number)) cancel(number);
}

bool Generator::step() {
  const Lock lock(mutex_);
  MH_CHECK(!stepping_, ValueError, "Generator: on_token must not call step()");
  const std::vector<int64_t> numbers = compute();
  struct Stepping {
    explicit Stepping(bool& flag) : on(flag) { on = true; }
    ~Stepping() { on = false; }
    bool& on;
  } const stepping(stepping_);
  for (const int64_t number : numbers) report(number);
  return !numbers.empty();
}

}  // namespace multihead
