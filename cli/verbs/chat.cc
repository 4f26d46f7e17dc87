#include "cli/verbs/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <optional>

#include "cli/streams.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/prefix_folder.h"
#include "multihead/generate/text_stream.h"
#include "multihead/generate/token_rules.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

class Conversation {
 public:
  Conversation(const LoadedModel& loaded, const ChatOptions& options)
      : model_(loaded.model),
        tokenizer_(loaded.tokenizer),
        options_(options),
        stops_(options.generate.stop_tokens),
        state_(model_.make_state({.ring = model_.has_ring(), .dtype = options.generate.cache_dtype})) {
    for (const int32_t end : turn_ends(tokenizer_)) stops_.push_back(end);
    if (!options.system.empty()) messages_.push_back({"system", options.system});
    if (!options.prefix_folder.empty()) {
      folder_.emplace(options.prefix_folder, model_, uint64_t{1} << 30,
                      [this](const std::string& problem) { note(problem); });
    }
  }

  // Returns the signal that asks the program to end, or 0: an interrupt ends the answer only.
  int answer(const std::string& message) {
    messages_.push_back({"user", message});
    const std::vector<int32_t> prompt = fitting_prompt();
    if (prompt.empty()) return messages_.pop_back(), 0;
    const train::StopSignals signals;
    TextStream stream(put_output, tokenizer_, {.skip_special = true}, options_.stops);
    GenerateOptions rules = options_.generate;
    rules.stop_tokens = stops_;
    if (!options_.limited) rules.max_new_tokens = std::numeric_limits<int64_t>::max();
    check_rules(rules, model_.config().vocab_size);
    std::optional<ConstraintState> constraint;
    if (rules.constraint) constraint.emplace(rules.constraint->at_beginning());
    Tensor logits = read(prompt);
    for (int64_t i = 0; !options_.limited || i < options_.generate.max_new_tokens; ++i) {
      if (train::StopSignals::received() != 0) break;
      const std::span<float> scores(logits.data<float>(), static_cast<size_t>(logits.numel()));
      apply_rules(rules, held_, i, scores);
      if (constraint) constraint->apply(stops_, scores);
      const int32_t token = next(logits);
      if (std::find(stops_.begin(), stops_.end(), token) != stops_.end()) break;
      if (constraint) constraint->advance(token);
      if (!stream.write(token) || (constraint && constraint->is_complete())) break;
      if (std::ssize(held_) >= limit()) {
        stream.finish();
        put_output("\n");
        note(concat("the context of ", limit(), " tokens is full: the answer ends here"));
        break;
      }
      logits = feed({token});
    }
    stream.finish();
    put_output("\n");
    messages_.push_back({"assistant", valid_utf8(stream.text())});  // as it was shown
    return train::StopSignals::received() == SIGTERM ? SIGTERM : 0;
  }

 private:
  void note(const std::string& text) const {
    if (!options_.quiet) std::fputs(("note: " + text + "\n").c_str(), stderr);
  }

  std::string prompt_text() const {
    Json list = Json::array();
    for (const text::ChatMessage& m : messages_)
      list.push_back(Json::object({{"role", m.role}, {"content", m.content}}));
    return tokenizer_.apply_chat_template(list, true, options_.template_variables);
  }

  int64_t limit() const { return model_.longest(); }

  // The conversation up to where the answer begins. The oldest turns go where it is too long; empty if the
  // last message alone is.
  std::vector<int32_t> fitting_prompt() {
    bool told = false;
    while (true) {
      std::vector<int32_t> ids =
          tokenizer_.encode(prompt_text(), {.parse_special = true, .add_template = false});
      const int64_t size = std::ssize(ids);
      MH_CHECK(size > 0, ValueError, options_.folder, ": the chat template gives an empty prompt");
      if (size < limit()) return ids;
      const size_t first = options_.system.empty() ? 0 : 1;
      if (messages_.size() < first + 3) {
        const std::string why = concat("with it the prompt has ", size, " tokens, the context ", limit());
        MH_CHECK(options_.message.empty(), ValueError, "the message is too long: ", why,
                 "; shorten --prompt");
        note("the message is skipped: " + why);
        return {};
      }
      if (!told) note(concat("the context of ", limit(), " tokens is full: dropping the oldest turns"));
      told = true;
      const auto oldest = messages_.begin() + static_cast<std::ptrdiff_t>(first);
      messages_.erase(oldest, oldest + 2);
    }
  }

