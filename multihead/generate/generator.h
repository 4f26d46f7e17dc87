// Many sequences decoded together, each as if it were alone.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/generate/generate.h"
#include "multihead/generate/prefix_folder.h"
#include "multihead/models/language_model.h"

namespace multihead {

struct GeneratorOptions {
  int64_t max_batch = 8;                  ///< sequences decoded at the same time; more wait
  int64_t capacity = 0;                   ///< tokens that a sequence may hold; 0: the model's context
  std::optional<Dtype> cache_dtype = {};  ///< of keys and values: the model's, bf16, or nn::kInt8Cache
  /// Number of prompts whose keys and values are kept: prompts with a common prefix compute it only once.
  /// A prompt that shares some tens of tokens with another one joining in the same step waits for it.
  int64_t cached_prompts = 0;
  /// Tokens of prompts that a step reads, so that long ones do not delay the others' next tokens; 0: all. The bits are
  /// the same.
  int64_t prompt_chunk = 512;
  /// Bounds the memory of their keys and values; 0: no limit. The least recently used go first.
  size_t prompt_cache_bytes = 0;
  /// If not empty: prompts are kept and looked for in this folder too (prefix_folder.h), whatever
  /// `cached_prompts` says.
  std::string prefix_folder = {};
  /// Hears why prefix_folder is not used, if it cannot be read or written, or if every layer has a window, whose state
  /// drops the keys of a prompt's beginning; generation goes on.
  std::function<void(const std::string& message)> on_problem = {};
};

/// Sequences join and leave between steps: submit(), then step() until it returns false.
///
/// Bits: the tokens of a sequence are those of generate() with its prompt alone, whatever else is submitted,
/// cancelled or cached. Prompts are read a chunk a step, those that wait in turn.
/// Memory: keys and values of the running sequences (the rows grow and shrink by halves) and of the
/// cached prompts. Threads: calls wait for each other; on_token may submit, cancel and take.
class Generator {
 public:
  /// The model's weights are shared. Throws ValueError (max_batch, capacity, cached_prompts, prompt_chunk).
  explicit Generator(const models::LanguageModel& model, const GeneratorOptions& options = {});

  /// Queues a prompt; returns the sequence's number, counted from 0, which options.on_token is given as its
  /// row. `stream` picks random numbers of options.seed: row r of generate() draws those of stream r.
  /// Throws ValueError as generate() does, and for a cache_dtype, which is the generator's.
  int64_t submit(std::vector<int32_t> prompt, const GenerateOptions& options = {}, uint64_t stream = 0);
  /// Admits waiting sequences and adds a token, plus the draft tokens that are right, to every running one. False if
  /// none is left. An exception from on_token is rethrown after all tokens of the step are stored.
  bool step();
  /// Ends a sequence; the tokens that on_token was given stay. Throws ValueError (no such sequence).
  void cancel(int64_t sequence);

  bool finished(int64_t sequence) const;
  /// Why a sequence ended that was left no token, by its options or by an output that is not finite; empty: it was
  /// not.
  std::string problem(int64_t sequence) const;
  /// Whether a sequence's constraint lets nothing follow its text.
  bool is_complete(int64_t sequence) const;
  /// The new tokens so far.
  std::vector<int32_t> tokens(int64_t sequence) const;
  /// The new tokens of a sequence that has ended; the generator forgets it. Throws ValueError.
  std::vector<int32_t> take(int64_t sequence);

  int64_t running() const;
  int64_t waiting() const;
  /// Memory of keys and values, those of cached prompts included.
  size_t bytes() const;

 private:
  struct Sequence {
    GenerateOptions options;
    uint64_t stream = 0;
    std::vector<int32_t> text;     // prompt and new tokens
    std::vector<int32_t> pending;  // not yet read by the model
    int64_t drafted = 0;           // how many of them, the last ones, are draft tokens
    std::vector<int32_t> fresh;
    std::vector<TokenLogprobs> logprobs;  // of fresh, for on_logprobs
    int64_t reported = 0;                 // of fresh, to on_token
    std::vector<TokenLogprobs> prompt_logprobs;
    int64_t reported_prompt = 0;
    std::optional<ConstraintState> constraint;
    std::string problem;
    bool is_complete = false;  // what the constraint asked for is written
    bool done = false;
  };
  // Prompts on their way in: one that is longer than a chunk, or several that are read at once.
  struct Reading {
    std::vector<int64_t> rows;
    nn::DecodeState state;
    std::vector<std::vector<int32_t>> texts;
  };
  struct Prompt {
    std::vector<int32_t> tokens;
    nn::DecodeState state;
  };
  using Rows = std::vector<int64_t>;  // the sequence in each row of a state, or -1

  const Sequence& at(int64_t sequence) const;
  Sequence& at(int64_t sequence) { return const_cast<Sequence&>(std::as_const(*this).at(sequence)); }
  bool compute();
  void report(int64_t number);
  nn::DecodeState make_state(const Rows& rows, int64_t least = 0) const;
  int64_t capacity_for(const Rows& rows) const;
  void drop_ended();
  void shrink();
  void grow();
  Rows take_unread();
  void recall(nn::DecodeState& state, int64_t row, Sequence& sequence);
  void remember(const nn::DecodeState& state, int64_t row, const std::vector<int32_t>& tokens);
  void draft();
  Tensor read(const Rows& rows, nn::DecodeState& state);
  void score_prompt(Sequence& sequence, const Tensor& features, int64_t begin) const;
  void begin_reading(const Rows& rows);
  void read_chunk();
  int64_t reading() const;
  void advance(const Rows& rows, nn::DecodeState& state);
  void delay_followers(Rows& rows);
  int64_t extend(Sequence& sequence, float* logits, std::span<const int32_t> drafted) const;
  static void fail(Sequence& sequence, const ValueError& error);
  void append(Sequence& sequence, std::span<float> scores) const;
  int32_t choose(Sequence& sequence, std::span<float> scores) const;
  void join(const Rows& rows, nn::DecodeState& state);
  void resize(int64_t rows, int64_t least = 0);

  using Lock = std::lock_guard<std::recursive_mutex>;

  mutable std::recursive_mutex mutex_;  // on_token calls back
  bool stepping_ = false;
  models::LanguageModel model_;
  GeneratorOptions options_;
  bool carries_ = false;  // an own attention's tensors, which cannot go back
  int64_t limit_ = 0;     // tokens that a row holds before it slides
  std::map<int64_t, Sequence> sequences_;
  std::deque<int64_t> queue_;
  int64_t next_ = 0;
  Rows rows_;
  nn::DecodeState state_;
  std::deque<Reading> readings_;  // the next one to be read in front
  std::deque<Prompt> prompts_;    // the last used in front
  std::optional<PrefixFolder> folder_;
};

/// generate() by such a generator, whose max_batch, capacity and cache_dtype are chosen as there. Prompts
/// with a common prefix are cached.
std::vector<std::vector<int32_t>> generate(const models::LanguageModel& model,
                                           const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options, GeneratorOptions generator);

}  // namespace multihead
