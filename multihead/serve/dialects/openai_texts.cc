// OpenAI's completions and chat completions.
#include <algorithm>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/generate/defaults.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

struct OpenAiForm {
  std::string id, model_name;
  bool is_chat = false, streams = false, shows_usage = false, has_logprobs = false;
  int64_t created = seconds_now();
};

Json usage_json(const Usage& usage) {
  return Json::object({{"prompt_tokens", usage.prompt_tokens},
                       {"completion_tokens", usage.new_tokens},
                       {"total_tokens", usage.total()}});
}

// A token as text and as bytes: it may hold part of a character.
Json logprob_json(const text::Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string bytes = tokenizer.decode(std::span(&token.token, 1), {.continued = true});
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(int64_t{static_cast<unsigned char>(byte)});
  return Json::object({{"token", valid_utf8(bytes)}, {"logprob", token.logprob}, {"bytes", list}});
}

// Writes a generation as OpenAI does, at once or in events.
class OpenAiWriter : public GenerationListener {
 public:
  OpenAiWriter(OpenAiForm form, ServedModel& model, std::shared_ptr<Reply> reply, size_t choices)
      : form_(std::move(form)), model_(model), reply_(std::move(reply)), choices_(choices) {}

  void begin() override {
    if (!form_.streams) return;
    reply_->begin("text/event-stream");
    if (!form_.is_chat) return;
    for (size_t c = 0; c < choices_.size(); ++c) {
      send(c, Json::object({{"role", "assistant"}, {"content", ""}}), Json(), Json());
    }
  }

  void token(size_t choice, const Token& token) override {
    Choice& own = choices_[choice];
    own.text += token.text;
    if (token.logprobs != nullptr) add_logprobs(own, *token.logprobs);
    if (!form_.streams || (token.text.empty() && token.logprobs == nullptr)) return;
    send_text(choice, token.text, Json());
  }

  void end(size_t choice, std::string_view rest, bool is_full) override {
    Choice& own = choices_[choice];
    own.text += rest;
    own.reason = is_full ? "length" : "stop";
    if (!form_.streams) return;
    if (!rest.empty()) send_text(choice, rest, Json());
    if (form_.is_chat) {
      send(choice, Json::object(), Json(), own.reason);
    } else {
      send_text(choice, "", own.reason);
    }
  }

  void finish(const Usage& usage) override {
    model_.prompt_tokens += usage.prompt_tokens;
    model_.new_tokens += usage.new_tokens;
    reply_->note({form_.model_name, usage.prompt_tokens, usage.new_tokens});
    if (!form_.streams) {
      reply_->answer_json(whole(usage).dump());
      return;
    }
    if (form_.shows_usage) {
      Json event = frame();
      event["choices"] = Json::array();
      event["usage"] = usage_json(usage);
      put(event);
    }
    reply_->end("data: [DONE]\n\n");
  }

 private:
  struct Choice {
    std::string text, reason;
    Json tokens = Json::array();  // log-probabilities, of all tokens or of those not sent yet
    size_t offset = 0;            // in characters, as completions count
  };

  Json frame() const {
    const char* object =
        form_.is_chat ? (form_.streams ? "chat.completion.chunk" : "chat.completion") : "text_completion";
    return Json::object(
        {{"id", form_.id}, {"object", object}, {"created", form_.created}, {"model", form_.model_name}});
  }
  void put(const Json& event) { reply_->write("data: " + event.dump() + "\n\n"); }

  void send_text(size_t choice, std::string_view text, const Json& reason) {
    const Json logprobs = take_logprobs(choices_[choice]);
    send(choice, form_.is_chat ? Json::object({{"content", text}}) : Json(text), logprobs, reason);
  }
  void send(size_t choice, const Json& content, const Json& logprobs, const Json& reason) {
    Json event = frame();
    event["choices"] = Json(std::vector<Json>{Json::object({{"index", static_cast<int64_t>(choice)},
                                                            {form_.is_chat ? "delta" : "text", content},
                                                            {"logprobs", logprobs},
                                                            {"finish_reason", reason}})});
    if (form_.shows_usage) event["usage"] = Json();
    put(event);
  }

  void add_logprobs(Choice& choice, const TokenLogprobs& all) {
    Json token = logprob_json(model_.writer().tokenizer, all.chosen);
    Json top = Json::array();
    for (const TokenLogprob& other : all.top) top.push_back(logprob_json(model_.writer().tokenizer, other));
    token["top_logprobs"] = std::move(top);
    choice.tokens.push_back(std::move(token));
  }
  Json take_logprobs(Choice& choice) const {
    if (!form_.has_logprobs) return {};
    const Json tokens = std::exchange(choice.tokens, Json::array());
    return form_.is_chat ? Json::object({{"content", tokens}, {"refusal", Json()}})
                         : in_columns(tokens, choice.offset);
  }

