#include "multihead/train/run_folder.h"

#include <algorithm>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/io/json.h"
#include "multihead/io/staging.h"

namespace multihead::train {
namespace {

namespace fs = std::filesystem;

// Known to be the run's by train_config.json beside them. The model's files are known by their manifest.
constexpr const char* kOwnFiles[] = {io::kRunFile, kMetricsFile, kMetricsTable, kSummaryFile};

// The record of the run in the folder; null: there is none.
Json record_in(const std::string& folder) {
  const std::string path = io::join(folder, io::kRunFile);
  if (node_at(path) != Node::file) return {};
  try {
    Json record = Json::parse(read_file(path, uint64_t{16} << 20, Links::refuse), path);
    if (record.is_object() && record.contains("data") && record.contains("settings")) return record;
  } catch (const FormatError&) {
  }
  return {};
}

// The number of the run in the folder; "": one of an earlier version, whose records had none. None: no run.
std::optional<std::string> run_in(const std::string& folder) {
  const Json record = record_in(folder);
  if (record.is_null()) return std::nullopt;
  const Json* number = record.find("run");
  if (number == nullptr) return "";
  if (number->is_string() && io::is_id(number->as_string())) return number->as_string();
  return std::nullopt;
}

std::vector<std::string> foreign_own_files(const std::string& folder, bool has_run) {
  std::vector<std::string> foreign;
  for (const char* name : kOwnFiles) {
    const Node node = node_at(io::join(folder, name));
    if (node == Node::absent || (node == Node::file && has_run)) continue;
    const std::string reason =
        node == Node::file ? "was not written by a run here" : io::not_a_file(io::join(folder, name));
    foreign.push_back(concat(quote(name), " ", reason));
  }
  return foreign;
}

std::vector<std::string> foreign_model(const std::string& folder, const std::string& run, io::Look look) {
  // Earlier versions wrote no manifest: its record stands for the files, as long as they are files.
  const bool has_manifest = node_at(io::join(folder, io::Manifest::kFile)) != Node::absent;
  if (run.empty() && !has_manifest) {
    std::vector<std::string> foreign;
    for (const std::string& name : io::kModelFolderFiles) {
      const std::string reason = io::not_a_file(io::join(folder, name));
      if (!reason.empty()) foreign.push_back(concat(quote(name), " ", reason));
    }
    return foreign;
  }
  std::vector<std::string> foreign = io::foreign_files(folder, io::kModelFolderFiles, look);
  if (has_manifest && foreign.empty() && io::read_manifest(folder).run != run) {
    foreign.push_back(concat("files listed in ", quote(io::Manifest::kFile), " do not belong to the run"));
  }
  return foreign;
}

// Everything that has a name of a run without belonging to this one. Without a run, to a new one.
std::vector<std::string> foreign_contents(const std::string& folder, const std::optional<std::string>& run,
                                          io::Look look) {
  const std::string number = run ? *run : io::random_id();
  std::vector<std::string> foreign = foreign_own_files(folder, run.has_value());
  for (auto& list : {io::foreign_checkpoints(folder, number), foreign_model(folder, number, look)}) {
    foreign.insert(foreign.end(), list.begin(), list.end());
  }
  return foreign;
}

void refuse_second_run(const std::string& folder) {
  const std::vector<io::CheckpointInfo> found = io::list_checkpoints(folder);
  throw ValueError(concat("train: ", folder, " holds a run ",
                          found.empty() ? "without a checkpoint" : concat("of ", found.back().step, " steps"),
                          "; resume it, overwrite it, or choose another folder"));
}

}  // namespace

RunFolder::RunFolder(std::string path, bool resume, bool overwrite) : path_(std::move(path)) {
  MH_CHECK(!path_.empty(), ValueError, "train: the output folder has no name");
  std::optional<std::string> run;
  const auto check = [&](io::Look look) {
    run = run_in(path_);
    if (run && !resume && !overwrite) refuse_second_run(path_);
    io::refuse_foreign("train", path_, foreign_contents(path_, run, look));
  };
  is_new_ = node_at(path_) == Node::absent;
  lock_ = io::lock_folder(path_, [&] { check(io::Look::sizes); });
  check(io::Look::bytes);
  io::remove_leftovers(path_);
  if (!run) return;
  run_ = *run;
  if (run_.empty()) io::adopt_files(path_, io::kModelFolderFiles);
  if (!resume) return;
  const std::vector<io::CheckpointInfo> found = io::list_checkpoints(path_);
  if (!found.empty()) checkpoint_ = found.back();
  MH_CHECK(checkpoint_ || node_at(io::join(path_, "config.json")) == Node::absent, ValueError,
           "train: ", path_,
           " holds a model but no checkpoint to resume from; overwrite it or choose another folder");
}

RunFolder::~RunFolder() {
  lock_.reset();
  std::error_code ignored;
  if (is_new_) fs::remove(path_, ignored);  // which fails unless it is empty
}

void RunFolder::begin(Json record) {
  io::remove_files(path_, io::model_folder_files(path_));
  for (const char* name : {kSummaryFile, kMetricsFile, kMetricsTable}) remove(name);
  for (const io::CheckpointInfo& info : io::list_checkpoints(path_)) {
    io::remove_directory_atomically(info.path, run_);
  }
  run_ = io::random_id();
  record["run"] = run_;
  io::write_staged(path_, io::kRunFile, record.dump(2) + "\n");
}

void RunFolder::withdraw() {
  if (!io::list_checkpoints(path_).empty()) return;
  // The record last: without it the others are taken for foreign files.
  for (const char* name : {kSummaryFile, kMetricsFile, kMetricsTable, io::kRunFile}) remove(name);
}

bool RunFolder::is_recorded(const Json& settings) const {
  const Json record = record_in(path_);
  if (record.is_null() || !record.at("settings").is_object()) return false;
  return std::ranges::all_of(settings.members(), [&](const JsonMember& setting) {
    const Json* found = record.at("settings").find(setting.key);
    return found != nullptr && *found == setting.value;
  });
}

void RunFolder::record(const Json& settings) {
  Json record = record_in(path_);
  record["settings"] = settings;
  io::write_staged(path_, io::kRunFile, record.dump(2) + "\n");
}

void RunFolder::publish(const io::CheckpointContents& model) {
  remove(kSummaryFile);
  const io::FileSet set = io::model_folder_files(path_);
  io::replace_files(
      path_, set, [&](io::DirectoryWriter& writer) { io::write_model(writer, model, set); }, run_);
}

void RunFolder::write_summary(const Json& summary) {
  io::write_staged(path_, kSummaryFile, summary.dump(2) + "\n");
}

void RunFolder::remove(const char* name) const {
  const std::string path = io::join(path_, name);
  std::error_code error;
  fs::remove(path, error);
  MH_CHECK(!error, IoError, "cannot remove ", quote(path, 400), ": ", error.message());
}

}  // namespace multihead::train
