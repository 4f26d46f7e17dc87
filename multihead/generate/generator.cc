#include "multihead/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/text/utf8.h"
#include "multihead/generate/prefix-inl.h"
#include "multihead/generate/repetition-inl.h"
#include "multihead/generate/token_rules.h"

namespace multihead {
namespace {

void check_prompt(const models::LanguageModel& model, const std::vector<int32_t>& prompt, int64_t sequence,
                  const GenerateOptions& options) {
  check(options.sampling);
  check_rules(options, model.config().vocab_size);
  MH_CHECK(options.top_logprobs >= 0, ValueError, "generate: top_logprobs must not be negative, got ",
           options.top_logprobs);
  MH_CHECK(!options.draft || options.draft_tokens >= 1, ValueError,
           "generate: draft_tokens must be at least 1, got ", options.draft_tokens);
  MH_CHECK(options.max_new_tokens >= 0, ValueError, "generate: max_new_tokens must be >= 0, got ",
           options.max_new_tokens);
  MH_CHECK(!prompt.empty(), ValueError, "generate: prompt ", sequence, " is empty; give at least one token");
  for (const int32_t token : prompt) {
    MH_CHECK(token >= 0 && token < model.config().vocab_size, ValueError, "generate: token ", token,
             " of prompt ", sequence, " is outside the vocabulary of ", model.config().vocab_size);
  }
  for (const auto& [token, bias] : options.logit_bias) {
    MH_CHECK(token >= 0 && token < model.config().vocab_size && std::isfinite(bias), ValueError,
             "generate: logit_bias must give tokens of the vocabulary of ", model.config().vocab_size,
             " finite numbers, got ", token, ": ", bias);
  }
  MH_CHECK(std::isfinite(options.frequency_penalty) && std::isfinite(options.presence_penalty), ValueError,
           "generate: frequency_penalty and presence_penalty must be numbers, got ",
           options.frequency_penalty, " and ", options.presence_penalty);
  check_length(model, std::ssize(prompt), options);
}

// The last half of the context, to be read again.
std::vector<int32_t> window(const std::vector<int32_t>& text, int64_t context) {
  const auto keep = std::min<size_t>(text.size(), static_cast<size_t>(std::max<int64_t>(context / 2, 1)));
  return {text.end() - static_cast<std::ptrdiff_t>(keep), text.end()};
}

// OpenAI's penalties come after that of repetition, as in vLLM and llama.cpp. Returns how to sample then.
SamplingOptions apply_penalties(const GenerateOptions& options, std::span<const int32_t> text,
                                std::span<const int32_t> fresh, std::span<float> scores) {
  SamplingOptions sampling = options.sampling;
  if (options.frequency_penalty == 0 && options.presence_penalty == 0) return sampling;
  check(sampling);
  detail::penalize(std::exchange(sampling.repetition_penalty, 1), text, scores);
  std::unordered_map<int32_t, int64_t> counts;
  for (const int32_t token : fresh) ++counts[token];
  for (const auto& [token, count] : counts) {
    const double penalty = options.frequency_penalty * static_cast<double>(count) + options.presence_penalty;
    float& score = scores[static_cast<size_t>(token)];
    score = static_cast<float>(score - penalty);
  }
  return sampling;
}

}  // namespace

Generator::Generator(const models::LanguageModel& model, const GeneratorOptions& options)
    : model_(model), options_(options) {
  MH_CHECK(options.max_batch >= 1, ValueError, "Generator: max_batch must be at least 1, got ",
           options.max_batch);
  MH_CHECK(options.capacity >= 0, ValueError, "Generator: capacity must not be negative, got ",
           options.capacity);
  MH_CHECK(options.cached_prompts >= 0, ValueError, "Generator: cached_prompts must not be negative, got ",
           options.cached_prompts);
  MH_CHECK(options.prompt_cache_bytes == 0 || options.cached_prompts > 0, ValueError,
           "Generator: prompt_cache_bytes bounds what cached_prompts holds, which is 0");
  MH_CHECK(options.prompt_chunk >= 0, ValueError, "Generator: prompt_chunk must not be negative, got ",
           options.prompt_chunk);
  const nn::DecodeStateOptions plan = model.state_options(
      {.capacity = options.capacity, .ring = model.has_ring(), .dtype = options.cache_dtype});
  limit_ = plan.window > 0 ? model.longest() : plan.capacity;
  carries_ = plan.carries();
  if (carries_) options_.cached_prompts = 0;
  if (!options.prefix_folder.empty()) {
    folder_.emplace(options.prefix_folder, model, uint64_t{1} << 30, options.on_problem);
    if (plan.window > 0 && options.on_problem)
      options.on_problem("prompts are not cached: each layer of this model keeps its window of keys alone");
  }
}

const Generator::Sequence& Generator::at(int64_t sequence) const {
  const auto found = sequences_.find(sequence);
  MH_CHECK(found != sequences_.end(), ValueError, "Generator: no such sequence: ", sequence);
  return found->second;
}

bool Generator::finished(int64_t sequence) const {
  const Lock lock(mutex_);
  return at(sequence).done;
}

std::string Generator::problem(int64_t sequence) const {
  const Lock lock(mutex_);
  return at(sequence).problem;
}

bool Generator::is_complete(int64_t sequence) const {
  const Lock lock(mutex_);
  return at(sequence).is_complete;
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
  MH_CHECK(fits || !options.on_prompt_logprobs, ValueError, "generate: prompt ", next_, " has ",
           prompt.size(), " tokens, more than the context of ", limit_,
           "; its log-probabilities need it whole");
  MH_CHECK(!options.draft || !carries_, ValueError,
           "generate: draft needs a model that can take back a token; attention ",
           quote(model_.config().attention), " carries tensors");
  Sequence sequence = {.options = options, .stream = stream, .text = std::move(prompt)};
  sequence.pending = fits ? sequence.text : window(sequence.text, limit_);
  sequence.done = options.max_new_tokens == 0 && !options.on_prompt_logprobs;
  if (options.constraint) sequence.constraint.emplace(*options.constraint);
  if (!sequence.done) queue_.push_back(next_);
  sequences_.emplace(next_, std::move(sequence));
  return next_++;
}

void Generator::cancel(int64_t sequence) {
  const Lock lock(mutex_);
  Sequence& ended = at(sequence);
  ended.done = true;
  ended.fresh.resize(static_cast<size_t>(ended.reported));  // nobody has seen the rest
  std::erase(queue_, sequence);
}

std::vector<int32_t> Generator::take(int64_t sequence) {
  const Lock lock(mutex_);
  MH_CHECK(finished(sequence), ValueError, "Generator: sequence ", sequence,
           " has not finished; cancel it to take its tokens so far");
  std::replace(rows_.begin(), rows_.end(), sequence, int64_t{-1});
  for (Reading& one : readings_) std::replace(one.rows.begin(), one.rows.end(), sequence, int64_t{-1});
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

// Sequences whose text is read from its beginning: those for which the context is full, which leave their
// rows, and those from the queue for which there are rows.
Generator::Rows Generator::take_unread() {
  Rows list;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] < 0) continue;
    Sequence& sequence = at(rows_[r]);
    if (state_.lengths[r] + static_cast<int64_t>(sequence.pending.size()) <= limit_) continue;
    sequence.pending = window(sequence.text, limit_);
    list.push_back(std::exchange(rows_[r], -1));
  }
  for (int64_t free = options_.max_batch - running() - reading() - static_cast<int64_t>(list.size());
       free > 0 && !queue_.empty(); --free) {
    list.push_back(queue_.front());
    queue_.pop_front();
  }
  return list;
}