  // As completions have them: a list for each member; alternatives that look alike count once, the first.
  static Json in_columns(const Json& tokens, size_t& offset) {
    Json texts = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    for (const Json& token : tokens.items()) {
      Json top = Json::object();
      for (const Json& other : token.at("top_logprobs").items()) {
        const std::string text = other.at("token").as_string();
        if (!top.contains(text)) top[text] = other.at("logprob");
      }
      const std::string text = token.at("token").as_string();
      texts.push_back(text);
      values.push_back(token.at("logprob"));
      tops.push_back(std::move(top));
      offsets.push_back(static_cast<int64_t>(offset));
      offset += static_cast<size_t>(std::count_if(
          text.begin(), text.end(), [](char c) { return (static_cast<unsigned>(c) & 0xC0U) != 0x80U; }));
    }
    return Json::object(
        {{"tokens", texts}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}});
  }

  Json whole(const Usage& usage) {
    Json list = Json::array();
    for (size_t c = 0; c < choices_.size(); ++c) {
      Json choice = Json::object({{"index", static_cast<int64_t>(c)}});
      if (form_.is_chat) {
        choice["message"] =
            Json::object({{"role", "assistant"}, {"content", choices_[c].text}, {"refusal", Json()}});
      } else {
        choice["text"] = choices_[c].text;
      }
      choice["logprobs"] = take_logprobs(choices_[c]);
      choice["finish_reason"] = choices_[c].reason;
      list.push_back(std::move(choice));
    }
    Json answer = frame();
    answer["choices"] = std::move(list);
    answer["usage"] = usage_json(usage);
    return answer;
  }

  OpenAiForm form_;
  ServedModel& model_;
  std::shared_ptr<Reply> reply_;
  std::vector<Choice> choices_;
};

// What completions and chat have in common.
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
  fields.only("frequency_penalty", {Json(0)});
  fields.only("presence_penalty", {Json(0)});
  fields.only("logit_bias", {Json::object()});
  fields.ignore({"user", "metadata", "safety_identifier", "prompt_cache_key"});
}

void check_most(const Call& call, GenerationJob& job) {
  const int64_t most = call.service.options.max_tokens;
  int64_t& asked = job.options.max_new_tokens;
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
  job.listener = std::make_unique<OpenAiWriter>(std::move(form), model, call.reply, choices);
  call.service.submit(model, std::move(job));
}

int64_t longest_answer(Fields& fields, const char* name, int64_t otherwise) {
  return fields.integer(name, otherwise, 1, int64_t{1} << 30);
}

}  // namespace

void openai_completions(const Call& call) {
  const Json body = parse_body(call.request.body);
  Fields fields(body);
  ServedModel& model = call.model_named(fields.required_text("model"));
  OpenAiForm form = {.id = fresh_id("cmpl-")};
  GenerationJob job;
  read_common(fields, call, model, job, form);
  job.options.max_new_tokens = longest_answer(fields, "max_tokens", 16);
  check_most(call, job);
  job.wants_logprobs = fields.find("logprobs") != nullptr;
  job.options.top_logprobs = fields.integer("logprobs", 0, 0, 20);
  job.decode = {.skip_special = true, .continued = true};
  fields.only("echo", {Json(false)});
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
  const Json body = parse_body(call.request.body);
  Fields fields(body);
  ServedModel& model = call.model_named(fields.required_text("model"));
  OpenAiForm form = {.id = fresh_id("chatcmpl-"), .is_chat = true};
  GenerationJob job;
  read_common(fields, call, model, job, form);
  if (model.chat_template.empty()) {
    throw ApiError(
        400, concat("the model ", quote(model.model.name), " has no chat template; use /v1/completions"),
        "model");
  }
  const int64_t most = longest_answer(fields, "max_completion_tokens", -1);
  job.options.max_new_tokens = longest_answer(fields, "max_tokens", most);
  if (most > 0 && job.options.max_new_tokens != most)
    throw ApiError(400, "max_tokens and max_completion_tokens differ; give one of them", "max_tokens");
  check_most(call, job);
  for (const int32_t end : turn_ends(model.writer().tokenizer)) job.options.stop_tokens.push_back(end);
  job.wants_logprobs = fields.boolean("logprobs", false);
  job.options.top_logprobs = fields.integer("top_logprobs", 0, 0, 20);
  if (job.options.top_logprobs > 0 && !job.wants_logprobs)
    throw ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs");
  job.decode = {.skip_special = true};
  fields.only("response_format", {Json::object({{"type", "text"}})});
  fields.only("tools", {Json::array()});
  fields.only("tool_choice", {Json("none"), Json("auto")});
  fields.only("modalities", {Json(std::vector<Json>{Json("text")})});
  fields.only("store", {Json(false)});
  fields.only("service_tier", {Json("auto"), Json("default")});
  fields.ignore({"parallel_tool_calls"});
  Json variables = Json::object();
  if (const Json* given = fields.find("chat_template_kwargs")) {
    if (!given->is_object()) fields.refuse("chat_template_kwargs", "an object");
    variables = *given;
  }
  const auto messages = std::make_shared<Json>(read_messages(fields.required("messages"), "messages"));
  fields.finish();
  job.prompts = [&model, messages, variables] {
    return std::vector<TokenIds>{chat_prompt(model, *messages, variables)};
  };
  start_writing(call, model, std::move(job), std::move(form), 1);
}

}  // namespace multihead::serve
