#include "multihead/train/metrics.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/io/staging.h"
#include "multihead/train/run_folder.h"

namespace multihead::train {
namespace {

const std::vector<std::string> kColumns = {
    // of every report
    "step", "tokens", "seconds",
    // of steps
    "train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_second",
    // of evaluations
    "eval/loss", "eval/perplexity"};

std::string csv_header(const std::vector<std::string>& columns) {
  std::string line;
  for (const std::string& column : columns) line += (line.empty() ? "" : ",") + column;
  return line + "\n";
}

std::string csv_line(const std::vector<std::string>& columns, const Json& json) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    const Json* value = json.find(columns[i]);
    if (i > 0) line += ',';
    if (value != nullptr && !value->is_null()) line += value->dump();
  }
  return line + "\n";
}

// A correlation tells that the loss is one of numbers, whose exponential is no perplexity.
bool has_perplexity(const EvalReport& r) {
  return std::ranges::find(r.metrics, "pearson", &Figures::value_type::first) == r.metrics.end();
}

// A run reports less in years; a larger file is none of ours.
constexpr uint64_t kLargestMetrics = uint64_t{1} << 28;

// The lines up to `step` of an earlier process; a last line cut short by a kill is no JSON and goes, too.
void for_lines_until(const std::string& path, int64_t step, const std::function<void(const Json&)>& use) {
  if (node_at(path) == Node::absent) return;
  const std::string text = read_file(path, kLargestMetrics, Links::refuse);
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Json json;
    try {
      json = Json::parse(text.substr(begin, end - begin));
    } catch (const FormatError&) {
      continue;
    }
    const Json* at = json.is_object() ? json.find("step") : nullptr;
    if (at != nullptr && at->is_integer() && at->as_int() <= step) use(json);
  }
}

}  // namespace

MetricsWriter::MetricsWriter(std::string folder, Observer* warnings)
    : folder_(std::move(folder)), warnings_(warnings) {}

void MetricsWriter::on_start(int64_t step, int64_t) {
  try {
    open(step);
  } catch (const std::runtime_error& error) {
    give_up(error.what());
  }
}

// The new files take the place of the old ones while they are open: what is appended never goes by the name.
void MetricsWriter::open(int64_t step) {
  const io::Staging staging(folder_);
  jsonl_ = std::make_unique<FileWriter>(staging / kMetricsFile);
  csv_ = std::make_unique<FileWriter>(staging / kMetricsTable);
  columns_.clear();
  if (step > 0) for_lines_until(folder_ + "/" + kMetricsFile, step, [&](const Json& line) { write(line); });
  for (FileWriter* file : {jsonl_.get(), csv_.get()}) file->flush();
  for (const char* name : {kMetricsFile, kMetricsTable}) staging.publish(name);
  flush_folder(folder_);
}

void MetricsWriter::on_step(const StepReport& r) {
  append(Json::object({{"step", r.step},
                       {"tokens", r.tokens},
                       {"seconds", r.seconds},
                       {"train/loss", number_or_null(r.loss)},
                       {"train/learning_rate", r.learning_rate},
                       {"train/grad_norm", number_or_null(r.grad_norm)},
                       {"train/tokens_per_second", r.tokens_per_second}}));
}

// A run that was stopped within an evaluation and killed after it was resumed may evaluate the same step again.
void MetricsWriter::on_evaluation(const EvalReport& r) {
  if (r.step == evaluated_step_) return;
  Json line = Json::object({{"step", r.step}, {"eval/loss", r.loss}});
  if (has_perplexity(r)) line["eval/perplexity"] = number_or_null(r.perplexity());
  for (const auto& [name, value] : r.metrics) line["eval/" + name] = number_or_null(value);
  append(line);
}

void MetricsWriter::append(const Json& line) {
  if (jsonl_ == nullptr) return;
  try {
    write(line);
  } catch (const IoError& error) {
    give_up(error.what());
  }
}

// The table's columns are known from the first line: a run that evaluates does so before its first step.
void MetricsWriter::write(const Json& line) {
  if (columns_.empty()) {
    columns_ = kColumns;
    for (const JsonMember& m : line.members()) {
      const std::string name(m.key);
      if (name.starts_with("eval/") && std::ranges::find(columns_, name) == columns_.end())
        columns_.push_back(name);
    }
    csv_->write(csv_header(columns_));
  }
  if (line.contains("eval/loss")) evaluated_step_ = line.at("step").as_int();
  jsonl_->write(line.dump() + "\n");
  csv_->write(csv_line(columns_, line));
}

void MetricsWriter::give_up(const std::string& why) {
  jsonl_.reset();
  csv_.reset();
  if (warnings_ != nullptr) {
    warnings_->on_warning(concat(folder_, ": metrics can no longer be written: ", why));
  }
}

}  // namespace multihead::train
