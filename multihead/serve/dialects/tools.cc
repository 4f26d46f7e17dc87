// Paths that are about the server itself: tokens, and what monitoring reads.
#include "multihead/core/error.h"
#include "multihead/core/version.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

// Tokens are made in the thread that sends, so texts are short.
constexpr size_t kMostText = size_t{1} << 20;

// A label's value, as Prometheus quotes it.
std::string label_value(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\\' || c == '"') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted;
}

}  // namespace

void tokenize(const Call& call) {
  Fields fields(call.request);
  const ServedModel& model = call.model_named(fields.required_text("model"));
  const char* key = fields.find("prompt") != nullptr ? "prompt" : "content";
  const std::string text = fields.required_text(key);
  if (text.size() > kMostText)
    throw ApiError(413, concat(key, " must have at most ", kMostText, " bytes"), key);
  const bool adds = fields.boolean("add_special_tokens", true);
  fields.finish();
  Json ids = Json::array();
  for (const int32_t id : model.model.tokenizer().encode(text, {.parse_special = true, .add_template = adds}))
    ids.push_back(id);
  call.reply->answer_json(
      Json::object(
          {{"count", static_cast<int64_t>(ids.size())}, {"max_model_len", model.limit}, {"tokens", ids}})
          .dump());
}

void detokenize(const Call& call) {
  Fields fields(call.request);
  const ServedModel& model = call.model_named(fields.required_text("model"));
  const Json& list = fields.required("tokens");
  if (!list.is_array()) fields.refuse("tokens", "an array of integers");
  constexpr size_t kMostTokens = kMostText / 4;
  if (list.size() > kMostTokens)
    throw ApiError(413, concat("tokens must be at most ", kMostTokens, ", got ", list.size()), "tokens");
  std::vector<int32_t> ids;
  for (const Json& id : list.items()) {
    if (!id.is_integer() || id.as_int() < 0 || id.as_int() >= model.model.tokenizer().vocab_size()) {
      throw ApiError(400,
                     concat("tokens must be integers below ", model.model.tokenizer().vocab_size(), ", got ",
                            quote(id.dump(), 60)),
                     "tokens");
    }
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  fields.finish();
  const std::string text = valid_utf8(model.model.tokenizer().decode(ids));
  call.reply->answer_json(Json::object({{"prompt", text}, {"content", text}}).dump());
}

void greet(const Call& call) {
  call.reply->answer(200, "text/plain", concat("multihead ", version(), " is running\n"));
}

void metrics(const Call& call) {
  std::string text =
      "# HELP multihead_answers_total Answers, by the first digit of their status.\n"
      "# TYPE multihead_answers_total counter\n";
  for (size_t digit = 1; digit < call.service.statuses.size(); ++digit) {
    text += concat("multihead_answers_total{status=\"", digit, "xx\"} ", call.service.statuses[digit].load(),
                   "\n");
  }
  const auto add = [&](const char* name, const char* type, const char* help, auto value_of) {
    text += concat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
    for (const ServedModel& model : call.service.models) {
      text += concat(name, "{model=\"", label_value(model.model.name), "\"} ", value_of(model), "\n");
    }
  };
  add("multihead_requests_active", "gauge", "Requests that wait or are worked on.",
      [](const ServedModel& model) { return model.jobs.load(); });
  add("multihead_prompt_tokens_total", "counter", "Tokens read, of answered requests.",
      [](const ServedModel& model) { return model.prompt_tokens.load(); });
  add("multihead_new_tokens_total", "counter", "Tokens written, of answered requests.",
      [](const ServedModel& model) { return model.new_tokens.load(); });
  call.reply->answer(200, "text/plain; version=0.0.4", text);
}

}  // namespace multihead::serve
