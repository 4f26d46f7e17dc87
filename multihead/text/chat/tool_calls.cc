#include "multihead/text/chat/tool_calls.h"

#include <algorithm>
#include <utility>

#include "multihead/core/error.h"

namespace multihead::text {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kMistral = "[TOOL_CALLS]";

struct StyleRow {
  ToolStyle style;
  std::string_view trigger;    // what calls begin with; empty: the answer itself
  std::string_view prefix;     // in a prompt
  std::string_view suffix;     // what ends them
  std::string_view arguments;  // the member's name
  bool is_list;
};
constexpr StyleRow kStyles[] = {
    {ToolStyle::hermes, kOpen, "<tool_call>\n", "\n</tool_call>", "arguments", false},
    {ToolStyle::llama, "", "", "", "parameters", false},
    {ToolStyle::mistral, kMistral, kMistral, "", "arguments", true},
    {ToolStyle::list, kOpen, kOpen, kClose, "arguments", true},
};
const StyleRow& row_of(ToolStyle style) { return kStyles[static_cast<size_t>(style)]; }

// A call with its arguments as an object, which OpenAI has as a text.
Json parsed_call(const Json& call) {
  Json own = call;
  Json function = call.at("function");
  const Json& arguments = function.at("arguments");
  if (arguments.is_string()) {
    Json object = Json::parse(arguments.as_string(), "the arguments of a tool call");
    function["arguments"] = std::move(object);
  }
  own["function"] = std::move(function);
  return own;
}

std::string calls_as_text(const Json& calls) {
  Json list = Json::array();
  for (const Json& call : calls.items()) {
    const Json function = parsed_call(call).at("function");
    list.push_back(Json::object({{"name", function.at("name")}, {"arguments", function.at("arguments")}}));
  }
  return concat(kOpen, list.dump(), kClose);
}

std::string told(const Json& tools) {
  return concat(
      "You may call functions. The following ones exist:\n<tools>", tools.dump(),
      "</tools>\n\nTo call some, answer only with a list of calls, such as\n<tool_call>[\n{\"name\": "
      "\"function_name\", \"arguments\": {\"argument\": \"value\"}}\n]</tool_call>\nIf none is needed, "
      "answer as "
      "usual.");
}

// The end of the JSON value at `at`, or npos while it goes on. Numbers and words end where something else begins.
size_t value_end(std::string_view text, size_t at) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
        if (depth == 0) return i + 1;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return i;
      if (--depth == 0) return i + 1;
    } else if (depth == 0 && (c == ',' || c == ' ' || c == '\n')) {
      return i;
    }
  }
  return std::string_view::npos;
}

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && std::string_view(" \t\r\n").find(text[at]) != std::string_view::npos) ++at;
  return at;
}

// A call that may still be incomplete. Its JSON object is the text's beginning.
struct PartialCall {
  std::optional<std::string> name;
  size_t arguments = std::string_view::npos, arguments_end = std::string_view::npos,
         end = std::string_view::npos;
  bool is_wrong = false;
};

PartialCall read_object(std::string_view text) {
  PartialCall call;
  size_t at = skip_space(text, 0);
  if (at >= text.size()) return call;
  call.is_wrong = text[at] != '{';
  if (call.is_wrong) return call;
  for (at = skip_space(text, at + 1); at < text.size(); at = skip_space(text, at)) {
    if (text[at] == '}') {
      call.end = at + 1;
      return call;
    }
    if (text[at] == ',') at = skip_space(text, at + 1);
    if (at >= text.size()) return call;
    call.is_wrong = text[at] != '"';
    const size_t key_end = call.is_wrong ? std::string_view::npos : value_end(text, at);
    if (key_end == std::string_view::npos) return call;
    const std::string_view key = text.substr(at + 1, key_end - at - 2);
    at = skip_space(text, key_end);
    if (at >= text.size()) return call;
    call.is_wrong = text[at] != ':';
    if (call.is_wrong) return call;
    at = skip_space(text, at + 1);
    if (at >= text.size()) return call;
    const bool is_arguments = key == "arguments" || key == "parameters";
    if (is_arguments) {
      call.arguments = at;
      call.is_wrong = text[at] != '{';
      if (call.is_wrong) return call;
    }
    const size_t end = value_end(text, at);
    if (end == std::string_view::npos) return call;
    if (is_arguments) call.arguments_end = end;
    if (key == "name") {
      call.is_wrong = text[at] != '"' || end == at + 2;
      if (call.is_wrong) return call;
      try {
        call.name = Json::parse(text.substr(at, end - at)).as_string();
      } catch (const FormatError&) {
        call.is_wrong = true;
        return call;
      }
    }
    at = end;
  }
  return call;
}