// Copies the keys and values of the longest cached prefix. The last token is always read, for its logits.
void Generator::recall(nn::DecodeState& state, int64_t row, Sequence& sequence) {
  if (sequence.options.on_prompt_logprobs) return;  // what is recalled has no logits
  std::vector<int32_t>& pending = sequence.pending;
  int64_t longest = 0;
  auto best = prompts_.end();
  for (auto prompt = prompts_.begin(); prompt != prompts_.end(); ++prompt) {
    const int64_t length =
        std::min(common_prefix(prompt->tokens, pending), static_cast<int64_t>(pending.size()) - 1);
    if (length > longest) std::tie(longest, best) = std::pair(length, prompt);
  }
  if (const int64_t length = folder_ ? folder_->recall(pending, longest, state, row) : 0; length > 0) {
    longest = length;
  } else if (best != prompts_.end()) {
    state.put(row, best->state, 0, longest);
    std::rotate(prompts_.begin(), best, best + 1);
  }
  pending.erase(pending.begin(), pending.begin() + longest);
}

void Generator::remember(const nn::DecodeState& state, int64_t row, const std::vector<int32_t>& tokens) {
  if (state.window > 0) return;  // a ring drops the keys of its beginning
  if (folder_) folder_->remember(tokens, state, row);
  if (options_.cached_prompts == 0) return;
  std::erase_if(prompts_, [&](const Prompt& p) {
    return common_prefix(p.tokens, tokens) == std::ssize(p.tokens);  // this one says more
  });
  const auto length = static_cast<int64_t>(tokens.size());
  nn::DecodeState own = model_.make_state({.capacity = length, .dtype = options_.cache_dtype});
  own.put(0, state, row, length);
  prompts_.push_front({tokens, std::move(own)});
  size_t bytes = 0;
  for (const Prompt& prompt : prompts_) bytes += prompt.state.bytes();
  const size_t most = options_.prompt_cache_bytes == 0 ? bytes : options_.prompt_cache_bytes;
  for (; std::ssize(prompts_) > options_.cached_prompts || (bytes > most && !prompts_.empty());
       prompts_.pop_back()) {
    bytes -= prompts_.back().state.bytes();
  }
}

