#include <algorithm>
#include <utility>

#include "multihead/serve/lanes-inl.h"

namespace multihead::serve {

bool is_unwanted(Reply& reply, Reply::Clock::time_point now) {
  if (now > reply.deadline())
    reply.fail(ApiError(504, "the request took longer than the server's --timeout", "", "timeout"));
  return reply.cancelled() || now > reply.deadline();
}

void fail_with_current_exception(Reply& reply) {
  try {
    throw;
  } catch (const ApiError& error) {
    reply.fail(error);
  } catch (const std::bad_alloc&) {
    reply.fail(ApiError(503, "not enough memory for this request"));
  } catch (const std::exception& error) {
    reply.fail(ApiError(500, error.what()));
  }
}

LanguageLane::LanguageLane(const Writer& writer, const GeneratorOptions& options, int64_t limit)
    : writer_(writer), options_(options), limit_(limit), generator_(std::in_place, writer.model, options) {}

void LanguageLane::add(GenerationJob job) {
  if (is_unwanted(*job.reply, Reply::Clock::now()))
    return;  // its client left while it waited for the last step
  Live& live = lives_.emplace_back(Live{std::move(job)});
  try {
    as_request([&] { start(live); });
  } catch (...) {
    fail_with_current_exception(*live.job.reply);
    leave(live);
    lives_.pop_back();
  }
}

void LanguageLane::start(Live& live) {
  const std::vector<TokenIds> prompts = live.job.prompts();
  GenerateOptions options = live.job.options;
  if (live.job.constraint) {
    options.constraint = live.job.constraint(writer_.tokenizer);
    if (!live.job.decode.continued) options.constraint = options.constraint->at_beginning();
  }
  live.choices.resize(prompts.size() * static_cast<size_t>(live.job.choices));
  for (const TokenIds& prompt : prompts) {
    live.usage.prompt_tokens += std::ssize(prompt);
    const int64_t limit = limit_of(live.job), room = limit - std::ssize(prompt);
    if (prompt.empty()) throw ApiError(400, "the prompt has no tokens", "prompt");
    if (room < std::max<int64_t>(live.job.options.max_new_tokens, live.job.echoes ? 0 : 1)) {
      const std::string wanted = live.job.options.max_new_tokens > 0
                                     ? concat(" and ", live.job.options.max_new_tokens, " new ones")
                                     : "";
      throw ApiError(
          400, concat("the prompt has ", prompt.size(), " tokens", wanted, "; the context holds ", limit), "",
          "context_length_exceeded");
    }
    for (const int32_t token : prompt) {
      if (token < 0 || token >= writer_.model.config().vocab_size) {
        throw ApiError(400,
                       concat("token ", token, " of the prompt is outside the vocabulary of ",
                              writer_.model.config().vocab_size),
                       "prompt");
      }
    }
  }
  live.job.listener->begin();
  for (size_t c = 0; c < live.choices.size(); ++c) {
    submit(live, c, prompts[c / static_cast<size_t>(live.job.choices)], options);
  }
}

void LanguageLane::submit(Live& live, size_t choice, const TokenIds& prompt, GenerateOptions options) {
  Choice& own = live.choices[choice];
  if (live.job.options.max_new_tokens < 0) {
    const int64_t room = limit_of(live.job) - std::ssize(prompt), most = live.job.most_new_tokens;
    options.max_new_tokens = most > 0 ? std::min(most, room) : room;
  }
  own.most = options.max_new_tokens;
  own.text.emplace([&own](std::string_view piece) { own.fresh = piece; }, writer_.tokenizer, live.job.decode,
                   live.job.stops);
  options.on_token = [this, &live, choice](int64_t, int32_t token) { return hear(live, choice, token); };
  if (live.job.wants_logprobs)
    options.on_logprobs = [&own](int64_t, const TokenLogprobs& all) { own.logprobs = all; };
  if (live.job.echoes) {
    own.prompt = prompt;
    if (live.job.wants_logprobs) {
      options.on_prompt_logprobs = [&own](int64_t, const TokenLogprobs& all) {
        own.prompt_logprobs.push_back(all);
      };
    }
  }
  const uint64_t stream = choice % static_cast<size_t>(live.job.choices);
  own.sequence = generator_->submit(prompt, options, stream);
}

void LanguageLane::echo(Live& live, size_t choice) {
  Choice& own = live.choices[choice];
  if (!live.job.echoes || std::exchange(own.has_prompt, true)) return;
  live.job.listener->prompt(choice, own.prompt, own.prompt_logprobs);
}

// A new token; false ends the choice.
bool LanguageLane::hear(Live& live, size_t choice, int32_t token) {
  if (live.job.reply->cancelled()) return false;
  try {
    echo(live, choice);
    Choice& own = live.choices[choice];
    own.fresh.clear();
    own.has_stopped = !own.text->write(token);
    ++own.tokens, ++live.usage.new_tokens;
    live.job.listener->token(
        choice, {.id = token, .text = own.fresh, .logprobs = own.logprobs ? &*own.logprobs : nullptr});
    return !own.has_stopped;
  } catch (...) {
    fail_with_current_exception(*live.job.reply);
    live.job.reply->cancel();
    return false;
  }
}

void LanguageLane::finish_choices(Live& live) {
  const auto ended = [](const Choice& choice) { return choice.has_ended; };
  for (size_t c = 0; c < live.choices.size(); ++c) {
    Choice& choice = live.choices[c];
    if (choice.has_ended || !generator_->finished(choice.sequence)) continue;
    const std::string problem = generator_->problem(choice.sequence);
    const bool is_complete = generator_->is_complete(choice.sequence);
    generator_->take(choice.sequence);
    choice.has_ended = true;
    if (!problem.empty()) {
      live.job.reply->fail(live.job.constraint ? ApiError(400, problem, "", "constraint_failed")
                                               : ApiError(500, problem));
    }
    echo(live, c);
    choice.fresh.clear();
    choice.text->finish();
    const bool is_full = !choice.has_stopped && !is_complete && choice.tokens >= choice.most;
    live.job.listener->end(c, choice.fresh, is_full);
  }
  if (!std::all_of(live.choices.begin(), live.choices.end(), ended)) return;
  live.job.listener->finish(live.usage);
}

// The sequences that a request still has end.
void LanguageLane::leave(Live& live) {
  for (Choice& choice : live.choices) {
    if (choice.has_ended || choice.sequence < 0) continue;
    generator_->cancel(choice.sequence);
    generator_->take(choice.sequence);
    choice.has_ended = true;
  }
}

// What cannot be written, such as a log-probability that is no number, is the problem of one request.
void LanguageLane::finish_or_fail(Live& live) {
  try {
    finish_choices(live);
  } catch (...) {
    fail_with_current_exception(*live.job.reply);
    leave(live);
  }
}

// The step's state is unknown: whoever took part is told, and the next ones begin anew.
void LanguageLane::fail_all() {
  for (Live& live : lives_) fail_with_current_exception(*live.job.reply);
  lives_.clear();
  generator_.emplace(writer_.model, options_);
}

bool LanguageLane::step() {
  if (lives_.empty()) {
    generator_->step();  // lets go of the memory of those that ended
    return false;
  }
  try {
    generator_->step();
    for (Live& live : lives_) finish_or_fail(live);
  } catch (...) {
    fail_all();
  }
  std::erase_if(lives_, [](const Live& live) {
    return std::all_of(live.choices.begin(), live.choices.end(), [](const Choice& c) { return c.has_ended; });
  });
  return true;
}

void LanguageLane::drop_unwanted(Reply::Clock::time_point now) {
  std::erase_if(lives_, [&](Live& live) {
    const bool is_gone = is_unwanted(*live.job.reply, now);
    if (is_gone) leave(live);
    return is_gone;
  });
}

}  // namespace multihead::serve
