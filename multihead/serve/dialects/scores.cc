// Reranking as Cohere, Jina and text-embeddings-inference ask for it, and the latter's other paths.
#include <algorithm>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/version.h"
#include "multihead/serve/dialects/dialects-inl.h"

namespace multihead::serve {
namespace {

std::string tei_body(const ApiError& error) {
  const char* type = error.status() == 429 ? "overloaded" : error.status() >= 500 ? "backend" : "validation";
  return Json::object({{"error", valid_utf8(error.what())}, {"error_type", type}}).dump();
}

bool ranks(const embed::TextClassifier& classifier) { return classifier.num_labels() == 1; }

// The model that a request names, else the first that can do it.
template <class Kind>
ServedModel& model_or_first(
    const Call& call, Fields& fields, bool (*can)(const Kind&) = [](const Kind&) { return true; }) {
  if (fields.find("model") != nullptr) return call.model_named(fields.text("model"));
  for (ServedModel& model : call.service.models) {
    const Kind* const kind = std::get_if<Kind>(&model.model.any);
    if (kind != nullptr && can(*kind)) return model;
  }
  throw ApiError(404, "none of the served models can do this", "model", "model_not_found");
}

// A document is a text, or an object that holds one.
std::vector<std::string> read_documents(Fields& fields, const std::string& key, int64_t most) {
  const Json& list = fields.required(key);
  if (!list.is_array() || list.size() == 0 || std::ssize(list.items()) > most)
    throw ApiError(400, concat(key, " must be an array of 1 to ", most, " texts"), key);
  std::vector<std::string> documents;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& item = list.at(i);
    if (item.is_string()) {
      documents.push_back(item.as_string());
      continue;
    }
    Fields document(item, concat(key, "[", i, "]."));
    documents.push_back(document.required_text("text"));
    document.finish();
  }
  return documents;
}

// What texts are embedded for: `task`, or that dialect's name for one of an encoder whose tasks are its prompts.
std::string read_task_or_prompt(Fields& fields, const ServedModel& model) {
  const std::string name = fields.text("prompt_name"), task = read_task(fields, model);
  if (name.empty()) return task;
  const embed::SentenceEncoder& encoder = model.encoder();
  if (!task.empty()) throw ApiError(400, "give task or prompt_name, not both", "prompt_name");
  if (encoder.prompts().contains(name) && encoder.tasks().contains(name)) return name;
  throw ApiError(400,
                 concat("the model ", quote(model.model.name), " has no prompt_name ", quote(name, 80),
                        "; give task, one of ", Enumeration(encoder.tasks())),
                 "prompt_name");
}

struct RerankForm {
  bool is_tei = false, shows_texts = false, is_raw = false;
  int64_t top = 0;
  std::vector<std::string> documents = {};
};

// The places of the largest scores, largest first, of equal ones the first.
std::vector<size_t> best_places(std::span<const float> scores, int64_t count) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (count > 0) order.resize(std::min(order.size(), static_cast<size_t>(count)));
  return order;
}

Json ranking(const RerankForm& form, std::span<const float> scores) {
  Json list = Json::array();
  for (const size_t place : best_places(scores, form.top)) {
    Json one = Json::object({{"index", static_cast<int64_t>(place)}});
    one[form.is_tei ? "score" : "relevance_score"] = scores[place];
    if (form.shows_texts && form.is_tei) one["text"] = form.documents[place];
    if (form.shows_texts && !form.is_tei) one["document"] = Json::object({{"text", form.documents[place]}});
    list.push_back(std::move(one));
  }
  return list;
}

// Labels of a text, the likeliest first.
Json labels_json(const embed::TextClassifier& classifier, std::span<const float> scores) {
  Json list = Json::array();
  for (const size_t place : best_places(scores, 0)) {
    list.push_back(Json::object(
        {{"score", scores[place]}, {"label", valid_utf8(classifier.label(static_cast<int64_t>(place)))}}));
  }
  return list;
}

// A text, or two that are read together.
void add_input(const Json& item, const std::string& place, ScoreJob& job) {
  const bool fits = item.is_array() && (item.size() == 1 || item.size() == 2) &&
                    std::ranges::all_of(item.items(), [](const Json& text) { return text.is_string(); });
  if (!fits) throw ApiError(400, concat(place, " must hold a text or two"), "inputs");
  const bool is_pair = item.size() == 2;
  if (is_pair ? !job.texts.empty() : !job.pairs.empty())
    throw ApiError(400, "inputs must be texts or pairs of texts, not both", "inputs");
  if (is_pair) {
    job.pairs.emplace_back(item.at(size_t{0}).as_string(), item.at(1).as_string());
  } else {
    job.texts.push_back(item.at(size_t{0}).as_string());
  }
}

}  // namespace

const ErrorStyle kTeiErrors = {tei_body, tei_body};

