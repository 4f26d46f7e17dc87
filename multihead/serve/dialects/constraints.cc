// The form that an answer must have, and the functions that it may call.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/numbers-inl.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

// Errors of a constraint are those of a member of the request.
template <class Make>
void set_constraint(GenerationJob& job, const std::string& param, Make make) {
  job.constraint = [param, make = std::move(make)](const text::Tokenizer& tokenizer) {
    try {
      return make(tokenizer);
    } catch (const ValueError& error) {
      throw ApiError(400, error.what(), param, "invalid_schema");
    }
  };
}

// A format binds what is no call. Arguments that need not fit are any object.
void hold_to_calls(const ToolRequest& tools, GenerationJob& job) {
  std::vector<Json> functions = tools.functions;
  if (!tools.must_call && !tools.is_strict) {
    for (Json& function : functions) function["parameters"] = Json();
  }
  set_constraint(job, "tools",
                 [style = *tools.style, functions, schema = tools.must_call ? std::nullopt : job.schema,
                  must_call = tools.must_call](const text::Tokenizer& tokenizer) {
                   if (schema)
                     return Constraint(tokenizer, text::value_or_call_language(style, functions, *schema));
                   const auto make = must_call ? text::call_language : text::text_or_call_language;
                   return Constraint(tokenizer, make(style, functions));
                 });
}

std::string function_name(Fields& fields) {
  const std::string name = fields.required_text("name");
  if (name.empty()) fields.refuse("name", "a text that is not empty");
  return name;
}

Json read_function(const Json& tool, const std::string& place, bool is_flat, bool& is_strict) {
  Fields outer(tool, place + ".");
  outer.only("type", {Json("function")});
  outer.required("type");
  const auto read = [&](Fields& own) {
    Json function = Json::object({{"name", function_name(own)}});
    if (const std::string text = own.text("description"); !text.empty()) function["description"] = text;
    const Json* parameters = own.find("parameters");
    if (parameters != nullptr && !parameters->is_object()) own.refuse("parameters", "a JSON schema");
    function["parameters"] = parameters == nullptr
                                 ? Json::object({{"type", "object"}, {"properties", Json::object()}})
                                 : *parameters;
    is_strict |= own.boolean("strict", false);
    return function;
  };
  Json function;
  if (is_flat) {
    function = read(outer);
  } else {
    Fields inner(outer.required("function"), place + ".function.");
    function = read(inner);
    inner.finish();
  }
  outer.finish();
  return function;
}

// The tool as /v1/chat/completions has it: templates write what is there, an empty description too, in its order, and
// may read parameters, of which `function` has those of a function without any.
Json nested_tool(const Json& tool, const Json& function, bool is_flat) {
  Json own = is_flat ? Json::object() : tool.at("function");
  for (const JsonMember& member : tool.members()) {
    if (is_flat && member.key.view() != "type") own[member.key] = member.value;
  }
  if (own["parameters"].is_null()) own["parameters"] = function.at("parameters");
  Json nested = is_flat ? Json::object({{"type", "function"}}) : tool;
  nested["function"] = std::move(own);
  return nested;
}

// The function that tool_choice names, or none.
std::string named_function(const Json& choice, bool is_flat) {
  Fields outer(choice, "tool_choice.");
  outer.only("type", {Json("function")});
  outer.required("type");
  std::string name;
  if (is_flat) {
    name = function_name(outer);
  } else {
    Fields inner(outer.required("function"), "tool_choice.function.");
    name = function_name(inner);
    inner.finish();
  }
  outer.finish();
  return name;
}

void choose(Fields& fields, bool is_flat, ToolRequest& request) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr || *choice == Json("auto")) return;
  if (*choice == Json("none")) {
    request = {.only_one = request.only_one};
  } else if (*choice == Json("required")) {
    request.must_call = true;
  } else if (choice->is_object()) {
    const std::string name = named_function(*choice, is_flat);
    std::erase_if(request.functions, [&](const Json& function) { return function.at("name") != Json(name); });
    if (request.functions.empty())
      throw ApiError(400, concat("tool_choice names ", quote(name), ", which is not among the tools"),
                     "tool_choice");
    request.must_call = true;
  } else {
    fields.refuse("tool_choice", "none, auto, required or a function");
  }
}

}  // namespace

