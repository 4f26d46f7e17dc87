// OpenAI's responses, as far as they need nothing to be stored.
#include <utility>

#include "multihead/core/error.h"
#include "multihead/serve/dialects/openai_writer-inl.h"

namespace multihead::serve {
namespace {

// The items of an answer: a message, calls, or both.
class ResponseWriter : public GenerationListener {
 public:
  ResponseWriter(Json frame, ServedModel& model, std::shared_ptr<Reply> reply, bool streams,
                 const ToolRequest& tools)
      : frame_(std::move(frame)), model_(model), reply_(std::move(reply)), streams_(streams) {
    if (tools.style) parser_.emplace(*tools.style, tools.must_call, tools.only_one);
  }

  void begin() override {
    if (!streams_) return;
    reply_->begin("text/event-stream");
    send("response.created", Json::object({{"response", response("in_progress")}}));
    send("response.in_progress", Json::object({{"response", response("in_progress")}}));
  }
  void token(size_t, const Token& token) override { hear(token.text); }
  void end(size_t, std::string_view rest, bool is_full) override {
    hear(rest);
    if (parser_) show(parser_->end());
    if (items_.empty()) add_text("", true);
    finish_item(is_full ? "incomplete" : "completed");
    is_full_ = is_full;
  }
  void finish(const Usage& usage) override {
    count_usage(model_, *reply_, usage);
    Json all = response(is_full_ ? "incomplete" : "completed");
    if (is_full_) all["incomplete_details"] = Json::object({{"reason", "max_output_tokens"}});
    all["usage"] = Json::object({{"input_tokens", usage.prompt_tokens},
                                 {"input_tokens_details", Json::object({{"cached_tokens", 0}})},
                                 {"output_tokens", usage.new_tokens},
                                 {"output_tokens_details", Json::object({{"reasoning_tokens", 0}})},
                                 {"total_tokens", usage.total()}});
    if (!streams_) return reply_->answer_json(all.dump());
    send(is_full_ ? "response.incomplete" : "response.completed", Json::object({{"response", all}}));
    reply_->end();
  }

 private:
  struct Item {
    Json json;
    bool is_call = false;
    std::string text = {};  // of a message, or a call's arguments
  };

  Json response(const char* status) const {
    Json all = frame_, output = Json::array();
    for (const Item& item : items_) output.push_back(item.json);
    all["status"] = status;
    all["output"] = std::move(output);
    return all;
  }
  void send(const char* type, Json event) {
    if (!streams_) return;
    event["type"] = type;
    event["sequence_number"] = sequence_++;
    reply_->write(concat("event: ", type, "\ndata: ", event.dump(), "\n\n"));
  }
  // An event about the last item.
  Json about() const {
    return Json::object({{"item_id", items_.back().json.at("id")}, {"output_index", std::ssize(items_) - 1}});
  }
  static Json part(const std::string& text) {
    return Json::object({{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}});
  }

  void hear(std::string_view text) {
    if (parser_) return show(parser_->add(text));
    add_text(text, false);
  }
  void show(const std::vector<text::ToolCallParser::Event>& events) {
    for (const auto& event : events) {
      if (event.call < 0) {
        add_text(event.content, false);
      } else if (!event.name.empty()) {
        finish_item("completed");
        start({Json::object({{"id", fresh_id("fc_")},
                             {"type", "function_call"},
                             {"status", "in_progress"},
                             {"call_id", fresh_call_id()},
                             {"name", event.name},
                             {"arguments", ""}}),
               true});
      } else {
        items_.back().text += event.arguments;
        Json delta = about();
        delta["delta"] = event.arguments;
        send("response.function_call_arguments.delta", std::move(delta));
      }
    }
  }

  void start(Item item) {
    items_.push_back(std::move(item));
    is_open_ = true;
    send("response.output_item.added",
         Json::object({{"output_index", std::ssize(items_) - 1}, {"item", items_.back().json}}));
  }
  void add_text(std::string_view text, bool is_empty_too) {
    if (text.empty() && !is_empty_too) return;
    if (!is_open_ || items_.back().is_call) {
      finish_item("completed");
      start({Json::object({{"id", fresh_id("msg_")},
                           {"type", "message"},
                           {"status", "in_progress"},
                           {"role", "assistant"},
                           {"content", Json::array()}})});
      Json event = about();
      event["content_index"] = 0;
      event["part"] = part("");
      send("response.content_part.added", std::move(event));
    }
    items_.back().text += text;
    if (text.empty()) return;
    Json event = about();
    event["content_index"] = 0;
    event["delta"] = text;
    event["logprobs"] = Json::array();
    send("response.output_text.delta", std::move(event));
  }
  void finish_item(const char* status) {
    if (!std::exchange(is_open_, false)) return;
    Item& item = items_.back();
    item.json["status"] = status;
    if (item.is_call) {
      item.json["arguments"] = item.text;
      Json event = about();
      event["arguments"] = item.text;
      event["name"] = item.json.at("name");
      send("response.function_call_arguments.done", std::move(event));
    } else {
      item.json["content"] = Json(std::vector<Json>{part(item.text)});
      Json event = about();
      event["content_index"] = 0;
      event["text"] = item.text;
      event["logprobs"] = Json::array();
      send("response.output_text.done", event);
      event.erase("text");
      event.erase("logprobs");
      event["part"] = part(item.text);
      send("response.content_part.done", std::move(event));
    }
    send("response.output_item.done",
         Json::object({{"output_index", std::ssize(items_) - 1}, {"item", item.json}}));
  }

