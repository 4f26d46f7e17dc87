#include "cli/model_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/streams.h"
#include "multihead/generate/defaults.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"
#include "multihead/io/gguf.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/gguf.h"

namespace multihead::cli {

void declare_weights(Flags& flags, std::string& weights, bool stored, bool f32) {
  std::vector<std::string> words = kernels::weight_dtype_names();
  if (!f32) std::erase(words, "f32");
  if (stored) words.insert(words.begin(), "stored");
  flags.choice("weights", weights, std::move(words),
               "weights: bf16, f16, int8 per row, q8, q5 and q4 (8, 5 and 4 bits) per group of 32");
}

LoadedModel load_model_dir(const std::string& folder, const std::string& weights, bool packed) {
  return reading([&] {
    std::optional<kernels::WeightDtype> dtype;
    if (weights != "stored") dtype = kernels::parse_weight_dtype(weights);
    return load_with_tokenizer(folder, dtype, packed);
  });
}

void declare_overwrite(Flags& flags, bool& overwrite) {
  flags.flag("overwrite", overwrite, "replace the model that is already there");
}

void check_vacant(const std::string& to) {
  const bool is_file = models::is_gguf(to);
  const auto holds = [&](const std::string& name) { return node_at(io::join(to, name)) != Node::absent; };
  // What others have written is refused when the model is saved, --overwrite or not.
  if (!is_file && !io::foreign_files(to, io::kModelFolderFiles, io::Look::sizes).empty()) return;
  const char* content = nullptr;
  if (is_file) {
    if (node_at(to) != Node::absent) content = "exists";
  } else if (holds(io::kRunFile) || !io::list_checkpoints(to).empty()) {
    content = "holds a training run";
  } else if (std::ranges::any_of(io::kModelFiles, holds)) {
    content = "holds a model";
  } else if (std::ranges::any_of(io::kTokenizerFiles, holds)) {
    content = "holds a tokenizer";
  } else if (holds(io::Manifest::kFile)) {
    content = "holds a part of a model";
  }
  if (content == nullptr) return;
  throw UsageError(concat(is_file ? "file " : "folder ", quote(to), " ", content,
                          "; overwrite it (--overwrite) or choose another ", is_file ? "file" : "folder"));
}

namespace {

// One set, with the defaults of generation unless `to` has others.
void save_dir(const io::CheckpointContents& contents, const std::string& to) {
  const io::FileSet set = io::model_folder_files(to);
  io::save_files(to, set, [&](io::DirectoryWriter& writer) { io::write_model(writer, contents, set); });
}

}  // namespace

void save_model_dir(LoadedModel& loaded, const std::string& from, const std::string& to) {
  const Json config = models::config_to_json(loaded.model.config());
  save_dir({.tensors = {{"model.safetensors", models::language_model_tensors(loaded.model)}},
            .files = {{"config.json", config.dump(2) + "\n"},
                      {"tokenizer.json", loaded.tokenizer.to_json()},
                      {"tokenizer_config.json", loaded.tokenizer.config_json()},
                      {io::kGenerationFile, saved_defaults(from, config, loaded.tokenizer)}}},
           to);
}

void note_pooling(const std::string& from) {
  bool has_pooling = node_at(io::join(from, "modules.json")) != Node::absent;
  if (models::is_gguf(from)) {
    const std::vector<std::string> keys = io::GgufFile(from).keys();
    has_pooling =
        std::ranges::any_of(keys, [](const std::string& k) { return k.ends_with(".pooling_type"); });
  }
  if (!has_pooling) return;
  fmt::print(
      stderr,
      "note: {} says how texts become vectors, by pooling and what follows it; what is written does not: "
      "give embed and search --pooling\n",
      printable(from));
}

void save_translator_dir(models::Seq2Seq& model, const train::PairTokenizers& tokenizers,
                         const std::string& from, const std::string& to) {
  io::CheckpointContents contents = {.tensors = {{"model.safetensors", models::seq2seq_tensors(model)}},
                                     .files = train::pair_tokenizer_files(tokenizers)};
  contents.files["config.json"] = models::config_to_json(model.config()).dump(2) + "\n";
  contents.files[io::kGenerationFile] = saved_defaults(from, model.config());
  save_dir(contents, to);
}

LoadedTranslator load_translator_dir(const std::string& folder) {
  return reading([&] { return train::load_translator(folder); });
}

void check_weights(const std::string& folder, const std::string& problem) {
  const auto check = [&](const std::string& path, const std::string& name, const Tensor& tensor) {
    const std::vector<double> values = tensor.to_vector<double>();
    if (std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); })) return;
    throw InputError(concat(path, ": tensor ", quote(name), " holds NaN or Inf: ", problem));
  };
  reading([&] {
    if (models::is_gguf(folder)) {
      const io::GgufFile file(folder);
      for (const auto& [name, tensor] : file.tensors()) check(folder, name, file.load(name));
      return;
    }
    const io::SafetensorsFile file(folder);
    for (const std::string& name : file.names()) {
      const auto dtype = file.info(name).dtype;
      if (dtype && is_floating(*dtype)) check(file.path(), name, file.load(name));
    }
  });
}

void check_number(const std::string& folder, const std::string& what, double value) {
  if (std::isfinite(value)) return;
  const std::string problem = concat(what, " is ", value);
  check_weights(folder, problem);
  throw NumericError(concat(folder, ": ", problem, " although all weights are finite"));
}

}  // namespace multihead::cli