  // Reads the part of the prompt that the state does not hold yet.
  Tensor read(const std::vector<int32_t>& prompt) {
    const auto differ = std::mismatch(held_.begin(), held_.end(), prompt.begin(), prompt.end() - 1);
    const auto same = differ.first - held_.begin();
    if (same < std::ssize(held_)) forget(static_cast<size_t>(same));
    if (folder_) recall(prompt);
    Tensor logits;
    for (auto at = prompt.begin() + std::ssize(held_); at != prompt.end();) {
      constexpr std::ptrdiff_t kChunk = 256;  // what a ring takes at once
      const auto end = at + std::min(kChunk, prompt.end() - at);
      logits = feed({at, end});
      at = end;
    }
    if (folder_) folder_->remember(prompt, state_, 0);
    return logits;
  }

  // Takes over an earlier conversation's state if it shares a longer beginning with the prompt.
  void recall(const std::vector<int32_t>& prompt) {
    const int64_t length = folder_->recall(prompt, std::ssize(held_), state_, 0);
    if (length > 0) held_.assign(prompt.begin(), prompt.begin() + length);
  }

  void forget(size_t from) {
    try {
      state_.truncate(static_cast<int64_t>(from));
    } catch (const ValueError&) {  // a ring has dropped what the rest would see
      state_.clear(0);
      from = 0;
    }
    held_.resize(from);
  }

  // Logits [V] behind the tokens.
  Tensor feed(const std::vector<int32_t>& tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    Tensor input = Tensor::zeros({1, count}, Dtype::i32);
    std::copy(tokens.begin(), tokens.end(), input.data<int32_t>());
    const Tensor features = model_.features(input, {.state = &state_});
    held_.insert(held_.end(), tokens.begin(), tokens.end());
    const int64_t width = features.size(2);
    return model_.logits(features.as_strided({1, width}, {width, 1}, (count - 1) * width).contiguous())
        .to(Dtype::f32);
  }

  int32_t next(const Tensor& logits) {
    const double uniform = RandomStream{options_.generate.seed, 0}.uniform(drawn_++);
    const auto words = static_cast<size_t>(logits.numel());
    return sample({logits.data<float>(), words}, held_, options_.generate.sampling, uniform);
  }

  const NoTape silent_;
  const models::LanguageModel& model_;
  const text::Tokenizer& tokenizer_;
  const ChatOptions& options_;
  std::vector<int32_t> stops_;
  nn::DecodeState state_;
  std::optional<PrefixFolder> folder_;
  std::vector<int32_t> held_;  // the tokens in the state
  std::vector<text::ChatMessage> messages_;
  uint64_t drawn_ = 0;
};

}  // namespace

int chat(const LoadedModel& loaded, const ChatOptions& options) {
  if (loaded.tokenizer.chat_template().empty()) {
    throw InputError(concat(options.folder, ": has no chat template, which --chat needs"));
  }
  Conversation conversation(loaded, options);
  if (!options.message.empty()) {
    const int signal = conversation.answer(options.message);
    return signal != 0 ? 128 + signal : kDone;
  }
  const bool terminal = isatty(STDIN_FILENO) == 1;
  std::string line;
  while (true) {
    if (terminal) put_output("> ");
    if (!read_line(line)) break;
    if (line.empty()) continue;
    if (const int signal = conversation.answer(line); signal != 0) return 128 + signal;
  }
  if (terminal) put_output("\n");
  return kDone;
}

}  // namespace multihead::cli
