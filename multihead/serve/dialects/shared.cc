// Several dialects read and write these alike.
#include <algorithm>
#include <bit>
#include <charconv>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/generate/defaults.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

// A message's parts, all of which must be texts.
Json read_parts(const Json& parts, const std::string& place) {
  Json texts = Json::array();
  for (size_t i = 0; i < parts.size(); ++i) {
    Fields part(parts.at(i), concat(place, "[", i, "]."));
    part.only("type", {Json("text")});
    texts.push_back(Json::object({{"type", "text"}, {"text", part.required_text("text")}}));
    part.finish();
  }
  return texts;
}

TokenIds token_array(const Json& list, const std::string& place) {
  TokenIds ids;
  for (const Json& id : list.items()) {
    if (!id.is_integer() || !std::in_range<int32_t>(id.as_int()))
      throw ApiError(400, concat(place, " must hold texts or tokens, got ", quote(id.dump(), 60)), place);
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return ids;
}

}  // namespace

void read_sampling(Fields& fields, const Writer& writer, GenerationJob& job, const char* repetition) {
  GenerateOptions& options = job.options;
  if (const auto eos = writer.tokenizer.eos_id()) options.stop_tokens = {*eos};
  apply(writer.defaults, options);
  SamplingOptions& sampling = options.sampling;
  sampling.temperature = fields.number("temperature", sampling.temperature, 0, 2);
  sampling.top_p = fields.number("top_p", sampling.top_p, 0, 1);
  if (sampling.top_p == 0) fields.refuse("top_p", "a number above 0, and at most 1");
  sampling.top_k = std::max<int64_t>(fields.integer("top_k", sampling.top_k, -1, 1 << 30), 0);
  sampling.min_p = fields.number("min_p", sampling.min_p, 0, 1);
  sampling.repetition_penalty = fields.number(repetition, sampling.repetition_penalty, 0.01, 100);
  options.seed = fields.find("seed") != nullptr
                     ? static_cast<uint64_t>(fields.integer("seed", 0, std::numeric_limits<int64_t>::min(),
                                                            std::numeric_limits<int64_t>::max()))
                     : std::random_device{}() | uint64_t{std::random_device{}()} << 32;
  job.stops = fields.texts("stop", 16);
  for (const std::string& stop : job.stops) {
    if (stop.empty() || stop.size() > 1024) fields.refuse("stop", "texts of 1 to 1024 bytes");
  }
  job.stops.insert(job.stops.end(), writer.defaults.stop_strings.begin(), writer.defaults.stop_strings.end());
}

Json read_messages(const Json& messages, const std::string& place) {
  if (!messages.is_array() || messages.size() == 0)
    throw ApiError(400, concat(place, " must be an array of at least one message"), place);
  Json list = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string at = concat(place, "[", i, "]");
    Fields message(messages.at(i), at + ".");
    std::string role = message.required_text("role");
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      throw ApiError(
          400, concat(at, ".role must be system, developer, user, assistant or tool, got ", quote(role)),
          at + ".role");
    }
    const Json* calls = role == "assistant" ? message.find("tool_calls") : nullptr;
    const Json* content = calls == nullptr ? &message.required("content") : message.find("content");
    if (content != nullptr && !content->is_array() && !content->is_string())
      message.refuse("content", "a text or an array of parts");
    Json own = Json::object({{"role", role}, {"content", ""}});
    if (content != nullptr)
      own["content"] = content->is_string() ? *content : read_parts(*content, at + ".content");
    if (calls != nullptr) own["tool_calls"] = read_tool_calls(*calls, at + ".tool_calls");
    if (role == "tool") own["tool_call_id"] = message.text("tool_call_id");
    if (const std::string name = message.text("tool_name", message.text("name")); !name.empty())
      own["name"] = name;
    message.ignore({"annotations"});
    message.only("images", {Json::array()});
    for (const char* key : {"refusal", "audio", "function_call"}) {
      if (message.find(key) != nullptr) message.refuse(key, "null");
    }
    message.finish();
    list.push_back(std::move(own));
  }
  return list;
}

std::vector<EmbedJob::Input> read_inputs(const Json& json, const std::string& place, int64_t most) {
  if (json.is_string()) return {json.as_string()};
  if (!json.is_array() || json.size() == 0)
    throw ApiError(400, concat(place, " must be a text, tokens, or an array of either"), place);
  if (json.at(size_t{0}).is_integer()) return {token_array(json, place)};
  if (std::ssize(json.items()) > most)
    throw ApiError(400, concat(place, " has ", json.size(), " texts, the limit is ", most), place);
  std::vector<EmbedJob::Input> inputs;
  for (size_t i = 0; i < json.size(); ++i) {
    const Json& item = json.at(i);
    const std::string at = concat(place, "[", i, "]");
    if (!item.is_string() && (!item.is_array() || item.size() == 0))
      throw ApiError(400, concat(at, " must be a text or an array of tokens, got ", quote(item.dump(), 60)),
                     place);
    if (item.is_string()) {
      inputs.emplace_back(item.as_string());
    } else {
      inputs.emplace_back(token_array(item, at));
    }
  }
  return inputs;
}

std::string read_task(Fields& fields, const ServedModel& model) {
  std::string task = fields.text("task");
  const std::set<std::string> tasks = model.encoder().tasks();
  if (task.empty() || tasks.contains(task)) return task;
  throw ApiError(400,
                 concat("the model ", quote(model.model.name), " has no task ", quote(task, 80),
                        "; its tasks are ", Enumeration(tasks)),
                 "task");
}

void end_with_turns(const ServedModel& model, const char* instead, GenerationJob& job) {
  if (model.chat_template.empty())
    throw ApiError(400, concat("the model ", quote(model.model.name), " has no chat template; use ", instead),
                   "model");
  for (const int32_t end : turn_ends(model.writer().tokenizer)) job.options.stop_tokens.push_back(end);
  job.decode = {.skip_special = true};
}

void count_usage(ServedModel& model, Reply& reply, const Usage& usage) {
  model.prompt_tokens += usage.prompt_tokens;
  model.new_tokens += usage.new_tokens;
  reply.note({model.model.name, usage.prompt_tokens, usage.new_tokens});
}

std::string json_array(std::span<const float> numbers) {
  std::string list = "[";
  for (const float number : numbers) {
    char digits[32];
    list.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    list += ',';
  }
  list.back() = ']';
  return list;
}

std::string json_rows(std::span<const float> numbers, int64_t width) {
  std::string list;
  for (size_t at = 0; at < numbers.size(); at += static_cast<size_t>(width)) {
    list += (at > 0 ? "," : "") + json_array(numbers.subspan(at, static_cast<size_t>(width)));
  }
  return "[" + list + "]";
}

std::string base64(std::span<const float> numbers) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = reinterpret_cast<const unsigned char*>(numbers.data());
  const size_t size = numbers.size_bytes();
  std::string text;
  text.reserve((size + 2) / 3 * 4);
  for (size_t i = 0; i < size; i += 3) {
    const unsigned group =
        bytes[i] << 16U | (i + 1 < size ? bytes[i + 1] << 8U : 0U) | (i + 2 < size ? bytes[i + 2] : 0U);
    for (size_t digit = 0; digit < 4; ++digit) {
      text += i + digit <= size ? kDigits[group >> (18 - 6 * digit) & 63U] : '=';
    }
  }
  return text;
}

}  // namespace multihead::serve
