// The description of all paths that programs read: /openapi.json (OpenAPI 3.1).
#include <string>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/version.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

// Schemas of members of requests; a name that means different things to different paths has several.
constexpr const char* kMembers = R"({
  "any": {},
  "text": {"type": "string"},
  "flag": {"type": ["boolean", "null"]},
  "texts": {"type": ["string", "array"], "items": {"type": "string"}, "maxItems": 16},
  "inputs": {"type": ["string", "array"], "minItems": 1,
    "items": {"type": ["string", "integer", "array"], "items": {"type": "integer"}}},
  "documents": {"type": "array", "minItems": 1, "items": {"type": ["string", "object"],
    "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": false}},
  "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"], "properties": {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
    "content": {"type": ["string", "array", "null"], "items": {"type": "object", "required": ["text"],
      "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}},
    "tool_calls": {"type": "array", "items": {"type": "object"}},
    "tool_call_id": {"type": "string"}, "tool_name": {"type": "string"}, "name": {"type": "string"}}}},
  "items": {"type": ["string", "array"], "minItems": 1, "items": {"type": "object"}},
  "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
  "positive": {"type": ["integer", "null"], "minimum": 1, "maximum": 1073741824},
  "natural": {"type": ["integer", "null"], "minimum": 0, "maximum": 1073741824},
  "object": {"type": ["object", "null"]},
  "empty": {"type": ["object", "null"], "maxProperties": 0},
  "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
  "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
  "top_k": {"type": ["integer", "null"], "minimum": -1, "maximum": 1073741824},
  "fraction": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
  "repetition": {"type": ["number", "null"], "minimum": 0.01, "maximum": 100},
  "penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2},
  "seed": {"type": ["integer", "null"]},
  "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 128},
  "top": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
  "one": {"const": 1}, "nothing": {"const": ""}, "true": {"const": true}, "false": {"const": false}, "none": {"maxItems": 0},
  "zero": {"const": 0},
  "bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
  "stream_options": {"type": ["object", "null"], "additionalProperties": false,
    "properties": {"include_usage": {"type": "boolean"}, "include_obfuscation": {"const": false}}},
  "response_format": {"type": "object", "required": ["type"],
    "properties": {"type": {"enum": ["text", "json_object", "json_schema", "regex", "grammar"]}}},
  "format": {"type": ["string", "object"]},
  "encoding": {"enum": ["float", "base64"]},
  "tools": {"type": "array", "maxItems": 128, "items": {"type": "object", "required": ["type"]}},
  "tool_choice": {"type": ["string", "object"]},
  "modalities": {"const": ["text"]}, "tier": {"enum": ["auto", "default"]}, "side": {"enum": ["Right", "right"]},
  "disabled": {"const": "disabled"}
})";

struct Body {
  std::string_view path;
  std::string_view members;  ///< NAME:SCHEMA, with an exclamation mark if it must be there
};

#define MH_SAMPLING                                                                                         \
  "temperature:temperature top_p:top_p top_k:top_k min_p:fraction repetition_penalty:repetition seed:seed " \
  "stop:texts "
#define MH_COMMON                                                                                     \
  MH_SAMPLING                                                                                         \
  "n:n stream:flag stream_options:stream_options frequency_penalty:penalty presence_penalty:penalty " \
  "logit_bias:bias max_tokens:positive response_format:response_format user:any metadata:any "        \
  "safety_identifier:any prompt_cache_key:any "
#define MH_OLLAMA                                                                                 \
  "model!:model stream:flag options:object format:format think:false images:none suffix:nothing " \
  "template:nothing "                                                                             \
  "logprobs:false top_logprobs:zero keep_alive:any "

constexpr Body kBodies[] = {
    {"/v1/embeddings",
     "model!:model input!:inputs task:text truncate:flag dimensions:positive encoding_format:encoding "
     "user:any"},
    {"/v1/completions",
     "model!:model prompt!:inputs echo:flag logprobs:top suffix:nothing best_of:one " MH_COMMON},
    {"/v1/chat/completions",
     "model!:model messages!:messages max_completion_tokens:positive logprobs:flag top_logprobs:top "
     "modalities:modalities store:false service_tier:tier tools:tools tool_choice:tool_choice "
     "parallel_tool_calls:flag chat_template_kwargs:object " MH_COMMON},
    {"/v1/responses",
     "model!:model input!:items instructions:text max_output_tokens:positive stream:flag text:object "
     "tools:tools "
     "tool_choice:tool_choice parallel_tool_calls:flag store:flag background:false truncation:disabled "
     "include:none "
     "service_tier:tier top_logprobs:zero user:any metadata:any safety_identifier:any "
     "prompt_cache_key:any " MH_SAMPLING},
    {"/v1/rerank",
     "model:model query!:text documents!:documents top_n:positive return_documents:flag truncate:flag"},
    {"/v2/rerank",
     "model:model query!:text documents!:documents top_n:positive return_documents:flag truncate:flag"},
    {"/rerank",
     "model:model query!:text texts:documents documents:documents raw_scores:flag return_text:flag "
     "top_n:positive "
     "return_documents:flag truncate:flag truncation_direction:side"},
    {"/embed",
     "model:model inputs!:inputs task:text prompt_name:text normalize:true truncate:flag dimensions:positive "
     "truncation_direction:side"},
    {"/predict",
     "model:model inputs!:inputs raw_scores:flag truncate:flag truncation_direction:side parameters:empty"},
    {"/api/show", "model!:model verbose:any"},
    {"/api/embed",
     "model!:model input!:inputs task:text truncate:flag dimensions:positive options:object keep_alive:any"},
    {"/api/embeddings", "model!:model prompt!:text task:text options:object keep_alive:any"},
    {"/api/chat",
     "messages!:messages tools:tools tool_choice:tool_choice parallel_tool_calls:flag " MH_OLLAMA},
    {"/api/generate", "prompt:text system:text raw:flag context:none " MH_OLLAMA},
    {"/tokenize", "model!:model content:text prompt:text add_special_tokens:flag"},
    {"/detokenize", "model!:model tokens!:tokens"},
};