Json any_object() { return Json::object({{"type", "object"}}); }

// The calls of a row, each behind `before`; or values of a schema.
grammar::LanguagePtr calls_of(const StyleRow& row, const std::vector<Json>& functions,
                              std::string_view before, std::string_view trigger,
                              const Json* value = nullptr) {
  std::vector<Json> schemas;
  schemas.reserve(functions.size());
  for (const Json& function : functions) {
    const Json* parameters = function.find("parameters");
    schemas.push_back(parameters == nullptr || parameters->is_null() ? any_object() : *parameters);
  }
  std::vector<std::string> heads;
  for (const Json& function : functions)
    heads.push_back(concat(R"({"name": )", function.at("name").dump(), ", \"", row.arguments, "\": "));
  const std::string begin = concat(before, row.is_list ? "[" : ""),
                    end = concat("}", row.is_list ? "]" : "", row.suffix);
  std::vector<std::vector<grammar::JsonPart>> alternatives;
  for (size_t i = 0; i < functions.size(); ++i) {
    alternatives.push_back(
        {{.literal = begin}, {.literal = heads[i]}, {.schema = &schemas[i]}, {.literal = end}});
  }
  if (value != nullptr) alternatives.push_back({{.schema = value}});
  return grammar::json_parts_language(alternatives, trigger);
}

}  // namespace

std::optional<ToolStyle> tool_style(std::string_view source) {
  const auto has = [&](std::string_view word) { return source.find(word) != std::string_view::npos; };
  const bool knows_tools = has("if tools") || has("in tools") || has("tools is") || has("tools |") ||
                           has("tools|") || has("tool_calls");
  if (!knows_tools) return ToolStyle::list;
  if (has(kMistral)) return ToolStyle::mistral;
  if (has(kOpen)) return ToolStyle::hermes;
  if (has("ipython") && has("parameters")) return ToolStyle::llama;
  return std::nullopt;
}

Json tool_messages(ToolStyle style, const Json& messages, const Json& tools) {
  Json list = Json::array();
  const bool is_told = style == ToolStyle::list && tools.size() > 0;
  const bool has_system = messages.size() > 0 && messages.at(size_t{0}).find("role") != nullptr &&
                          messages.at(size_t{0}).at("role") == Json("system");
  if (is_told && !has_system) list.push_back(Json::object({{"role", "system"}, {"content", told(tools)}}));
  for (const Json& message : messages.items()) {
    Json own = message;
    if (is_told && has_system && list.size() == 0)
      own["content"] = own.at("content").as_string() + "\n\n" + told(tools);
    const Json* calls = message.find("tool_calls");
    if (calls != nullptr && style == ToolStyle::list) {
      const Json* content = message.find("content");
      const std::string text = content != nullptr && content->is_string() ? content->as_string() : "";
      own["content"] = text + calls_as_text(*calls);
      own.erase("tool_calls");
    } else if (calls != nullptr) {
      Json parsed = Json::array();
      for (const Json& call : calls->items()) parsed.push_back(parsed_call(call));
      own["tool_calls"] = std::move(parsed);
    }
    list.push_back(std::move(own));
  }
  return list;
}

std::string_view call_prefix(ToolStyle style) { return row_of(style).prefix; }

grammar::LanguagePtr call_language(ToolStyle style, const std::vector<Json>& functions) {
  return calls_of(row_of(style), functions, "", "");
}

grammar::LanguagePtr text_or_call_language(ToolStyle style, const std::vector<Json>& functions) {
  const StyleRow& row = row_of(style);
  MH_CHECK(row.trigger == kOpen, ValueError,
           "tools: this model's calls begin otherwise than by a text; strict needs a tool_choice that "
           "requires a call");
  return calls_of(row, functions, row.prefix.substr(row.trigger.size()), row.trigger);
}

grammar::LanguagePtr value_or_call_language(ToolStyle style, const std::vector<Json>& functions,
                                            const Json& schema) {
  MH_CHECK(style != ToolStyle::mistral, ValueError,
           "tools: this model's calls begin with a token of their own; a format of the answer goes with a "
           "tool_choice that requires a call, or none");
  return calls_of(row_of(style), functions, row_of(style).prefix, "", &schema);
}

ToolCallParser::ToolCallParser(ToolStyle style, bool in_call, bool only_one)
    : style_(style), in_call_(in_call || row_of(style).trigger.empty()), only_one_(only_one) {}

