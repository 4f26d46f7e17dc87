// Adapters for tasks that lie beside an encoder's weights (Jina Embeddings v3).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "multihead/io/safetensors.h"
#include "multihead/models/weight_map.h"
#include "multihead/nn/module.h"

namespace multihead::models {

/// What config.json says of them: for every task a low-rank change of each matrix, and what precedes its texts.
struct TaskAdapters {
  std::vector<std::string> tasks = {};  ///< in the order of the changes; none: the folder has no adapters
  std::map<std::string, std::string> instructions = {};  ///< by task
  int64_t rank = 4;
  double alpha = 1;

  /// The one of `tasks` that is meant: "query" is also "retrieval.query", and "document" "retrieval.passage".
  /// Throws ValueError that lists them.
  const std::string& named(const std::string& task) const;
  /// Every name that named() takes.
  std::vector<std::string> all_names() const;
};

/// Of a model's folder. Throws IoError, FormatError (what is not understood).
TaskAdapters read_task_adapters(const std::string& folder);

namespace detail {

/// W + alpha / rank · (B·A, of embeddings A·B) for each matrix whose name in `map` ends in kOriginal. Throws
/// FormatError (a change that is missing or of another shape), IoError.
void add_task(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
              const io::SafetensorsFile& file, const std::string& prefix, const TaskAdapters& adapters,
              const std::string& task);

}  // namespace detail
}  // namespace multihead::models