#undef MH_SAMPLING
#undef MH_COMMON
#undef MH_OLLAMA

// One of the served models.
Json model_schema(const Call& call) {
  Json names = Json::array();
  for (const ServedModel& model : call.service.models) names.push_back(model.model.name);
  return Json::object({{"type", "string"}, {"enum", names}});
}

struct Member {
  std::string_view name, schema;
  bool is_required = false;
};

// Takes the first member of a list.
Member take_member(std::string_view& list) {
  const std::string_view word = list.substr(0, list.find(' '));
  list.remove_prefix(std::min(list.size(), word.size() + 1));
  const size_t colon = word.find(':');
  Member member = {word.substr(0, colon), word.substr(colon + 1), word[colon - 1] == '!'};
  if (member.is_required) member.name.remove_suffix(1);
  return member;
}

Json body_schema(std::string_view list, const Json& model) {
  static const Json members = Json::parse(kMembers);
  Json properties = Json::object(), required = Json::array();
  while (!list.empty()) {
    const Member member = take_member(list);
    if (member.is_required) required.push_back(member.name);
    properties[member.name] = member.schema == "model" ? model : members.at(member.schema);
  }
  return Json::object({{"type", "object"},
                       {"properties", properties},
                       {"required", required},
                       {"additionalProperties", false}});
}

Json json_content(Json schema) {
  return Json::object({{"application/json", Json::object({{"schema", std::move(schema)}})}});
}

Json operation(const Route& route, const Json& model) {
  Json answered = Json::object({{"description", "The answer."}});
  const std::string_view path = route.path;
  const bool is_text = path == "/metrics" || path == "/";
  answered["content"] =
      is_text ? Json::object({{"text/plain", Json::object()}}) : json_content(Json::object());
  const Json refused = Json::object(
      {{"description", "What is wrong, and with which member."}, {"content", json_content(Json::object())}});
  Json all = Json::object({{"responses", Json::object({{"200", answered}, {"default", refused}})}});
  for (const Body& body : kBodies) {
    if (body.path != route.path) continue;
    all["requestBody"] =
        Json::object({{"required", true}, {"content", json_content(body_schema(body.members, model))}});
    const bool may_stream = body.members.find("stream:") != std::string_view::npos;
    const char* events =
        std::string_view(route.path).starts_with("/api/") ? "application/x-ndjson" : "text/event-stream";
    if (may_stream) all["responses"]["200"]["content"][events] = Json::object();
  }
  if (route.is_open) all["security"] = Json::array();
  return all;
}

}  // namespace

bool is_described(std::string_view path, std::string_view member) {
  for (const Body& body : kBodies) {
    if (body.path != path) continue;
    for (std::string_view list = body.members; !list.empty();) {
      if (take_member(list).name == member) return true;
    }
  }
  return false;
}

void openapi(const Call& call) {
  Json paths = Json::object();
  const Json model = model_schema(call);
  for (const Route& route : routes()) {
    std::string path = route.path, method = route.method;
    for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
    Json own = operation(route, model);
    if (path.ends_with('*')) {
      path.replace(path.size() - 1, 1, "{model}");
      own["parameters"] = Json(std::vector<Json>{
          Json::object({{"name", "model"}, {"in", "path"}, {"required", true}, {"schema", model}})});
    }
    paths[path][method] = std::move(own);
  }
  const Json bearer = Json::object({{"type", "http"}, {"scheme", "bearer"}});
  call.reply->answer_json(
      Json::object({{"openapi", "3.1.0"},
                    {"info", Json::object({{"title", "multihead serve"}, {"version", version()}})},
                    {"paths", paths},
                    {"security", Json(std::vector<Json>{Json::object({{"key", Json::array()}})})},
                    {"components", Json::object({{"securitySchemes", Json::object({{"key", bearer}})}})}})
          .dump());
}

}  // namespace multihead::serve
