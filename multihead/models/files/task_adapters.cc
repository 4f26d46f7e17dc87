#include "multihead/models/files/task_adapters.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "multihead/core/error.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/io/config.h"
#include "multihead/io/json.h"
#include "multihead/models/files/finite_weights-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

// Of a change at a time: a vocabulary's whole change would be as large as its embeddings.
constexpr int64_t kRows = 1 << 14;

// What sentence-transformers calls the tasks of retrieval.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {{"query", "retrieval.query"},
                                                                         {"document", "retrieval.passage"}};

void add_product(const Tensor& to, const Tensor& left, const Tensor& right, double factor) {
  for (int64_t row = 0; row < to.size(0); row += kRows) {
    const int64_t end = std::min(row + kRows, to.size(0));
    const Tensor rows = slice(to.detach(), 0, row, end);
    rows.copy_from(add(rows, scale(matmul(slice(left, 0, row, end), right), factor)));
  }
}

}  // namespace

const std::string& TaskAdapters::named(const std::string& task) const {
  auto found = std::ranges::find(tasks, task);
  for (const auto& [name, own] : kOtherNames) {
    if (found == tasks.end() && task == name) found = std::ranges::find(tasks, own);
  }
  if (found != tasks.end()) return *found;
  throw ValueError(concat("there is no adapter for the task ", quote(task, 80), "; ",
                          tasks.empty() ? "the folder has none" : "the tasks are ", Enumeration(tasks)));
}

std::vector<std::string> TaskAdapters::all_names() const {
  std::vector<std::string> names = tasks;
  for (const auto& [name, own] : kOtherNames) {
    if (std::ranges::find(tasks, own) != tasks.end()) names.emplace_back(name);
  }
  return names;
}

TaskAdapters read_task_adapters(const std::string& folder) {
  std::error_code ignored;
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  if (!std::filesystem::exists(path, ignored)) return {};
  const Json json = io::load_json(path);
  io::ConfigReader reader(json, path);
  TaskAdapters adapters;
  adapters.tasks = reader.strings_or("lora_adaptations", {});
  if (adapters.tasks.empty()) return {};
  adapters.rank = reader.integer_or("lora_rank", adapters.rank, {.min = 1, .max = 1 << 16});
  adapters.alpha = reader.number_or("lora_alpha", adapters.alpha);
  const Json* instructions = reader.find("task_instructions");
  for (const std::string& task : adapters.tasks) {
    const Json* text =
        instructions != nullptr && instructions->is_object() ? instructions->find(task) : nullptr;
    if (text == nullptr || !text->is_string()) {
      reader.fail("task_instructions", concat("must have a text for each task; none for ", quote(task, 80)));
    }
    adapters.instructions[task] = text->as_string();
  }
  return adapters;
}

void detail::add_task(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                      const io::SafetensorsFile& file, const std::string& prefix,
                      const TaskAdapters& adapters, const std::string& task) {
  const int64_t count = std::ssize(adapters.tasks),
                index = std::ranges::find(adapters.tasks, task) - adapters.tasks.begin();
  const auto read = [&](const std::string& name, const Shape& shape) {
    const std::string stored = file.contains(name) ? name : prefix + name;
    MH_CHECK(file.contains(stored), FormatError, file.path(), ": missing ", name, " ", shape);
    const Tensor all = file.load(stored);
    MH_CHECK(all.shape() == shape, FormatError, file.path(), ": ", stored, ": expected ", shape, ", got ",
             all.shape());
    check_finite(file.path(), stored, all);
    return reshape(slice(all, 0, index, index + 1), {shape[1], shape[2]}).to(Dtype::f32);
  };
  bool has_any = false;
  for (const auto& [name, matrix] : stored_views(parameters, map)) {
    if (!name.ends_with(kOriginal)) continue;
    has_any = true;
    const std::string stem = name.substr(0, name.size() - std::string_view("original").size()) + "0.lora_";
    const bool is_table = name.find("embeddings.") != name.npos;
    const Tensor left = read(stem + (is_table ? "A" : "B"), {count, matrix.size(0), adapters.rank}),
                 right = read(stem + (is_table ? "B" : "A"), {count, adapters.rank, matrix.size(1)});
    add_product(matrix, left, right, adapters.alpha / static_cast<double>(adapters.rank));
  }
  MH_CHECK(has_any, FormatError, file.path(),
           ": config.json names adapters, lora_adaptations, which are not here");
}

}  // namespace multihead::models
