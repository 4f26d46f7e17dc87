// Folders of sentence-transformers: their list of modules and what each of them is. Private to embed/.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/json.h"
#include "multihead/embed/prompts.h"
#include "multihead/embed/sentence_encoder.h"

namespace multihead::embed::detail {

inline std::string joined(const std::string& folder, const std::string& part) {
  return part.empty() ? folder : (std::filesystem::path(folder) / part).string();
}

/// A function of Dense modules: where torch has it, and ours.
struct DenseFunction {
  std::string path;
  std::function<Tensor(const Tensor&)> function;
  Tensor operator()(const Tensor& x) const { return function(x); }
};
/// By torch.nn's names.
const std::map<std::string, DenseFunction>& dense_functions();

/// A line of modules.json.
struct Module {
  std::string kind;  ///< the class without its Python module
  std::string path;
};
/// All of them, the first a Transformer, which is the only one where the folder has no list. With `task`, a
/// Router is replaced by the modules that it sends texts of this task to ("": of none); without, it is refused.
std::vector<Module> read_modules(const std::string& folder, const std::optional<std::string>& task = {});
/// What texts are encoded for: the routes of a Router, or the tasks of adapters; none: there is one way.
std::set<std::string> read_routes(const std::string& folder);
/// Reads Dense, LayerNorm or Normalize on `feature`, sentence_embedding or token_embeddings, of `width`
/// columns. Throws FormatError for other kinds; `supported` names those that the caller reads itself.
VectorStep read_step(const Module& module, int64_t width, const std::string& feature, const char* supported);
Tensor apply(const VectorStep& step, const Tensor& x);
/// Columns after the step.
int64_t width_after(const VectorStep& step, int64_t width);

/// The first of PyLate's settings that a config_sentence_transformers.json holds; empty: it holds none.
std::string pylate_setting(const Json& config);
/// Whether it is PyLate's, up to version 3: these settings decide, unless model_type says so or otherwise.
bool is_pylate(const Json& config);
/// Whether config.json is that of Stanford's ColBERT.
bool is_stanford(const std::string& folder);
/// config_sentence_transformers.json, whose model_type must be one of `types` if it is given.
Prompts read_prompts(const std::string& folder, std::initializer_list<const char*> types);

/// Refuses the values of sentence_bert_config.json that would give other vectors. `task`: what the model
/// computes; `known`: keys that the caller reads itself.
void check_transformer(const std::string& folder, const text::Tokenizer& tokenizer, const char* task,
                       std::initializer_list<std::string_view> known = {});

}  // namespace multihead::embed::detail
