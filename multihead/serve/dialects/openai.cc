// OpenAI's lists of models and embeddings, and the server's health.
#include "multihead/core/error.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

Json model_json(const ServedModel& model) {
  return Json::object({{"id", model.model.name},
                       {"object", "model"},
                       {"created", model.model.created},
                       {"owned_by", "multihead"},
                       {"kind", model.model.kind()},
                       {"max_model_len", model.limit}});
}

}  // namespace

void health(const Call& call) { call.reply->answer_json(R"({"status":"ok"})"); }

void list_models(const Call& call) {
  Json list = Json::array();
  for (const ServedModel& model : call.service.models) list.push_back(model_json(model));
  call.reply->answer_json(Json::object({{"object", "list"}, {"data", list}}).dump());
}

void show_model(const Call& call) {
  constexpr std::string_view kPath = "/v1/models/";
  call.reply->answer_json(model_json(call.model_named(call.request.path.substr(kPath.size()))).dump());
}

void openai_embeddings(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = call.model_named(fields.required_text("model"));
  const int64_t width = model.encoder().dim();
  EmbedJob job;
  job.reply = call.reply;
  job.inputs = read_inputs(fields.required("input"), "input", call.service.options.max_inputs);
  job.task = read_task(fields, model);
  job.truncates = fields.boolean("truncate", false);
  job.dimensions = fields.integer("dimensions", 0, 1, width);
  const std::string format = fields.text("encoding_format", "float");
  if (format != "float" && format != "base64") fields.refuse("encoding_format", "float or base64");
  fields.ignore({"user"});
  fields.finish();
  job.finish = [reply = call.reply, &model, format](std::span<const float> vectors, int64_t columns,
                                                    const Usage& usage) {
    std::string data;
    const auto size = static_cast<size_t>(columns);
    for (size_t i = 0; i * size < vectors.size(); ++i) {
      const auto row = vectors.subspan(i * size, size);
      data += concat(i > 0 ? "," : "", R"({"object":"embedding","index":)", i, R"(,"embedding":)");
      data += format == "base64" ? '"' + base64(row) + "\"}" : json_array(row) + "}";
    }
    count_usage(model, *reply, usage);
    reply->answer_json(concat(R"({"object":"list","data":[)", data, R"(],"model":)",
                              Json(model.model.name).dump(), R"(,"usage":{"prompt_tokens":)",
                              usage.prompt_tokens, R"(,"total_tokens":)", usage.total(), "}}"));
  };
  call.service.submit(model, std::move(job));
}

}  // namespace multihead::serve
