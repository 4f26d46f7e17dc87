// Jobs are requests to a model, whatever dialect they came in. Private to serve/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "multihead/core/text/json.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/generate/generate.h"
#include "multihead/serve/reply.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::serve {

struct Usage {
  int64_t prompt_tokens = 0, new_tokens = 0;
  int64_t total() const { return prompt_tokens + new_tokens; }
};

/// Hears how a generation goes on, in the thread that computes. A choice is a continuation of a prompt: those of
/// the first prompt come first.
class GenerationListener {
 public:
  struct Token {
    int32_t id;
    std::string_view text;          ///< what can be shown now: of this token, of ones before, or nothing
    const TokenLogprobs* logprobs;  ///< null unless asked for
  };
  virtual ~GenerationListener() = default;
  virtual void begin() {}
  /// The tokens of the choice's prompt, before its first token, where the job asks for them; the log-probabilities,
  /// if wanted, are those of all but the first.
  virtual void prompt(size_t, std::span<const int32_t>, std::span<const TokenLogprobs>) {}
  virtual void token(size_t choice, const Token& token) = 0;
  /// `rest`: text that was held back until here.
  virtual void end(size_t choice, std::string_view rest, bool is_full) = 0;
  virtual void finish(const Usage& usage) = 0;
};

using TokenIds = std::vector<int32_t>;

struct GenerationJob {
  std::shared_ptr<Reply> reply;
  std::function<std::vector<TokenIds>()> prompts;  ///< called once, in the thread that computes
  int64_t choices = 1;                             ///< of each prompt
  GenerateOptions options = {};                    ///< max_new_tokens < 0: what the context holds
  int64_t most_new_tokens = 0;                     ///< of what the context holds; 0: all
  int64_t context = 0;  ///< tokens of a prompt and its continuation; 0: the model's
  std::vector<std::string> stops = {};
  text::DecodeOptions decode = {};
  bool wants_logprobs = false;
  bool echoes = false;                                                ///< the listener hears the prompts
  std::function<Constraint(const text::Tokenizer&)> constraint = {};  ///< called as prompts is
  std::optional<Json> schema = {};  ///< that `constraint` is made of, if it is
  std::unique_ptr<GenerationListener> listener;
  std::shared_ptr<void> ticket = {};  ///< a place in the queue
};

struct EmbedJob {
  using Input = std::variant<std::string, TokenIds>;
  std::shared_ptr<Reply> reply;
  std::vector<Input> inputs;
  std::string member = "input";              ///< of the request, that they came in
  std::string task = {};                     ///< one of the encoder's tasks(), or "": none
  bool truncates = false;                    ///< long texts are cut, not refused
  int64_t dimensions = 0;                    ///< keeps so many columns; 0: all
  std::optional<bool> has_unit_length = {};  ///< none: if `dimensions` are given, else as the folder says
  /// Vectors [inputs, width], one after the other.
  std::function<void(std::span<const float> vectors, int64_t width, const Usage& usage)> finish;
  std::shared_ptr<void> ticket = {};
};

struct ScoreJob {
  std::shared_ptr<Reply> reply;
  std::vector<std::string> texts;  ///< or
  std::vector<embed::TextPair> pairs;
  std::string member = "inputs";  ///< of the request, that they came in
  bool truncates = false;
  /// Logits [inputs, labels].
  std::function<void(const Tensor& logits, const Usage& usage)> finish;
  std::shared_ptr<void> ticket = {};
};

}  // namespace multihead::serve
