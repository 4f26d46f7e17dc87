// Ollama's paths.
#include <chrono>
#include <ctime>
#include <optional>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/version.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

std::string ollama_body(const ApiError& error) {
  return Json::object({{"error", valid_utf8(error.what())}}).dump();
}
std::string ollama_event(const ApiError& error) { return ollama_body(error) + "\n"; }

std::string iso_time(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts = {};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

// Clients add ":latest" to names, unless it is a part of one.
ServedModel& named_or_latest(const Call& call, const std::string& name) {
  constexpr std::string_view kLatest = ":latest";
  const auto is_called = [](const std::string& text) {
    return [&text](const ServedModel& model) { return model.model.name == text; };
  };
  auto& models = call.service.models;
  if (!name.ends_with(kLatest) || std::ranges::any_of(models, is_called(name))) return call.model_named(name);
  const std::string plain = name.substr(0, name.size() - kLatest.size());
  return call.model_named(std::ranges::any_of(models, is_called(plain)) ? plain : name);
}

Json details_json(const ServedModel& model) {
  return Json::object({{"format", model.model.path.ends_with(".gguf") ? "gguf" : "safetensors"},
                       {"family", model.model.kind()},
                       {"families", Json(std::vector<Json>{Json(model.model.kind())})},
                       {"parameter_size", ""},
                       {"quantization_level", ""}});
}

Json tag_json(const ServedModel& model) {
  return Json::object({{"name", model.model.name},
                       {"model", model.model.name},
                       {"modified_at", iso_time(model.model.created)},
                       {"size", 0},
                       {"digest", checksum_text(checksum(concat(model.model.path, model.model.created)))},
                       {"details", details_json(model)}});
}

int64_t nanoseconds_since(Reply::Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Reply::Clock::now() - begin).count();
}

// Writes an answer at once or a line for each piece of it.
class OllamaWriter : public GenerationListener {
 public:
  OllamaWriter(ServedModel& model, std::shared_ptr<Reply> reply, bool is_chat, bool streams,
               const ToolRequest& tools)
      : model_(model), reply_(std::move(reply)), is_chat_(is_chat), streams_(streams) {
    if (tools.style) parser_.emplace(*tools.style, tools.must_call, tools.only_one);
  }

  void begin() override {
    if (streams_) reply_->begin("application/x-ndjson");
  }
  void token(size_t, const Token& token) override {
    if (!first_) first_ = Reply::Clock::now();
    hear(token.text);
  }
  void end(size_t, std::string_view rest, bool is_full) override {
    hear(rest);
    if (parser_) show(parser_->end());
    reason_ = is_full ? "length" : "stop";
  }
  void finish(const Usage& usage) override {
    count_usage(model_, *reply_, usage);
    if (streams_ && !calls_.empty()) reply_->write(line("", false, true).dump() + "\n");
    Json last = line(streams_ ? "" : text_, true, !streams_);
    last["done_reason"] = reason_;
    const int64_t total = nanoseconds_since(begin_), after_prompt = first_ ? nanoseconds_since(*first_) : 0;
    last["total_duration"] = total;
    last["load_duration"] = 0;
    last["prompt_eval_count"] = usage.prompt_tokens;
    last["prompt_eval_duration"] = total - after_prompt;
    last["eval_count"] = usage.new_tokens;
    last["eval_duration"] = after_prompt;
    if (streams_) {
      reply_->end(last.dump() + "\n");
    } else {
      reply_->answer_json(last.dump());
    }
  }

 private:
  void hear(std::string_view text) {
    if (parser_) return show(parser_->add(text));
    add(text);
  }
  // Calls are shown together in the end, with their arguments as objects.
  void show(const std::vector<text::ToolCallParser::Event>& events) {
    for (const auto& event : events) {
      if (event.call < 0) {
        add(event.content);
      } else if (!event.name.empty()) {
        calls_.emplace_back(event.name, "");
      } else {
        calls_.back().second += event.arguments;
      }
    }
  }
  Json calls_json() const {
    Json list = Json::array();
    for (const auto& [name, text] : calls_) {
      Json arguments = Json::object();
      try {
        arguments = Json::parse(text);
      } catch (const FormatError&) {  // cut off at the longest answer
        arguments["text"] = text;
      }
      list.push_back(Json::object({{"function", Json::object({{"name", name}, {"arguments", arguments}})}}));
    }
    return list;
  }
  void add(std::string_view text) {
    if (text.empty()) return;
    if (streams_) {
      reply_->write(line(text, false, false).dump() + "\n");
    } else {
      text_ += text;
    }
  }
  Json line(std::string_view text, bool is_done, bool shows_calls) const {
    Json json = Json::object({{"model", model_.model.name}, {"created_at", iso_time(seconds_now())}});
    if (is_chat_) {
      json["message"] = Json::object({{"role", "assistant"}, {"content", text}});
      if (shows_calls && !calls_.empty()) json["message"]["tool_calls"] = calls_json();
    } else {
      json["response"] = text;
    }
    json["done"] = is_done;
    return json;
  }