void read_logit_bias(Fields& fields, const Writer& writer, GenerationJob& job) {
  const Json* given = fields.find("logit_bias");
  if (given == nullptr) return;
  if (!given->is_object()) fields.refuse("logit_bias", "an object of tokens and numbers");
  std::unordered_set<int32_t> known;  // "5" and "05" are one token
  for (const auto& [key, value] : given->members()) {
    const std::string_view text = key.view();
    const int32_t token = spelled_number<int32_t>(text).value_or(-1);
    const bool is_token = token >= 0 && token < writer.model.config().vocab_size;
    if (!is_token || !value.is_number() || !(std::abs(value.as_double()) <= 100)) {
      throw ApiError(400,
                     concat("logit_bias must give tokens below ", writer.model.config().vocab_size,
                            " numbers from -100 to 100, got ", quote(text), ": ", quote(value.dump(), 60)),
                     "logit_bias");
    }
    if (!known.insert(token).second)
      throw ApiError(400, concat("logit_bias names the token ", token, " twice"), "logit_bias");
    job.options.logit_bias.emplace_back(token, static_cast<float>(value.as_double()));
  }
}

void set_schema(GenerationJob& job, const Json& schema, const std::string& param) {
  job.schema = schema;
  set_constraint(job, param, [schema](const text::Tokenizer& tokenizer) {
    return Constraint::json_schema(tokenizer, schema);
  });
}

void read_response_format(Fields& fields, GenerationJob& job) {
  const Json* given = fields.find("response_format");
  if (given == nullptr) return;
  Fields own(*given, "response_format.");
  const std::string type = own.required_text("type");
  if (type == "json_object") {
    const Json* schema = own.find("schema");  // llama.cpp's; "value" is that of Hugging Face's client
    if (schema == nullptr) schema = own.find("value");
    set_schema(job, schema != nullptr ? *schema : Json::object({{"type", "object"}}), "response_format");
  } else if (type == "json_schema") {
    Fields inner(own.required("json_schema"), "response_format.json_schema.");
    inner.ignore({"name", "description"});
    inner.boolean("strict", true);  // it always is
    set_schema(job, inner.required("schema"), "response_format.json_schema.schema");
    inner.finish();
  } else if (type == "regex") {
    set_constraint(job, "response_format.regex",
                   [pattern = own.required_text("regex")](const text::Tokenizer& tokenizer) {
                     return Constraint::regex(tokenizer, pattern);
                   });
  } else if (type == "grammar") {
    set_constraint(job, "response_format.grammar",
                   [source = own.required_text("grammar")](const text::Tokenizer& tokenizer) {
                     return Constraint::grammar(tokenizer, source);
                   });
  } else if (type != "text") {
    own.refuse("type", "text, json_object, json_schema, regex or grammar");
  }
  own.finish();
}

ToolRequest read_tools(Fields& fields, const ServedModel& model, bool is_flat) {
  constexpr size_t kMostTools = 128;
  ToolRequest request;
  request.only_one = !fields.boolean("parallel_tool_calls", true);
  const Json* given = fields.find("tools");
  if (given == nullptr || (given->is_array() && given->size() == 0)) {
    fields.only("tool_choice", {Json("none"), Json("auto")});
    return request;
  }
  if (!given->is_array() || given->size() > kMostTools)
    throw ApiError(400, concat("tools must be an array of at most ", kMostTools, " functions"), "tools");
  for (size_t i = 0; i < given->size(); ++i) {
    request.functions.push_back(
        read_function(given->at(i), concat("tools[", i, "]"), is_flat, request.is_strict));
    for (size_t j = 0; j < i; ++j) {
      if (request.functions[j].at("name") == request.functions[i].at("name"))
        throw ApiError(400, concat("tools has two functions ", request.functions[i].at("name").dump()),
                       "tools");
    }
    request.tools.push_back(nested_tool(given->at(i), request.functions.back(), is_flat));
  }
  request.style = text::tool_style(model.chat_template);
  if (!request.style) {
    throw ApiError(400,
                   concat("the chat template of ", quote(model.model.name),
                          " writes calls in a form that is not known; leave out tools"),
                   "tools");
  }
  choose(fields, is_flat, request);
  return request;
}