// Reads only the first of several prompts with a common prefix; the others return to the queue and find it
// cached.
void Generator::delay_followers(Rows& rows) {
  if (options_.cached_prompts == 0 || model_.has_ring()) return;
  const auto known = [&](const std::vector<int32_t>& text) {
    int64_t longest = 0;
    for (const Prompt& prompt : prompts_) longest = std::max(longest, common_prefix(prompt.tokens, text));
    return longest;
  };
  Rows now, later;
  for (const int64_t number : rows) {
    const std::vector<int32_t>& text = at(number).pending;
    const int64_t enough = known(text) + kLongPrefix;
    const bool follows =
        std::any_of(now.begin(), now.end(),
                    [&](int64_t other) { return common_prefix(at(other).pending, text) >= enough; }) ||
        std::any_of(readings_.begin(), readings_.end(), [&](const Reading& one) {
          return std::any_of(one.texts.begin(), one.texts.end(),
                             [&](const auto& other) { return common_prefix(other, text) >= enough; });
        });
    (follows ? later : now).push_back(number);
  }
  queue_.insert(queue_.begin(), later.begin(), later.end());
  rows = std::move(now);
}

// Appends draft tokens to the token that is pending anyway.
void Generator::draft() {
  if (state_.window > 0) return;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] < 0) continue;
    Sequence& sequence = at(rows_[r]);
    const GenerateOptions& options = sequence.options;
    sequence.pending.resize(sequence.pending.size() -
                            static_cast<size_t>(std::exchange(sequence.drafted, 0)));
    const int64_t most = std::min({options.draft_tokens, limit_ - state_.lengths[r] - 1,
                                   options.max_new_tokens - std::ssize(sequence.fresh) - 1});
    if (!options.draft || most <= 0) continue;
    std::vector<int32_t> drafted = options.draft(sequence.text, most);
    drafted.resize(static_cast<size_t>(std::min<int64_t>(most, std::ssize(drafted))));
    const auto wrong = std::find_if(drafted.begin(), drafted.end(), [&](int32_t token) {
      return token < 0 || token >= model_.config().vocab_size;
    });
    sequence.pending.insert(sequence.pending.end(), drafted.begin(), wrong);
    sequence.drafted = wrong - drafted.begin();
  }
}