void rerank(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = model_or_first<embed::TextClassifier>(call, fields, ranks);
  const embed::TextClassifier& classifier = model.classifier();
  if (!ranks(classifier)) {
    throw ApiError(400,
                   concat("the model ", quote(model.model.name), " has ", classifier.num_labels(),
                          " labels; ranking needs one"),
                   "model");
  }
  RerankForm form = {.is_tei = call.request.path == "/rerank" && fields.find("texts") != nullptr};
  const std::string query = fields.required_text("query");
  const int64_t most = call.service.options.max_inputs;
  ScoreJob job;
  job.member = form.is_tei ? "texts" : "documents";
  form.documents = read_documents(fields, job.member, most);
  form.shows_texts = fields.boolean(form.is_tei ? "return_text" : "return_documents", false);
  job.truncates = fields.boolean("truncate", !form.is_tei);
  form.top = fields.integer("top_n", 0, 1, std::numeric_limits<int64_t>::max());
  if (form.is_tei) {
    form.is_raw = fields.boolean("raw_scores", false);
    fields.only("truncation_direction", {Json("Right"), Json("right")});
  }
  fields.finish();
  job.reply = call.reply;
  for (const std::string& document : form.documents) job.pairs.emplace_back(query, document);
  job.finish = [reply = call.reply, &model, form](const Tensor& logits, const Usage& usage) {
    const bool squashes = form.is_tei ? !form.is_raw : model.classifier().has_sigmoid();
    const Tensor scores = squashes ? embed::label_probabilities(logits) : logits;
    const Json list = ranking(form, {scores.data<float>(), static_cast<size_t>(scores.numel())});
    count_usage(model, *reply, usage);
    if (form.is_tei) {
      reply->answer_json(list.dump());
      return;
    }
    const Json counts =
        Json::object({{"total_tokens", usage.total()}, {"prompt_tokens", usage.prompt_tokens}});
    reply->answer_json(
        Json::object(
            {{"id", fresh_id("rerank-")}, {"model", model.model.name}, {"results", list}, {"usage", counts}})
            .dump());
  };
  call.service.submit(model, std::move(job));
}

void tei_embed(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = model_or_first<embed::SentenceEncoder>(call, fields);
  EmbedJob job;
  job.reply = call.reply;
  job.member = "inputs";
  job.inputs = read_inputs(fields.required(job.member), job.member, call.service.options.max_inputs);
  job.task = read_task_or_prompt(fields, model);
  job.has_unit_length = fields.boolean("normalize", true);
  if (!*job.has_unit_length && model.encoder().normalizes())
    throw ApiError(400, "normalize is supported only as true: the model scales its vectors to length 1",
                   "normalize");
  job.truncates = fields.boolean("truncate", false);
  job.dimensions = fields.integer("dimensions", 0, 1, model.encoder().dim());
  fields.only("truncation_direction", {Json("Right"), Json("right")});
  fields.finish();
  job.finish = [reply = call.reply, &model](std::span<const float> vectors, int64_t width,
                                            const Usage& usage) {
    count_usage(model, *reply, usage);
    reply->answer_json(json_rows(vectors, width));
  };
  call.service.submit(model, std::move(job));
}

void tei_predict(const Call& call) {
  Fields fields(call.request);
  ServedModel& model = model_or_first<embed::TextClassifier>(call, fields);
  ScoreJob job;
  job.reply = call.reply;
  const Json& inputs = fields.required("inputs");
  const bool is_batch = inputs.is_array() && inputs.size() > 0 && inputs.at(size_t{0}).is_array();
  if (is_batch && std::ssize(inputs.items()) > call.service.options.max_inputs)
    throw ApiError(
        400, concat("inputs has ", inputs.size(), " texts, the limit is ", call.service.options.max_inputs),
        "inputs");
  if (is_batch) {
    for (size_t i = 0; i < inputs.size(); ++i) add_input(inputs.at(i), concat("inputs[", i, "]"), job);
  } else {
    add_input(inputs.is_string() ? Json(std::vector<Json>{inputs}) : inputs, "inputs", job);
  }
  const bool is_raw = fields.boolean("raw_scores", false);
  job.truncates = fields.boolean("truncate", false);
  fields.only("truncation_direction", {Json("Right"), Json("right")});
  fields.only("parameters", {Json::object()});  // which Hugging Face's client sends
  fields.finish();
  model.classifier();
  job.finish = [reply = call.reply, &model, is_raw, is_batch](const Tensor& logits, const Usage& usage) {
    count_usage(model, *reply, usage);
    const embed::TextClassifier& classifier = model.classifier();
    const Tensor scores = is_raw ? logits : classifier.scores(logits);
    const auto labels = static_cast<size_t>(classifier.num_labels());
    Json list = Json::array();
    for (size_t at = 0; at < static_cast<size_t>(scores.numel()); at += labels) {
      list.push_back(labels_json(classifier, {scores.data<float>() + at, labels}));
    }
    reply->answer_json(is_batch ? list.dump() : list.at(size_t{0}).dump());
  };
  call.service.submit(model, std::move(job));
}

void tei_info(const Call& call) {
  // That dialect knows no texts that go on: the first model that reads some is described.
  const auto& models = call.service.models;
  const auto found = std::find_if(models.begin(), models.end(), [](const ServedModel& model) {
    return !std::holds_alternative<Writer>(model.model.any);
  });
  if (found == models.end())
    throw ApiError(404, "only language models are served, see /v1/models", "", "model_not_found");
  const ServedModel& model = *found;
  Json type = Json::object();
  if (const auto* classifier = std::get_if<embed::TextClassifier>(&model.model.any)) {
    Json names = Json::object();
    for (int64_t i = 0; i < classifier->num_labels(); ++i)
      names[std::to_string(i)] = valid_utf8(classifier->label(i));
    type[ranks(*classifier) ? "reranker" : "classifier"] = Json::object({{"id2label", names}});
  } else {
    type["embedding"] = Json::object();
  }
  call.reply->answer_json(Json::object({{"model_id", model.model.name},
                                        {"model_type", type},
                                        {"max_input_length", model.limit},
                                        {"max_client_batch_size", call.service.options.max_inputs},
                                        {"max_concurrent_requests", call.service.options.max_queue},
                                        {"auto_truncate", false},
                                        {"version", version()}})
                              .dump());
}

}  // namespace multihead::serve
