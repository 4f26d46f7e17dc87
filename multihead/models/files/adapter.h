// Low-rank additions to a model's weights, as folders of PEFT hold them (LoRA).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/core/tensor/rng.h"
#include "multihead/io/checkpoint.h"
#include "multihead/models/encoder.h"
#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"
#include "multihead/models/weight_map.h"

namespace multihead::models {

struct AdapterOptions {
  int64_t rank = 8;
  double alpha = 16;
  /// The last parts of the names that files give layers: "q_proj". Empty: projections of queries and values.
  std::vector<std::string> targets = {};
};

/// W' = W + alpha/rank · B · A for chosen matrices W [out, in]: A [rank, in] begins random, B [out, rank]
/// zero, so that the model begins as it is.
///
/// Source    Hu et al. 2021, arXiv:2106.09685. In place of a branch in every layer, the sum is one more op in
///           front of the model: its gradient reaches A and B through that of W', a transient
class Adapter {
 public:
  /// `parameters` and `map` are the model's. Throws ValueError (rank, alpha; a target that no layer has).
  Adapter(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map, const AdapterOptions& options,
          Rng& rng);

  /// Puts W' in place of W: recorded if a tape is, or else as numbers.
  template <class Model>
  void apply(Model& model) const {
    std::vector<std::pair<std::string, Tensor>> sums = weights();
    const auto put = [&](const std::string& name, Tensor& tensor) {
      for (const auto& [parameter, sum] : sums) {
        if (parameter == name) tensor = sum;
      }
    };
    nn::Visitor visitor(put);
    model.visit(visitor);
  }
  /// A and B.
  void visit(nn::Visitor& visitor);

  /// adapter_config.json and adapter_model.safetensors. `base`: the folder of the model. `whole`: other
  /// stored weights that were trained, under the names that files give them.
  void save(io::CheckpointContents& contents, const std::string& base, const std::string& task_type,
            const std::vector<std::pair<std::string, Tensor>>& whole = {}) const;
  /// A, B and `whole` from what save() wrote. Throws IoError, FormatError.
  void load(const std::string& file, const std::vector<std::pair<std::string, Tensor>>& whole = {});

 private:
  /// The low-rank part of some of a parameter's rows.
  struct Part {
    std::string layer;
    int64_t first = 0, rows = 0;
    Tensor a, b;
  };
  struct Target {
    std::string parameter;
    Tensor base;
    int64_t interleaved_heads = 0;
    bool swapped_halves = false;
    std::vector<Part> parts;
  };
  std::vector<std::pair<std::string, Tensor>> weights() const;
  Tensor delta(const Target& target) const;
  std::vector<nn::NamedTensor> stored(const std::vector<std::pair<std::string, Tensor>>& whole) const;

  AdapterOptions options_;
  std::vector<std::string> layers_;  // last parts of the names
  bool transposed_ = false;          // matrices are stored [in, out] (GPT-2)
  std::vector<Target> targets_;
};

/// Whether a folder holds an adapter and no weights of its own.
bool is_adapter_folder(const std::string& folder);
/// The folder of the model that an adapter belongs to: base_model_name_or_path, as it is or beside the
/// adapter. Throws FormatError.
std::string base_of_adapter(const std::string& folder);
/// Where a model folder's tokenizer is: in the folder, or with an adapter that has none, in its model's.
std::string tokenizer_folder(const std::string& folder);
/// Throws FormatError if a folder's `tokenizer` has more tokens than its model knows.
void check_vocabulary(const std::string& folder, const char* tokenizer, int64_t tokens, int64_t known);

struct MergeOptions {
  std::string optional_prefix = {};    ///< of names in the map, which files may lack
  std::vector<std::string> tied = {};  ///< parameters that the model uses in several places
};
/// The parameters that a model uses in several places.
std::vector<std::string> tied_parameters(const LanguageModelConfig& config);
std::vector<std::string> tied_parameters(const Seq2SeqConfig& config);
std::vector<std::string> tied_parameters(const EncoderConfig& config);
/// Adds a folder's low-rank parts to the weights and replaces those that it holds whole. Returns the
/// parameters that were changed. Throws IoError, FormatError (another kind of adapter, names or shapes that
/// do not fit; what PEFT would leave out; tied weights that it would untie), before anything is changed.
std::vector<std::string> merge_adapter(const std::vector<nn::NamedTensor>& parameters, const WeightMap& map,
                                       const MergeOptions& options, const std::string& folder);
/// The same of a model that is not packed. load_language_model() and its kin do so for a folder that holds an
/// adapter alone.
void load_adapter(LanguageModel& model, const std::string& folder);
void load_adapter(Seq2Seq& model, const std::string& folder);
void load_adapter(Encoder& model, const std::string& folder);

}  // namespace multihead::models