// Reads the pending tokens of every row, as many at once as the state takes. Returns the features after the
// last one and each draft token, row after row.
Tensor Generator::read(const Rows& rows, nn::DecodeState& state) {
  const int64_t chunk = state.window > 0 ? state.room() : state.capacity;
  const auto batch = std::ssize(rows);
  std::vector<int64_t> first(rows.size() + 1, 0), counts(rows.size(), 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    first[r + 1] = first[r] + (rows[r] < 0 ? 0 : 1 + at(rows[r]).drafted);
  }
  Tensor ends;
  for (int64_t begin = 0, length = 1; length > 0; begin += chunk) {
    length = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const int64_t left = rows[r] < 0 ? 0 : std::ssize(at(rows[r]).pending) - begin;
      counts[r] = std::clamp<int64_t>(left, 0, chunk);
      length = std::max(length, counts[r]);
    }
    if (length == 0) break;
    Tensor tokens = Tensor::zeros({batch, length}, Dtype::i32);
    for (size_t r = 0; r < rows.size(); ++r) {
      if (counts[r] == 0) continue;
      std::copy_n(at(rows[r]).pending.begin() + begin, counts[r],
                  tokens.data<int32_t>() + static_cast<int64_t>(r) * length);
    }
    const std::vector<int64_t> places(state.lengths.begin(), state.lengths.end());
    const Tensor features = model_.features(tokens, {.state = &state, .counts = counts});
    const int64_t width = features.size(2);
    if (!ends.defined()) ends = Tensor::zeros({first.back(), width}, features.dtype());
    for (size_t r = 0; r < rows.size(); ++r) {
      const bool is_scored =
          counts[r] > 0 && at(rows[r]).options.on_prompt_logprobs && at(rows[r]).fresh.empty();
      if (is_scored) {
        const auto row =
            features.as_strided({counts[r], width}, {width, 1}, static_cast<int64_t>(r) * length * width);
        try {
          score_prompt(at(rows[r]), row, places[r]);
        } catch (const ValueError& error) {
          fail(at(rows[r]), error);
        }
      }
      const int64_t wanted = first[r + 1] - first[r];
      if (counts[r] < wanted) continue;  // a chunk that ends before the last token is overwritten by the next
      ends.as_strided({wanted, width}, {width, 1}, first[r] * width)
          .copy_from(features.as_strided({wanted, width}, {width, 1},
                                         (static_cast<int64_t>(r) * length + counts[r] - wanted) * width));
    }
  }
  return ends;
}

// Ends this sequence alone; the others of the step go on.
void Generator::fail(Sequence& sequence, const ValueError& error) {
  sequence.problem = error.what();
  sequence.done = true;
}

// Throws ValueError where the options leave no token, or the model's output is not finite.
int32_t Generator::choose(Sequence& sequence, std::span<float> scores) const {
  const GenerateOptions& options = sequence.options;
  for (const auto& [token, bias] : options.logit_bias) scores[static_cast<size_t>(token)] += bias;
  const SamplingOptions sampling = apply_penalties(options, sequence.text, sequence.fresh, scores);
  apply_rules(options, sequence.text, std::ssize(sequence.fresh), scores);
  const double uniform = RandomStream{options.seed, sequence.stream}.uniform(sequence.fresh.size());
  if (sequence.constraint) sequence.constraint->apply(options.stop_tokens, scores);
  return sample(scores, sequence.text, sampling, uniform);
}

// Adds the next token, or ends the sequence. Throws as choose().
void Generator::append(Sequence& sequence, std::span<float> scores) const {
  const GenerateOptions& options = sequence.options;
  std::vector<float> own;  // the model's, which the rules change
  if (options.on_logprobs) own.assign(scores.begin(), scores.end());
  const int32_t token = choose(sequence, scores);
  sequence.done = std::ranges::find(options.stop_tokens, token) != options.stop_tokens.end();
  if (sequence.done) return;
  if (options.on_logprobs) sequence.logprobs.push_back(token_logprobs(own, token, options.top_logprobs));
  sequence.text.push_back(token);
  sequence.fresh.push_back(token);
  if (sequence.constraint) sequence.constraint->advance(token);
  sequence.is_complete = sequence.constraint && sequence.constraint->is_complete();
  sequence.done = sequence.is_complete || std::ssize(sequence.fresh) >= options.max_new_tokens;
}

