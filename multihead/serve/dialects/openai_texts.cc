// OpenAI's completions and chat completions.
#include <utility>

#include "multihead/core/error.h"
#include "multihead/serve/dialects/openai_writer-inl.h"

namespace multihead::serve {
namespace {

// Completions and chat have these members in common.
void read_common(Fields& fields, const Call& call, const ServedModel& model, GenerationJob& job,
                 OpenAiForm& form) {
  job.reply = call.reply;
  read_sampling(fields, model.writer(), job);
  job.choices = fields.integer("n", 1, 1, 128);
  form.streams = fields.boolean("stream", false);
  if (const Json* options = fields.find("stream_options")) {
    if (!form.streams) throw ApiError(400, "stream_options needs stream: true", "stream_options");
    Fields own(*options, "stream_options.");
    form.shows_usage = own.boolean("include_usage", false);
    own.only("include_obfuscation", {Json(false)});
    own.finish();
  }
  job.options.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
  job.options.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
  read_logit_bias(fields, model.writer(), job);
  fields.ignore({"user", "metadata", "safety_identifier", "prompt_cache_key"});
}

void check_most(const Call& call, GenerationJob& job) {
  const int64_t most = call.service.options.max_tokens;
  const int64_t asked = job.options.max_new_tokens;
  job.most_new_tokens = most;
  if (most > 0 && asked > most)
    throw ApiError(400, concat("max_tokens is ", asked, ", the server's limit is ", most), "max_tokens");
}

void start_writing(const Call& call, ServedModel& model, GenerationJob job, OpenAiForm form, size_t prompts) {
  const size_t choices = prompts * static_cast<size_t>(job.choices);
  if (static_cast<int64_t>(choices) > call.service.options.max_inputs)
    throw ApiError(
        400,
        concat("prompts and n ask for ", choices, " texts, the limit is ", call.service.options.max_inputs),
        "n");
  form.model_name = model.model.name;
  form.has_logprobs = job.wants_logprobs;
  job.listener = openai_writer(std::move(form), model, call.reply, choices);
  call.service.submit(model, std::move(job));
}

int64_t longest_answer(Fields& fields, const char* name, int64_t otherwise, int64_t least = 1) {
  return fields.integer(name, otherwise, least, int64_t{1} << 30);
}

}  // namespace

void openai_completions(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = call.model_named(fields.required_text("model"));
  OpenAiForm form = {.id = fresh_id("cmpl-")};
  GenerationJob job;
  read_common(fields, call, model, job, form);
  job.echoes = fields.boolean("echo", false);
  const int64_t most = call.service.options.max_tokens;
  const int64_t usual = most > 0 ? std::min<int64_t>(16, most) : 16;
  job.options.max_new_tokens = longest_answer(fields, "max_tokens", usual, job.echoes ? 0 : 1);
  read_response_format(fields, job);
  check_most(call, job);
  job.wants_logprobs = fields.find("logprobs") != nullptr;
  job.options.top_logprobs = fields.integer("logprobs", 0, 0, 20);
  job.decode = {.skip_special = true, .continued = true};
  fields.only("suffix", {Json("")});
  fields.only("best_of", {Json(1)});
  const auto inputs = std::make_shared<std::vector<EmbedJob::Input>>(
      read_inputs(fields.required("prompt"), "prompt", call.service.options.max_inputs));
  fields.finish();
  job.prompts = [&model, inputs] {
    std::vector<TokenIds> prompts;
    for (const auto& input : *inputs) {
      const auto* text = std::get_if<std::string>(&input);
      prompts.push_back(text != nullptr ? model.writer().tokenizer.encode(*text, {.parse_special = true})
                                        : std::get<TokenIds>(input));
    }
    return prompts;
  };
  start_writing(call, model, std::move(job), std::move(form), inputs->size());
}

void openai_chat(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = call.model_named(fields.required_text("model"));
  OpenAiForm form = {.id = fresh_id("chatcmpl-"), .is_chat = true};
  GenerationJob job;
  read_common(fields, call, model, job, form);
  end_with_turns(model, "/v1/completions", job);
  const int64_t most = longest_answer(fields, "max_completion_tokens", -1);
  job.options.max_new_tokens = longest_answer(fields, "max_tokens", most);
  if (most > 0 && job.options.max_new_tokens != most)
    throw ApiError(400, "max_tokens and max_completion_tokens differ; give one of them", "max_tokens");
  check_most(call, job);
  job.wants_logprobs = fields.boolean("logprobs", false);
  job.options.top_logprobs = fields.integer("top_logprobs", 0, 0, 20);
  if (job.options.top_logprobs > 0 && !job.wants_logprobs)
    throw ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs");
  read_response_format(fields, job);
  fields.only("modalities", {Json(std::vector<Json>{Json("text")})});
  fields.only("store", {Json(false)});
  fields.only("service_tier", {Json("auto"), Json("default")});
  ToolRequest tools = read_tools(fields, model, false);
  Json variables = Json::object();
  if (const Json* given = fields.find("chat_template_kwargs")) {
    if (!given->is_object()) fields.refuse("chat_template_kwargs", "an object");
    variables = *given;
    for (const char* own : {"messages", "tools"}) {
      if (given->contains(own))
        throw ApiError(400, concat("chat_template_kwargs cannot set ", own, ", which the request has itself"),
                       "chat_template_kwargs");
    }
  }
  Json messages = read_messages(fields.required("messages"), "messages");
  fields.finish();
  form.tools = tools.style, form.in_call = tools.must_call, form.only_one = tools.only_one;
  set_chat(model, std::move(messages), std::move(variables), std::move(tools), job);
  start_writing(call, model, std::move(job), std::move(form), 1);
}

}  // namespace multihead::serve