  Json frame_;
  ServedModel& model_;
  std::shared_ptr<Reply> reply_;
  bool streams_, is_open_ = false, is_full_ = false;
  int64_t sequence_ = 0;
  std::optional<text::ToolCallParser> parser_ = {};
  std::vector<Item> items_ = {};
};

// The texts of a message's parts.
std::string item_text(Fields& item, const std::string& place) {
  const Json& content = item.required("content");
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) item.refuse("content", "a text or an array of parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content.at(i), concat(place, ".content[", i, "]."));
    part.only("type", {Json("input_text"), Json("output_text"), Json("text")});
    part.ignore({"annotations", "logprobs"});
    text += part.required_text("text");
    part.finish();
  }
  return text;
}

// Items of the input as messages of a chat.
Json read_items(const Json& input, const std::string& instructions) {
  Json messages = Json::array();
  if (!instructions.empty())
    messages.push_back(Json::object({{"role", "system"}, {"content", instructions}}));
  if (input.is_string()) {
    messages.push_back(Json::object({{"role", "user"}, {"content", input}}));
    return messages;
  }
  if (!input.is_array() || input.size() == 0)
    throw ApiError(400, "input must be a text or an array of at least one item", "input");
  for (size_t i = 0; i < input.size(); ++i) {
    const std::string place = concat("input[", i, "]");
    Fields item(input.at(i), place + ".");
    const std::string type = item.text("type", "message");
    item.ignore({"id", "status"});
    Json message = Json::object();
    if (type == "message") {
      message = Json::object({{"role", item.required_text("role")}, {"content", item_text(item, place)}});
    } else if (type == "function_call") {
      const Json function = Json::object(
          {{"name", item.required_text("name")}, {"arguments", item.required_text("arguments")}});
      const Json call =
          Json::object({{"id", item.required_text("call_id")}, {"type", "function"}, {"function", function}});
      message = Json::object({{"role", "assistant"}, {"tool_calls", Json(std::vector<Json>{call})}});
    } else if (type == "function_call_output") {
      message = Json::object({{"role", "tool"},
                              {"tool_call_id", item.required_text("call_id")},
                              {"content", item.required_text("output")}});
    } else {
      item.refuse("type", "message, function_call or function_call_output");
    }
    item.finish();
    messages.push_back(std::move(message));
  }
  return messages;
}

// text.format, which is response_format with the members of json_schema beside its type.
void read_format(Fields& fields, GenerationJob& job, Json& frame) {
  Json shown = Json::object({{"type", "text"}});
  if (const Json* given = fields.find("text")) {
    Fields own(*given, "text.");
    own.only("verbosity", {Json("medium")});
    if (const Json* format = own.find("format")) {
      Fields inner(*format, "text.format.");
      const std::string type = inner.required_text("type");
      if (type == "json_object") {
        set_schema(job, Json::object({{"type", "object"}}), "text.format");
      } else if (type == "json_schema") {
        inner.ignore({"name", "description"});
        inner.boolean("strict", true);
        set_schema(job, inner.required("schema"), "text.format.schema");
      } else if (type != "text") {
        inner.refuse("type", "text, json_object or json_schema");
      }
      inner.finish();
      shown = *format;
    }
    own.finish();
  }
  frame["text"] = Json::object({{"format", shown}});
}

}  // namespace

void openai_responses(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = call.model_named(fields.required_text("model"));
  GenerationJob job;
  job.reply = call.reply;
  read_sampling(fields, model.writer(), job);
  end_with_turns(model, "/v1/completions", job);
  const int64_t wanted = fields.integer("max_output_tokens", -1, 1, int64_t{1} << 30);
  job.options.max_new_tokens = wanted;
  const int64_t most = call.service.options.max_tokens;
  job.most_new_tokens = most;
  if (most > 0 && wanted > most)
    throw ApiError(400, concat("max_output_tokens must be at most ", most, ", the server's limit"),
                   "max_output_tokens");
  const bool streams = fields.boolean("stream", false);
  Json frame = Json::object({{"id", fresh_id("resp_")},
                             {"object", "response"},
                             {"created_at", seconds_now()},
                             {"status", "completed"},
                             {"error", Json()},
                             {"incomplete_details", Json()},
                             {"instructions", Json()},
                             {"max_output_tokens", wanted > 0 ? Json(wanted) : Json()},
                             {"model", model.model.name},
                             {"output", Json::array()},
                             {"store", false},
                             {"temperature", job.options.sampling.temperature},
                             {"top_p", job.options.sampling.top_p},
                             {"tool_choice", "auto"},
                             {"tools", Json::array()}});
  read_format(fields, job, frame);
  if (const Json* tools = fields.find("tools")) frame["tools"] = *tools;
  if (const Json* choice = fields.find("tool_choice")) frame["tool_choice"] = *choice;
  ToolRequest tools = read_tools(fields, model, true);
  frame["parallel_tool_calls"] = !tools.only_one;
  const std::string instructions = fields.text("instructions");
  if (!instructions.empty()) frame["instructions"] = instructions;
  const Json messages = read_items(fields.required("input"), instructions);
  // Nothing is kept: an answer can be continued only by sending it again.
  fields.only("store", {Json(false), Json(true)});
  fields.only("background", {Json(false)});
  fields.only("truncation", {Json("disabled")});
  fields.only("include", {Json::array()});
  fields.only("service_tier", {Json("auto"), Json("default")});
  fields.only("top_logprobs", {Json(0)});
  fields.ignore({"user", "metadata", "safety_identifier", "prompt_cache_key"});
  fields.finish();
  job.listener = std::make_unique<ResponseWriter>(std::move(frame), model, call.reply, streams, tools);
  set_chat(model, read_messages(messages, "input"), Json::object(), std::move(tools), job);
  call.service.submit(model, std::move(job));
}

}  // namespace multihead::serve
