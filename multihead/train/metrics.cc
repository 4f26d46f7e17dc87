#include "multihead/train/metrics.h"

#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/files.h"

namespace multihead::train {
namespace {

const std::vector<std::string> kColumns = {"step",
                                           "tokens",
                                           "seconds",
                                           "train/loss",
                                           "train/learning_rate",
                                           "train/grad_norm",
                                           "train/tokens_per_second",
                                           "eval/loss",
                                           "eval/perplexity"};

std::string csv_header() {
  std::string line;
  for (const std::string& column : kColumns) line += (line.empty() ? "" : ",") + column;
  return line + "\n";
}

std::string csv_line(const Json& json) {
  std::string line;
  for (size_t i = 0; i < kColumns.size(); ++i) {
    const Json* value = json.find(kColumns[i]);
    if (i > 0) line += ',';
    if (value != nullptr) line += value->dump();
  }
  return line + "\n";
}

// The lines up to `step` of an earlier process; a last line cut short by a kill is no JSON and goes, too.
std::vector<Json> lines_until(const std::string& path, int64_t step) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    try {
      Json json = Json::parse(line);
      const Json* at = json.find("step");
      if (at != nullptr && at->is_integer() && at->as_int() <= step) lines.push_back(std::move(json));
    } catch (const FormatError&) {
    }
  }
  return lines;
}

}  // namespace

MetricsWriter::MetricsWriter(std::string folder, Observer* warnings)
    : folder_(std::move(folder)), warnings_(warnings) {}

void MetricsWriter::on_start(int64_t step, int64_t) {
  const std::string jsonl = folder_ + "/metrics.jsonl", csv = folder_ + "/metrics.csv";
  std::string jsonl_text, csv_text = csv_header();
  if (step > 0) {
    for (const Json& line : lines_until(jsonl, step)) {
      jsonl_text += line.dump() + "\n";
      csv_text += csv_line(line);
    }
  }
  try {
    write_file_atomically(jsonl, jsonl_text);
    write_file_atomically(csv, csv_text);
  } catch (const IoError& error) {
    if (warnings_ != nullptr) warnings_->on_warning(error.what());
    failed_ = true;
    return;
  }
  jsonl_.open(jsonl, std::ios::app);
  csv_.open(csv, std::ios::app);
}

void MetricsWriter::on_step(const StepReport& r) {
  append(Json::object({{"step", r.step},
                       {"tokens", r.tokens},
                       {"seconds", r.seconds},
                       {"train/loss", r.loss},
                       {"train/learning_rate", r.learning_rate},
                       {"train/grad_norm", r.grad_norm},
                       {"train/tokens_per_second", r.tokens_per_second}}));
}

void MetricsWriter::on_evaluation(const EvalReport& r) {
  append(Json::object({{"step", r.step}, {"eval/loss", r.loss}, {"eval/perplexity", r.perplexity()}}));
}

void MetricsWriter::append(const Json& line) {
  if (failed_) return;
  jsonl_ << line.dump() << '\n' << std::flush;
  csv_ << csv_line(line) << std::flush;
  if (jsonl_ && csv_) return;
  failed_ = true;
  if (warnings_ != nullptr) warnings_->on_warning(folder_ + ": metrics can no longer be written");
}

}  // namespace multihead::train