  ServedModel& model_;
  std::shared_ptr<Reply> reply_;
  bool is_chat_, streams_;
  std::string text_, reason_;
  std::optional<text::ToolCallParser> parser_ = {};
  std::vector<std::pair<std::string, std::string>> calls_ = {};
  Reply::Clock::time_point begin_ = Reply::Clock::now();
  std::optional<Reply::Clock::time_point> first_;  // when the first token came
};

// Settings of the machine say nothing about an answer.
void finish_options(Fields& options) {
  options.ignore({"num_thread", "num_gpu", "num_batch", "use_mmap", "num_keep"});
  options.finish();
}

// What Ollama's programs send to have a model ready, which it is.
void answer_loaded(const Call& call, const ServedModel& model, bool is_chat) {
  Json json = Json::object({{"model", model.model.name}, {"created_at", iso_time(seconds_now())}});
  if (is_chat) {
    json["message"] = Json::object({{"role", "assistant"}, {"content", ""}});
  } else {
    json["response"] = "";
  }
  json["done"] = true, json["done_reason"] = "load";
  call.reply->answer_json(json.dump());
}

void read_options(Fields& fields, const Call& call, const ServedModel& model, GenerationJob& job) {
  const Json none = Json::object(), *given = fields.find("options");
  Fields own(given == nullptr ? none : *given, "options.");
  read_sampling(own, model.writer(), job, "repeat_penalty");
  job.options.max_new_tokens = own.integer("num_predict", -1, -2, int64_t{1} << 30);
  if (job.options.max_new_tokens == 0) own.refuse("num_predict", "at least 1, or -1");
  if (job.options.max_new_tokens == -2) job.options.max_new_tokens = -1;
  const int64_t most = call.service.options.max_tokens;
  job.most_new_tokens = most;
  if (most > 0 && job.options.max_new_tokens > most)
    own.refuse("num_predict", concat("at most ", most, ", the server's limit"));
  job.context = own.integer("num_ctx", model.limit, 1, model.limit);
  own.only("presence_penalty", {Json(0)});
  own.only("frequency_penalty", {Json(0)});
  finish_options(own);
  if (const Json* format = fields.find("format"); format != nullptr && *format != Json("")) {
    if (!format->is_object() && *format != Json("json")) fields.refuse("format", "json or a JSON schema");
    set_schema(job, format->is_object() ? *format : Json::object({{"type", "object"}}), "format");
  }
}

// Without a prompt the model is asked to be ready.
void generate_text(const Call& call, Fields& fields, ServedModel& model, GenerationJob job, bool is_chat,
                   const ToolRequest& tools = {}) {
  const bool streams = fields.boolean("stream", true);
  fields.only("think", {Json(false)});
  fields.only("images", {Json::array()});
  fields.only("suffix", {Json("")});
  fields.only("template", {Json("")});
  fields.only("logprobs", {Json(false)});
  fields.only("top_logprobs", {Json(0)});
  fields.ignore({"keep_alive"});
  fields.finish();
  if (!job.prompts) return answer_loaded(call, model, is_chat);
  job.reply = call.reply;
  job.listener = std::make_unique<OllamaWriter>(model, call.reply, is_chat, streams, tools);
  call.service.submit(model, std::move(job));
}

// The prompt of messages; an answer ends where its turn does.
void set_messages(const ServedModel& model, const Json& messages, GenerationJob& job,
                  ToolRequest tools = {}) {
  end_with_turns(model, "raw: true", job);
  set_chat(model, messages, Json::object(), std::move(tools), job);
}

// The members that both paths for vectors have.
ServedModel& read_embedding(Fields& fields, const Call& call, EmbedJob& job) {
  job.reply = call.reply;
  const Json none = Json::object(), *given = fields.find("options");
  Fields options(given == nullptr ? none : *given, "options.");
  finish_options(options);
  fields.ignore({"keep_alive"});
  ServedModel& model = named_or_latest(call, fields.required_text("model"));
  job.task = read_task(fields, model);
  return model;
}

}  // namespace

const ErrorStyle kOllamaErrors = {ollama_body, ollama_event};

void ollama_tags(const Call& call) {
  Json list = Json::array();
  for (const ServedModel& model : call.service.models) list.push_back(tag_json(model));
  call.reply->answer_json(Json::object({{"models", list}}).dump());
}

