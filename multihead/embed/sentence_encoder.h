// Texts to vectors, as sentence-transformers folders say.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multihead/embed/nearest.h"
#include "multihead/embed/pooling.h"
#include "multihead/embed/prompts.h"
#include "multihead/embed/text_model.h"
#include "multihead/io/checkpoint.h"
#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::embed {

/// A module after the pooling, on its vectors.
struct VectorStep {
  enum class Kind {
    dense,  ///< function(x · weightᵀ + bias), and with has_residual + x or, of another size, + x · residualᵀ
    layer_norm,  ///< with weight and bias
    normalize,   ///< to length 1
  };
  Kind kind = Kind::dense;
  Tensor weight, bias, residual;
  bool has_residual = false;
  std::string function = "Identity";  ///< torch.nn's name
};

/// WeightedLayerPooling: a token's vector is the mean by weight of a model's states (TextModel::states) from
/// `first` on.
struct LayerMix {
  int64_t first = 0;
  std::vector<float> weights = {};  ///< empty: it is the last state
};

struct EncodeTextOptions {
  std::optional<std::string> prompt = {};  ///< prepended to every text; empty: none …
  std::string prompt_name = {};  ///< … or one of the folder's prompts; neither: its default, if any
  /// To length 1; default: as the folder says, before truncate_dim, as in sentence-transformers.
  std::optional<bool> normalize = {};
  int64_t max_length = 0;  ///< tokens of a text that are read; 0, or above: max_length()
  /// Keeps this many columns (Matryoshka), before `normalize`; 0: as many as the folder says, or all.
  int64_t truncate_dim = 0;
  int64_t batch_tokens = 1024;  ///< tokens computed at a time: bounds the memory, changes no bit
  /// The dtype of activations (Autocast): bf16 rounds the inputs of attention and, with bf16 weights, of
  /// products.
  Dtype precision = Dtype::f32;
  /// Called between batches with the texts done and all of them; may throw to stop.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// A tokenizer, a model and the modules after it. A text's vector has the same bits in any batch,
/// on any number of threads.
class SentenceEncoder {
 public:
  /// Reads a folder of sentence-transformers (modules.json: Transformer, WeightedLayerPooling, Pooling, Dense,
  /// LayerNorm, Normalize) or a model's folder, whose tokens are averaged; its weights are packed, by default as
  /// they are stored (TextModel::load). Of a folder with a Router, the modules for texts of `task`, "query",
  /// "document" or another route's; of one with adapters, the task's, whose instruction is the default prompt
  /// then. "": the default route, or no adapter. Throws IoError, FormatError (a step that is none of these, a
  /// task without a route), ValueError (a task without an adapter).
  static SentenceEncoder load(const std::string& folder, std::optional<nn::WeightDtype> weights = {},
                              const std::string& task = "");
  /// load() with weights in f32 that are not packed. Throws FormatError (a folder with
  /// routes), too.
  static SentenceEncoder load_to_train(const std::string& folder);

  SentenceEncoder(TextModel encoder, text::Tokenizer tokenizer,
                  std::vector<Pooling> pooling = {Pooling::mean}, int64_t max_length = 0);

  /// The modules for texts of another task, of the folder that this was loaded from, and with its
  /// set_pooling(); a Transformer that several tasks have is loaded once. Throws as load().
  SentenceEncoder route(const std::string& task) const;

  /// What texts may be encoded for: the folder's routes, or the tasks of its adapters; without any, "query",
  /// "document" and the names of its prompts.
  std::set<std::string> tasks() const;
  /// The encoder of texts for one of tasks(): the task's route, if there are routes, and the prompt that is named
  /// after it as the default one (Prompts::name_of); for "query" and "document" none if none is.
  /// Throws ValueError that lists the tasks, and as load().
  SentenceEncoder for_task(const std::string& task) const;
  /// The same of queries or of documents; of a folder whose routes or adapters have none for them, or for no task,
  /// a copy.
  SentenceEncoder for_task(TextTask task) const;

  /// Shapes: n texts -> [n, width(options)] f32. Longer texts are cut at max_length() tokens. Throws ValueError (an
  /// unknown prompt).
  Tensor encode(std::span<const std::string> texts, const EncodeTextOptions& options = {}) const;