// Samples after the last token and after each draft token that was right. Returns the number of those.
int64_t Generator::extend(Sequence& sequence, float* logits, std::span<const int32_t> drafted) const {
  const auto vocabulary = static_cast<size_t>(model_.config().vocab_size);
  for (int64_t right = 0;; ++right) {
    try {
      append(sequence, {logits + static_cast<size_t>(right) * vocabulary, vocabulary});
    } catch (const ValueError& error) {
      fail(sequence, error);
    }
    const bool is_right = !sequence.done && right < std::ssize(drafted) &&
                          drafted[static_cast<size_t>(right)] == sequence.text.back();
    if (!is_right) return right;
  }
}

// Reads what is pending and adds the next tokens of every row.
void Generator::advance(const Rows& rows, nn::DecodeState& state) {
  const Tensor logits = model_.logits(read(rows, state)).to(Dtype::f32);
  float* next = logits.data<float>();
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] < 0) continue;
    Sequence& sequence = at(rows[r]);
    if (sequence.options.max_new_tokens == 0)
      sequence.done = true;  // only the prompt's log-probabilities are wanted
    if (sequence.done) {
      next += logits.size(1);
      continue;
    }
    const int64_t drafted = std::exchange(sequence.drafted, 0);
    const int64_t right =
        extend(sequence, next, std::span(sequence.pending).last(static_cast<size_t>(drafted)));
    next += (1 + drafted) * logits.size(1);
    if (right < drafted) state.truncate(static_cast<int64_t>(r), state.lengths[r] - (drafted - right));
    sequence.pending = {sequence.text.back()};
  }
}

// The next tokens of every running sequence, the new ones included. False if there is none.
bool Generator::compute() {
  const NoTape silent;
  drop_ended();
  shrink();
  Rows fresh = take_unread();
  delay_followers(fresh);
  if (running() == 0 && fresh.empty() && readings_.empty()) return false;
  if (running() > 0) draft(), grow(), advance(rows_, state_);
  begin_reading(fresh);
  read_chunk();
  return true;
}

// Tells the owner of a sequence of its new tokens; who may also end it or take it away.
void Generator::report(int64_t number) {
  while (sequences_.contains(number)) {
    Sequence& sequence = at(number);
    if (sequence.reported_prompt < std::ssize(sequence.prompt_logprobs)) {
      const auto on_prompt = sequence.options.on_prompt_logprobs;
      on_prompt(number,
                TokenLogprobs(sequence.prompt_logprobs[static_cast<size_t>(sequence.reported_prompt++)]));
      continue;
    }
    if (sequence.reported == std::ssize(sequence.fresh)) return;
    const auto place = static_cast<size_t>(sequence.reported++);
    const int32_t token = sequence.fresh[place];
    const auto on_token = sequence.options.on_token;
    if (const auto on_logprobs = sequence.options.on_logprobs) {
      on_logprobs(number, TokenLogprobs(sequence.logprobs[place]));
      if (!sequences_.contains(number)) return;  // it may have been taken away meanwhile
    }
    const bool more = !on_token || on_token(number, token);
    if (!more && sequences_.contains(number)) cancel(number);
  }
}

bool Generator::step() {
  const Lock lock(mutex_);
  MH_CHECK(!stepping_, ValueError, "Generator: on_token must not call step()");
  const bool any = compute();
  std::vector<int64_t> numbers;
  for (const auto& [number, sequence] : sequences_) {
    if (sequence.reported < std::ssize(sequence.fresh) ||
        sequence.reported_prompt < std::ssize(sequence.prompt_logprobs))
      numbers.push_back(number);
  }
  struct Stepping {
    explicit Stepping(bool& flag) : on(flag) { on = true; }
    ~Stepping() { on = false; }
    bool& on;
  } const stepping(stepping_);
  for (const int64_t number : numbers) report(number);
  return any;
}

}  // namespace multihead