std::vector<ToolCallParser::Event> ToolCallParser::kept(std::vector<Event> events) {
  if (!only_one_) return events;
  std::vector<Event> first;
  for (Event& event : events) {
    const bool follows = event.call > 0 || (event.call < 0 && has_first_);
    has_first_ = has_first_ || event.call == 0;
    if (!follows) first.push_back(std::move(event));
  }
  return first;
}

std::vector<ToolCallParser::Event> ToolCallParser::add(std::string_view text) {
  std::vector<Event> events;
  buffer_ += text;
  read(events, false);
  return kept(std::move(events));
}

std::vector<ToolCallParser::Event> ToolCallParser::end() {
  std::vector<Event> events;
  read(events, true);
  // Behind calls only brackets and white space are left, and a call that was cut off has been shown.
  const bool is_rest = calls_ > 0 && buffer_.find_first_not_of(" \t\r\n[],") == std::string::npos;
  if (!(held_ + buffer_).empty() && !is_named_ && !is_rest) events.push_back({.content = held_ + buffer_});
  held_.clear();
  buffer_.clear();
  return kept(std::move(events));
}

void ToolCallParser::read(std::vector<Event>& events, bool is_end) {
  while (in_call_ ? read_call(events) : read_text(events, is_end)) {
  }
}

// Text up to the next call. What may be the beginning of a trigger waits, and so does white space, which is no text of
// an answer where a call follows.
bool ToolCallParser::read_text(std::vector<Event>& events, bool is_end) {
  const std::string_view trigger = row_of(style_).trigger;
  const size_t found = trigger.empty() ? std::string::npos : buffer_.find(trigger);
  size_t certain = std::min(found, buffer_.size());
  if (found == std::string::npos && !is_end && !trigger.empty()) {
    size_t length = std::min(trigger.size() - 1, buffer_.size());
    while (!buffer_.ends_with(trigger.substr(0, length))) --length;
    certain -= length;
  }
  const size_t last = std::string_view(buffer_).substr(0, certain).find_last_not_of(" \t\r\n");
  const size_t shown = is_end && calls_ == 0 ? certain : last == std::string::npos ? 0 : last + 1;
  if (shown > 0) events.push_back({.content = buffer_.substr(0, shown)});
  buffer_.erase(0, is_end ? certain : found == std::string::npos ? shown : found);
  if (found == std::string::npos) return false;
  held_ = trigger;
  buffer_.erase(0, trigger.size());
  in_call_ = true;
  return true;
}

// A part of a call; true if there may be more to read.
bool ToolCallParser::read_call(std::vector<Event>& events) {
  const StyleRow& row = row_of(style_);
  size_t begin = skip_space(buffer_, 0);
  if (row.is_list && !is_named_) {
    while (begin < buffer_.size() &&
           (buffer_[begin] == '[' || buffer_[begin] == ',' || buffer_[begin] == ']'))
      begin = skip_space(buffer_, begin + 1);
  }
  held_ += buffer_.substr(0, begin);
  buffer_.erase(0, begin);
  const std::string_view rest = buffer_;
  if (rest.empty()) return false;
  const bool is_closed = !is_named_ && row.trigger == kOpen && calls_ > 0;
  if (is_closed && rest.starts_with(kClose)) {
    buffer_.erase(0, kClose.size());
    in_call_ = false, held_.clear();
    return true;
  }
  if (is_closed && kClose.starts_with(rest)) return false;
  const PartialCall call = read_object(rest);
  if (call.is_wrong && !is_named_) {
    // No call, but one may follow, however the text is cut in pieces.
    if (row.trigger.empty()) {
      buffer_ = held_ + buffer_;
    } else if (!held_.empty()) {
      events.push_back({.content = held_});
    }
    held_.clear();
    in_call_ = false;
    return !buffer_.empty();
  }
  if (!call.name || call.arguments == std::string_view::npos) return false;
  if (!is_named_) {
    events.push_back({.call = calls_, .name = *call.name});
    is_named_ = true, sent_ = 0;
  }
  const size_t end = std::min(call.arguments_end, rest.size()) - call.arguments;
  if (end > sent_)
    events.push_back(
        {.call = calls_, .arguments = std::string(rest.substr(call.arguments + sent_, end - sent_))});
  sent_ = end;
  if (call.end == std::string_view::npos) return false;
  buffer_.erase(0, call.end);
  ++calls_;
  is_named_ = false, held_.clear();
  return true;
}

}  // namespace multihead::text