  /// The vectors that encode() computes from tokens, with gradients; length 1 if `normalize`. Dropout is
  /// active if and only if `rng` is given. [S, dim()]. `task`: what tokens() was given.
  Tensor vectors(const models::TokenRows& rows, bool normalize, Rng* rng = nullptr,
                 TextTask task = TextTask::none) const;
  /// A text as encode() reads it: behind the folder's default prompt, or as for_task() reads one, behind the
  /// task's prompt if there is one.
  std::vector<int32_t> tokens(const std::string& text, int64_t max_length,
                              TextTask task = TextTask::none) const;
  /// Visits the encoder; the modules after it are not trained.
  void visit(nn::Visitor& visitor) { visitor("encoder", encoder_); }

  /// The files of a folder of sentence-transformers besides encoder and tokenizer, by the name of the part of
  /// the folder; "": the folder itself.
  std::map<std::string, io::CheckpointContents> module_files() const;

  /// Appends a Dense module, [labels, dim()] and [labels], without a function: vectors become its logits.
  void add_head(Tensor weight, Tensor bias);
  /// Removes the last Dense module again. Throws ValueError unless it is one without a function.
  void drop_head();

  int64_t dim() const;
  /// The columns that encode() gives: dim(), or fewer. Throws ValueError (truncate_dim beyond them).
  int64_t width(const EncodeTextOptions& options) const;
  /// Whether the folder's last module scales vectors to length 1.
  bool normalizes() const { return normalizes_; }
  /// Overrides the folder's pooling. Throws ValueError (a Dense module expects a different width).
  void set_pooling(Pooling pooling);
  int64_t max_length() const { return max_length_; }
  const std::map<std::string, std::string>& prompts() const { return prompts_.texts; }
  const std::string& default_prompt_name() const { return prompts_.default_name; }
  /// Whether texts without a prompt of their own are pooled without the tokens of the default one.
  bool leaves_prompt_out() const { return skipped(prompt_of(TextTask::none)) > 0; }
  /// The columns that the folder wants kept; 0: it does not say.
  int64_t truncate_dim() const { return prompts_.truncate_dim; }
  /// How the folder wants vectors compared, by sentence-transformers' name; empty: it does not say.
  const std::string& similarity_fn_name() const { return prompts_.similarity; }
  /// The same as a value; cosine where it does not say. Throws ValueError (one that we do not have).
  Similarity similarity() const { return prompts_.compared_by(Similarity::cosine); }
  const models::Encoder& encoder() const { return encoder_.encoder(); }
  models::Encoder& encoder() { return encoder_.encoder(); }
  const TextModel& model() const { return encoder_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Transformers;
  /// Where the modules were read.
  struct Source {
    std::string folder;
    std::optional<nn::WeightDtype> weights;
    bool packed = true;
    std::optional<Pooling> pooling = {};                   // in place of the folder's
    std::set<std::string> routes = {};                     // by task
    std::shared_ptr<Transformers> transformers = nullptr;  // of all routes
    std::string model = {}, adapter = {};                  // of this one
  };
  static SentenceEncoder load_modules(const Source& source, const std::string& task);
  void read_mix(const std::string& folder);
  void read_pooling(const std::string& folder);
  Tensor features(const models::TokenRows& rows, Rng* rng = nullptr) const;
  /// The first tokens of a text with this prompt that the pooling leaves out.
  int64_t skipped(const std::string& prompt) const;
  std::string prompt_of(const EncodeTextOptions& options) const;
  std::string prompt_of(TextTask task) const;
  Tensor finished(const Tensor& pooled, int64_t columns, std::optional<bool> normalize) const;

  TextModel encoder_;
  text::Tokenizer tokenizer_;
  LayerMix mix_;
  std::vector<Pooling> pooling_;
  std::vector<VectorStep> steps_;
  bool normalizes_ = false;
  bool pools_prompt_ = true;
  int64_t max_length_ = 0;
  Prompts prompts_;
  Source source_;
};

}  // namespace multihead::embed
