// Who answers what: the functions that the table of routes names. Private to serve/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "multihead/serve/fields-inl.h"
#include "multihead/serve/service-inl.h"
#include "multihead/text/chat/tool_calls.h"

namespace multihead::serve {

void health(const Call& call);
void list_models(const Call& call);
void show_model(const Call& call);
void openai_embeddings(const Call& call);
void openai_completions(const Call& call);
void openai_chat(const Call& call);
void openai_responses(const Call& call);
void rerank(const Call& call);
void tei_embed(const Call& call);
void tei_predict(const Call& call);
void tei_info(const Call& call);
void ollama_tags(const Call& call);
void ollama_show(const Call& call);
void ollama_version(const Call& call);
void ollama_embed(const Call& call);
void ollama_embedding(const Call& call);
void ollama_ps(const Call& call);
void ollama_chat(const Call& call);
void ollama_generate(const Call& call);
void tokenize(const Call& call);
void detokenize(const Call& call);
void metrics(const Call& call);
/// Says that something answers, which Ollama's programs ask first.
void greet(const Call& call);
void openapi(const Call& call);
extern const ErrorStyle kTeiErrors, kOllamaErrors;

/// Reads the members that every way of asking for text has, on top of the folder's defaults: temperature, top_p, top_k, min_p, the repetition penalty under its name there, seed, stop.
void read_sampling(Fields& fields, const Writer& writer, GenerationJob& job,
                   const char* repetition = "repetition_penalty");
/// The messages of a chat as its template gets them. Throws ApiError naming what it does not support.
Json read_messages(const Json& messages, const std::string& place);
/// Reads logit_bias: {"TOKEN": BIAS}.
void read_logit_bias(Fields& fields, const Writer& writer, GenerationJob& job);
/// Reads response_format: text, json_object, json_schema; beyond OpenAI's: regex, grammar.
void read_response_format(Fields& fields, GenerationJob& job);
/// Holds the answer to a JSON schema; `param` is to blame for what is not supported in it.
void set_schema(GenerationJob& job, const Json& schema, const std::string& param);

/// The functions that a model may call.
struct ToolRequest {
  std::optional<text::ToolStyle> style = {};  ///< none: no calls
  Json tools = Json::array();                 ///< as OpenAI's chat has them
  std::vector<Json> functions = {};           ///< those that may be called
  bool must_call = false, is_strict = false;
  bool only_one = false;  ///< call: parallel_tool_calls is false
};
/// Reads tools, tool_choice, parallel_tool_calls; `is_flat`: as /v1/responses has them. Throws ApiError.
ToolRequest read_tools(Fields& fields, const ServedModel& model, bool is_flat);
/// The job's prompt by the model's chat template, and what it may answer. Throws ApiError.
void set_chat(const ServedModel& model, Json messages, Json variables, ToolRequest tools, GenerationJob& job);
/// Answers end where a turn of the model's chat template does. Throws ApiError without a template, saying what to use
/// `instead`.
void end_with_turns(const ServedModel& model, const char* instead, GenerationJob& job);
/// Counts a request that is answered.
void count_usage(ServedModel& model, Reply& reply, const Usage& usage);
/// Calls in an assistant's message, as the templates want them. Throws ApiError.
Json read_tool_calls(const Json& calls, const std::string& place);
/// The inputs of an embedding request: a text, tokens, or several of either.
std::vector<EmbedJob::Input> read_inputs(const Json& json, const std::string& place, int64_t most);
/// Reads task, what the texts of an embedding request are for. Throws ApiError that lists the model's tasks.
std::string read_task(Fields& fields, const ServedModel& model);

/// Numbers in the fewest digits that read back as the same floats.
std::string json_array(std::span<const float> numbers);
std::string json_rows(std::span<const float> numbers, int64_t width);
std::string base64(std::span<const float> numbers);

}  // namespace multihead::serve