// All models are loaded, and stay so.
void ollama_ps(const Call& call) {
  Json list = Json::array();
  for (const ServedModel& model : call.service.models) {
    Json one = tag_json(model);
    one["expires_at"] = "9999-12-31T23:59:59Z";
    one["size_vram"] = 0;
    one["context_length"] = model.limit;
    list.push_back(std::move(one));
  }
  call.reply->answer_json(Json::object({{"models", list}}).dump());
}

void ollama_show(const Call& call) {
  Fields fields(call.request);
  const ServedModel& model = named_or_latest(call, fields.required_text("model"));
  fields.ignore({"verbose"});
  fields.finish();
  const bool writes = std::holds_alternative<Writer>(model.model.any);
  std::vector<Json> capabilities = {writes ? "completion" : "embedding"};
  if (writes && text::tool_style(model.chat_template)) capabilities.emplace_back("tools");
  call.reply->answer_json(
      Json::object(
          {{"modelfile", ""},
           {"parameters", ""},
           {"template", valid_utf8(model.chat_template)},
           {"details", details_json(model)},
           {"model_info", Json::object({{"general.architecture", model.model.kind()},
                                        {concat(model.model.kind(), ".context_length"), model.limit}})},
           {"capabilities", std::move(capabilities)}})
          .dump());
}

void ollama_version(const Call& call) {
  call.reply->answer_json(Json::object({{"version", version()}}).dump());
}

void ollama_embed(const Call& call) {
  Fields fields(call.request);
  EmbedJob job;
  ServedModel& model = read_embedding(fields, call, job);
  job.dimensions = fields.integer("dimensions", 0, 1, model.encoder().dim());
  job.inputs = read_inputs(fields.required("input"), "input", call.service.options.max_inputs);
  job.truncates = fields.boolean("truncate", true);
  job.has_unit_length = true;
  fields.finish();
  job.finish = [reply = call.reply, &model, begin = Reply::Clock::now()](std::span<const float> vectors,
                                                                         int64_t width, const Usage& usage) {
    count_usage(model, *reply, usage);
    reply->answer_json(concat(R"({"model":)", Json(model.model.name).dump(), R"(,"embeddings":)",
                              json_rows(vectors, width), R"(,"total_duration":)", nanoseconds_since(begin),
                              R"(,"load_duration":0,"prompt_eval_count":)", usage.prompt_tokens, "}"));
  };
  call.service.submit(model, std::move(job));
}

// The older path: one text, and the vector as the model gives it.
void ollama_embedding(const Call& call) {
  Fields fields(call.request);
  EmbedJob job;
  ServedModel& model = read_embedding(fields, call, job);
  job.inputs = {fields.required_text("prompt")};
  job.truncates = true;
  fields.finish();
  job.finish = [reply = call.reply, &model](std::span<const float> vector, int64_t, const Usage& usage) {
    count_usage(model, *reply, usage);
    reply->answer_json(concat(R"({"embedding":)", json_array(vector), "}"));
  };
  call.service.submit(model, std::move(job));
}

void ollama_chat(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = named_or_latest(call, fields.required_text("model"));
  GenerationJob job;
  read_options(fields, call, model, job);
  const ToolRequest tools = read_tools(fields, model, false);
  const Json* messages = fields.find("messages");
  const bool loads = messages == nullptr || (messages->is_array() && messages->size() == 0);
  if (!loads) set_messages(model, read_messages(*messages, "messages"), job, tools);
  generate_text(call, fields, model, std::move(job), true, tools);
}

void ollama_generate(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = named_or_latest(call, fields.required_text("model"));
  GenerationJob job;
  read_options(fields, call, model, job);
  const std::string prompt = fields.text("prompt"), system = fields.text("system");
  fields.only("context", {Json::array()});
  const bool is_raw = fields.boolean("raw", false);
  if (is_raw && !system.empty()) throw ApiError(400, "system needs raw: false", "system");
  if (is_raw && !prompt.empty()) {
    job.decode = {.skip_special = true, .continued = true};
    job.prompts = [&model, prompt] {
      return std::vector<TokenIds>{model.writer().tokenizer.encode(prompt, {.parse_special = true})};
    };
  } else if (!prompt.empty()) {
    Json messages = Json::array();
    if (!system.empty()) messages.push_back(Json::object({{"role", "system"}, {"content", system}}));
    messages.push_back(Json::object({{"role", "user"}, {"content", prompt}}));
    set_messages(model, messages, job);
  }
  generate_text(call, fields, model, std::move(job), false);
}

}  // namespace multihead::serve