Json read_tool_calls(const Json& calls, const std::string& place) {
  if (!calls.is_array() || calls.size() == 0)
    throw ApiError(400, concat(place, " must be an array of calls"), place);
  Json list = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = concat(place, "[", i, "]");
    Fields call(calls.at(i), at + ".");
    call.only("type", {Json("function")});
    call.ignore({"index"});
    const std::string id = call.text("id");
    Fields function(call.required("function"), at + ".function.");
    const std::string name = function_name(function);
    const Json& arguments = function.required("arguments");
    Json parsed = arguments;
    if (arguments == Json("")) {  // of a call without any
      parsed = Json::object();
    } else if (arguments.is_string()) {
      try {
        parsed = Json::parse(arguments.as_string(), at + ".function.arguments");
      } catch (const FormatError& error) {
        throw ApiError(400, error.what(), at + ".function.arguments");
      }
    }
    if (!parsed.is_object()) function.refuse("arguments", "the JSON text of an object");
    function.ignore({"index"});
    function.finish();
    call.finish();
    list.push_back(Json::object({{"id", id},
                                 {"type", "function"},
                                 {"function", Json::object({{"name", name}, {"arguments", parsed}})}}));
  }
  return list;
}

namespace {

bool has_parts(const Json& message) { return message.at("content").is_array(); }

// The messages with another content in place of each one's parts.
template <class ContentOf>
Json with_contents(const Json& messages, const ContentOf& content_of) {
  Json list = Json::array();
  for (const Json& message : messages.items()) {
    Json own = message;
    if (has_parts(message)) own["content"] = content_of(message.at("content"));
    list.push_back(std::move(own));
  }
  return list;
}

// A word of its own for each message with parts: as one part, or as a text.
Json with_words(const Json& messages, bool as_part) {
  int64_t count = 0;
  return with_contents(messages, [&](const Json&) {
    const Json word = concat("qzWord", count++, "q");
    return as_part ? Json(std::vector<Json>{Json::object({{"type", "text"}, {"text", word}})}) : word;
  });
}

// Whether the model's template writes a part as it writes a text; others fail, drop it or print the list.
bool reads_parts(const text::Tokenizer& tokenizer, const Json& messages, const Json& variables) {
  try {
    return tokenizer.apply_chat_template(with_words(messages, true), true, variables) ==
           tokenizer.apply_chat_template(with_words(messages, false), true, variables);
  } catch (const ValueError&) {
    return false;
  } catch (const FormatError&) {
    return false;
  }
}

// The texts of each message's parts in a row, as they are.
Json with_joined_parts(const Json& messages) {
  return with_contents(messages, [](const Json& parts) {
    std::string text;
    for (const Json& part : parts.items()) text += part.at("text").as_string();
    return Json(text);
  });
}

}  // namespace

void set_chat(const ServedModel& model, Json messages, Json variables, ToolRequest tools,
              GenerationJob& job) {
  std::string prefix;
  const bool has_calls = std::any_of(messages.items().begin(), messages.items().end(),
                                     [](const Json& message) { return message.contains("tool_calls"); });
  const std::optional<text::ToolStyle> style =
      tools.style ? tools.style : text::tool_style(model.chat_template);
  if (style && (tools.style || has_calls)) {
    if (*style == text::ToolStyle::list) messages = with_joined_parts(messages);
    messages = text::tool_messages(*style, messages, tools.tools);
  }
  if (tools.style) {
    if (*tools.style != text::ToolStyle::list) variables["tools"] = tools.tools;
    if (job.constraint && !job.schema && !tools.must_call)
      throw ApiError(400, "tools go with a response_format of JSON alone", "response_format");
    if (tools.must_call || tools.is_strict || job.schema) hold_to_calls(tools, job);
    if (tools.must_call) prefix = text::call_prefix(*tools.style);
    if (*tools.style == text::ToolStyle::mistral) job.decode.skip_special = false;
  }
  job.prompts = [&model, prefix, messages = std::make_shared<Json>(std::move(messages)),
                 variables = std::make_shared<Json>(std::move(variables))] {
    const text::Tokenizer& tokenizer = model.writer().tokenizer;
    if (std::ranges::any_of(messages->items(), has_parts) && !reads_parts(tokenizer, *messages, *variables))
      *messages = with_joined_parts(*messages);
    try {
      const std::string prompt = tokenizer.apply_chat_template(*messages, true, *variables) + prefix;
      return std::vector<TokenIds>{tokenizer.encode(prompt, {.parse_special = true, .add_template = false})};
    } catch (const ValueError& error) {  // the template's own, such as of roles that must alternate
      throw ApiError(400, error.what(), "messages");
    } catch (const FormatError& error) {
      throw ApiError(400, error.what(), "messages");
    }
  };
}

}  // namespace multihead::serve
