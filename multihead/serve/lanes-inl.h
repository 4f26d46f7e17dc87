// Each model's work, in steps that are short enough to let others have theirs. Private to serve/.
#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/generate/generator.h"
#include "multihead/generate/text_stream.h"
#include "multihead/serve/jobs-inl.h"
#include "multihead/serve/model.h"

namespace multihead::serve {

/// Everything here happens in the one thread that computes.
class Lane {
 public:
  virtual ~Lane() = default;
  /// Does a piece of the work. False: there is none.
  virtual bool step() = 0;
  /// Ends what nobody waits for, and what is late.
  virtual void drop_unwanted(Reply::Clock::time_point now) = 0;
};

/// Whether a job may go: its client has left, or its time is over, which the client is told.
bool is_unwanted(Reply& reply, Reply::Clock::time_point now);
/// Answers with the exception that is being handled. A request cannot end the server.
void fail_with_current_exception(Reply& reply);
/// Calls what looks at a request before anything is computed: there, a wrong value is the client's.
template <class F>
auto as_request(F&& look) -> decltype(look()) {
  try {
    return look();
  } catch (const ValueError& error) {
    throw ApiError(400, error.what());
  }
}

class LanguageLane : public Lane {
 public:
  /// `limit`: tokens of a prompt and its continuation.
  LanguageLane(const Writer& writer, const GeneratorOptions& options, int64_t limit);
  void add(GenerationJob job);
  bool step() override;
  void drop_unwanted(Reply::Clock::time_point now) override;

 private:
  struct Choice {
    int64_t sequence = -1;
    std::optional<TextStream> text = {};
    std::string fresh = {};  // what its last token completed
    int64_t tokens = 0, most = 0;
    bool has_stopped = false;  // at a stop string
    bool has_ended = false;
    std::optional<TokenLogprobs> logprobs = {};  // of the token that comes next
    TokenIds prompt = {};                        // if it is echoed
    std::vector<TokenLogprobs> prompt_logprobs = {};
    bool has_prompt = false;
  };
  struct Live {
    GenerationJob job;
    std::vector<Choice> choices = {};
    Usage usage = {};
  };
  void start(Live& live);
  void submit(Live& live, size_t choice, const TokenIds& prompt, GenerateOptions options);
  static void echo(Live& live, size_t choice);
  bool hear(Live& live, size_t choice, int32_t token);
  void finish_choices(Live& live);
  void finish_or_fail(Live& live);
  void leave(Live& live);
  void fail_all();
  int64_t limit_of(const GenerationJob& job) const { return job.context > 0 ? job.context : limit_; }

  const Writer& writer_;
  GeneratorOptions options_;
  int64_t limit_;
  std::optional<Generator> generator_;
  std::list<Live> lives_;
};

/// Inputs that wait are computed together: one of each request in turn, up to so many tokens.
template <class Job>
class InputLane : public Lane {
 public:
  void add(Job job) { lives_.push_back({std::move(job)}); }
  bool step() override;
  void drop_unwanted(Reply::Clock::time_point now) override {
    std::erase_if(lives_, [&](Live& live) { return is_unwanted(*live.job.reply, now); });
  }

 protected:
  struct Live {
    Job job;
    std::vector<int64_t> sizes = {};  // tokens of each input
    std::vector<TokenIds> ids = {};
    size_t next = 0, done = 0;
    std::vector<float> rows = {};
    int64_t width = 0;
    bool has_failed = false;
  };
  struct Pick {
    Live* live;
    size_t input;
  };

 private:
  /// Fills in `sizes`. Throws ApiError.
  virtual void prepare(Live& live) = 0;
  /// [picks, width]. Leaves the jobs as they are: what throws is computed again in parts.
  virtual Tensor compute(std::span<const Pick> picks) = 0;
  virtual void finish(Live& live) = 0;
  void prepare_all();
  std::vector<Pick> pick();
  bool run(std::span<const Pick> picks);
  void keep(std::span<const Pick> picks, const Tensor& rows);

  std::list<Live> lives_;
};

class EmbedLane : public InputLane<EmbedJob> {
 public:
  explicit EmbedLane(embed::SentenceEncoder encoder) : encoder_(std::move(encoder)) {}

 private:
  void prepare(Live& live) override;
  Tensor compute(std::span<const Pick> picks) override;
  void finish(Live& live) override;
  embed::SentenceEncoder encoder_;
};

/// A lane for each task, made with its first job: an adapter is read then.
class TasksLane : public Lane {
 public:
  explicit TasksLane(const embed::SentenceEncoder& encoder) : encoder_(encoder) {}
  void add(EmbedJob job);
  bool step() override;
  void drop_unwanted(Reply::Clock::time_point now) override;

 private:
  const embed::SentenceEncoder& encoder_;
  std::map<std::string, EmbedLane> lanes_;
};

class ScoreLane : public InputLane<ScoreJob> {
 public:
  explicit ScoreLane(const embed::TextClassifier& classifier) : classifier_(classifier) {}

 private:
  void prepare(Live& live) override;
  Tensor compute(std::span<const Pick> picks) override;
  void finish(Live& live) override;
  const embed::TextClassifier& classifier_;
};

}  // namespace multihead::serve
