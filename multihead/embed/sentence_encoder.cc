#include "multihead/embed/sentence_encoder.h"

#include <algorithm>
#include <mutex>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/batches-inl.h"
#include "multihead/embed/modules/folder-inl.h"
#include "multihead/embed/modules/modules-inl.h"
#include "multihead/io/gguf.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/files/task_adapters.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

// As the metadata say, else the mean, like a folder that says nothing.
Pooling pooling_of_gguf(const std::string& path) {
  const io::GgufFile file(path);
  const std::string key = file.string("general.architecture") + ".pooling_type";
  const int64_t type = file.has(key) ? file.integer(key) : 0;
  constexpr Pooling kTypes[] = {Pooling::mean, Pooling::mean, Pooling::cls, Pooling::last};  // 0: none
  MH_CHECK(type >= 0 && type < std::ssize(kTypes), FormatError, path, ": ", key, " ", type,
           " is not supported; supported are 1 (mean), 2 (cls) and 3 (last)");
  return kTypes[type];
}

// Matrices after the pooling (EmbeddingGemma).
std::vector<VectorStep> steps_of_gguf(const std::string& path, int64_t width) {
  const io::GgufFile file(path);
  std::vector<VectorStep> steps;
  for (const char* name : {"dense_2.weight", "dense_3.weight"}) {
    if (!file.tensors().contains(name)) continue;
    const Tensor weight = file.load(name);
    MH_CHECK(weight.rank() == 2 && weight.size(1) == width, FormatError, path, ": ", name, " must be [out, ",
             width, "], got ", weight.shape());
    width = weight.size(0);
    steps.push_back({.weight = weight});
  }
  return steps;
}

}  // namespace

// What was loaded for one task serves the others that have it, too.
struct SentenceEncoder::Transformers {
  using Parts = std::pair<TextModel, text::Tokenizer>;
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, Parts> loaded;  // by folder and adapter

  Parts get(const Source& source, const std::string& model, const std::string& adapter) {
    const std::lock_guard lock(mutex);
    const auto known = loaded.find({model, adapter});
    if (known != loaded.end()) return known->second;
    const Parts parts = load(source, model, adapter);
    return loaded.emplace(std::pair(model, adapter), parts).first->second;
  }
  static Parts load(const Source& source, const std::string& model, const std::string& adapter) {
    Parts parts = {TextModel::load(model, source.weights, source.packed, adapter),
                   text::Tokenizer::load(models::tokenizer_folder(model))};
    const auto& [encoder, tokenizer] = parts;
    models::check_vocabulary(model, "tokenizer", tokenizer.plain_vocab_size(), encoder.vocab_size());
    return parts;
  }
};

SentenceEncoder::SentenceEncoder(TextModel encoder, text::Tokenizer tokenizer, std::vector<Pooling> pooling,
                                 int64_t max_length)
    : encoder_(std::move(encoder)),
      tokenizer_(std::move(tokenizer)),
      pooling_(std::move(pooling)),
      max_length_(max_length > 0 ? max_length : encoder_.context()) {
  MH_CHECK(!pooling_.empty(), ValueError, "SentenceEncoder: pooling is missing");
  MH_CHECK(max_length_ <= encoder_.context(), ValueError, "SentenceEncoder: max_length ", max_length_,
           " is more than the model's context of ", encoder_.context());
  MH_CHECK(tokenizer_.plain_vocab_size() <= encoder_.vocab_size(), ValueError,
           "SentenceEncoder: the tokenizer has ", tokenizer_.vocab_size(), " tokens, the model ",
           encoder_.vocab_size());
}

SentenceEncoder SentenceEncoder::load(const std::string& folder, std::optional<nn::WeightDtype> weights,
                                      const std::string& task) {
  Source source = {folder, weights};
  source.routes = detail::read_routes(folder);
  if (!source.routes.empty()) source.transformers = std::make_shared<Transformers>();
  return load_modules(source, task);
}

SentenceEncoder SentenceEncoder::load_to_train(const std::string& folder) {
  MH_CHECK(
      !has_routes(folder), FormatError, folder,
      ": a folder with a Router or with adapters for tasks is not trained, as one of them would be saved "
      "without the others");
  return load_modules({folder, nn::WeightDtype::f32, false}, "");
}

SentenceEncoder SentenceEncoder::route(const std::string& task) const {
  MH_CHECK(!source_.folder.empty(), ValueError,
           "SentenceEncoder: only one that was loaded from a folder has routes");
  return load_modules(source_, task);
}

std::set<std::string> SentenceEncoder::tasks() const {
  if (!source_.routes.empty()) return source_.routes;
  std::set<std::string> tasks = {std::string(word_of(TextTask::query)),
                                 std::string(word_of(TextTask::document))};
  for (const auto& [name, text] : prompts()) tasks.insert(name);
  return tasks;
}

SentenceEncoder SentenceEncoder::for_task(const std::string& task) const {
  const std::set<std::string> all = tasks();
  MH_CHECK(all.contains(task), ValueError, "there is no task ", quote(task, 80), "; the tasks are ",
           Enumeration(all));
  SentenceEncoder own = source_.routes.empty() ? *this : route(task);
  const std::string prompt = own.prompts_.name_of(task);
  const bool has_none = prompt.empty() && own.source_.adapter.empty() && value_of<TextTask>(task);
  if (!prompt.empty() || has_none) own.prompts_.default_name = prompt;
  return own;
}

SentenceEncoder SentenceEncoder::for_task(TextTask task) const {
  const std::string name(word_of(task));
  return task != TextTask::none && tasks().contains(name) ? for_task(name) : *this;
}

SentenceEncoder SentenceEncoder::load_modules(const Source& source, const std::string& task) {
  const std::string& folder = source.folder;
  Prompts prompts = detail::read_prompts(folder, {"SentenceTransformer"});
  const std::vector<detail::Module> modules = detail::read_modules(folder, task);
  const std::string& model = modules[0].path;
  const models::TaskAdapters adapters = models::read_task_adapters(model);
  const std::string adapter = task.empty() || adapters.tasks.empty() ? "" : adapters.named(task);
  auto [encoder, tokenizer] = source.transformers ? source.transformers->get(source, model, adapter)
                                                  : Transformers::load(source, model, adapter);
  const int64_t length = detail::read_max_length(model, encoder.context());
  SentenceEncoder loaded(std::move(encoder), std::move(tokenizer), {Pooling::mean}, length);
  loaded.source_ = source;
  loaded.source_.model = model, loaded.source_.adapter = adapter;
  if (io::is_gguf_file(folder)) {
    loaded.pooling_ = {pooling_of_gguf(folder)};
    loaded.steps_ = steps_of_gguf(folder, loaded.dim());
  }
  detail::check_transformer(model, loaded.tokenizer_, "feature-extraction");
  size_t next = 1;
  if (modules.size() > 1 && modules[1].kind == "WeightedLayerPooling") loaded.read_mix(modules[next++].path);
  for (; next < modules.size(); ++next) {
    if (modules[next].kind == "Pooling") {
      loaded.read_pooling(modules[next].path);
    } else {
      loaded.steps_.push_back(
          detail::read_step(modules[next], loaded.dim(), "sentence_embedding",
                            "Transformer, WeightedLayerPooling after it, Pooling, Dense, LayerNorm and "
                            "Normalize"));
    }
  }
  MH_CHECK(modules.size() == 1 || source.pooling ||
               std::ranges::count(modules, "Pooling", &detail::Module::kind) > 0,
           FormatError, folder, "/modules.json: no Pooling makes one vector of a text's");
  // The last one is an option of encode().
  if (!loaded.steps_.empty() && loaded.steps_.back().kind == VectorStep::Kind::normalize) {
    loaded.steps_.pop_back();
    loaded.normalizes_ = true;
  }
  prompts.texts.insert(adapters.instructions.begin(), adapters.instructions.end());
  if (!adapter.empty()) prompts.default_name = adapter;
  loaded.prompts_ = std::move(prompts);
  if (source.pooling) loaded.set_pooling(*source.pooling);
  return loaded;
}

void SentenceEncoder::set_pooling(Pooling pooling) {
  MH_CHECK(steps_.empty() || pooling_.size() == 1, ValueError,
           "SentenceEncoder: modules follow several ways of pooling, which one cannot replace");
  pooling_ = {pooling};
  source_.pooling = pooling;
}

void SentenceEncoder::add_head(Tensor weight, Tensor bias) {
  MH_CHECK(weight.rank() == 2 && weight.size(1) == dim() && bias.shape() == Shape{weight.size(0)}, ShapeError,
           "SentenceEncoder: a head must be [labels, ", dim(), "] with a bias [labels], got ", weight.shape(),
           " and ", bias.shape());
  if (normalizes_) steps_.push_back({.kind = VectorStep::Kind::normalize});
  normalizes_ = false;
  steps_.push_back({.weight = std::move(weight), .bias = std::move(bias)});
}

void SentenceEncoder::drop_head() {
  MH_CHECK(!normalizes_ && !steps_.empty() && steps_.back().kind == VectorStep::Kind::dense &&
               steps_.back().function == "Identity",
           ValueError, "SentenceEncoder: the last module is no Dense without a function");
  steps_.pop_back();
  if (steps_.empty() || steps_.back().kind != VectorStep::Kind::normalize) return;
  steps_.pop_back();
  normalizes_ = true;
}

int64_t SentenceEncoder::dim() const {
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    if (step->kind == VectorStep::Kind::dense) return step->weight.size(0);
  }
  return std::ssize(pooling_) * encoder_.embed_dim();
}

std::string SentenceEncoder::prompt_of(const EncodeTextOptions& options) const {
  return prompts_.resolve("SentenceEncoder", options.prompt, options.prompt_name);
}

std::string SentenceEncoder::prompt_of(TextTask task) const {
  return task == TextTask::none ? prompt_of(EncodeTextOptions{}) : prompts_.of(task);
}

int64_t SentenceEncoder::skipped(const std::string& prompt) const {
  if (pools_prompt_ || prompt.empty()) return 0;
  const std::vector<int32_t> ids =
      tokenizer_.encode(prompt, {.parse_special = true, .max_length = static_cast<size_t>(max_length_)});
  return std::ssize(ids) - (!ids.empty() && tokenizer_.is_special(ids.back()) ? 1 : 0);
}

Tensor SentenceEncoder::finished(const Tensor& pooled, int64_t columns, std::optional<bool> normalize) const {
  Tensor x = pooled;
  for (const VectorStep& step : steps_) x = detail::apply(step, x);
  if (!normalize && normalizes_) x = normalized_rows(x);  // a module of the folder, before it is truncated
  if (columns < dim()) x = contiguous(slice(x, 1, 0, columns));
  return normalize.value_or(false) ? normalized_rows(x) : x;
}

// What is pooled.
Tensor SentenceEncoder::features(const models::TokenRows& rows, Rng* rng) const {
  if (mix_.weights.empty()) return encoder_.features(rows, rng);
  std::vector<Tensor> states = encoder_.states(rows, rng);
  states.erase(states.begin(), states.begin() + mix_.first);
  return mixed(states, mix_.weights);
}

Tensor SentenceEncoder::vectors(const models::TokenRows& rows, bool normalize, Rng* rng,
                                TextTask task) const {
  return finished(pooled(pooling_, features(rows, rng), rows, skipped(prompt_of(task))), dim(), normalize);
}

std::vector<int32_t> SentenceEncoder::tokens(const std::string& text, int64_t max_length,
                                             TextTask task) const {
  return tokenizer_.encode(prompt_of(task) + text,
                           {.parse_special = true, .max_length = static_cast<size_t>(max_length)});
}

int64_t SentenceEncoder::width(const EncodeTextOptions& options) const {
  const int64_t most = dim(), asked = options.truncate_dim;
  MH_CHECK(asked >= 0 && asked <= most, ValueError, "SentenceEncoder: truncate_dim must be in [1, ", most,
           "], the width of the model, got ", asked);
  if (asked > 0) return asked;
  return prompts_.truncate_dim > 0 ? std::min(prompts_.truncate_dim, most) : most;
}

Tensor SentenceEncoder::encode(std::span<const std::string> texts, const EncodeTextOptions& options) const {
  const int64_t width = this->width(options);
  const NoTape silent;
  const std::string prompt = prompt_of(options);
  const int64_t left_out = skipped(prompt);
  const int64_t count = std::ssize(texts);
  MH_CHECK(options.max_length >= 0, ValueError, "SentenceEncoder: max_length must not be negative, got ",
           options.max_length);
  const int64_t length = options.max_length > 0 ? std::min(options.max_length, max_length_) : max_length_;
  Tensor out = Tensor::empty({count, width}, Dtype::f32);
  std::vector<char> has_tokens(texts.size(), 1);
  each_batch(
      count, options.batch_tokens, options.progress,
      [&](int64_t i) {
        const std::string& text = texts[static_cast<size_t>(i)];
        std::vector<int32_t> ids =
            tokenizer_.encode(prompt.empty() ? text : prompt + text,
                              {.parse_special = true, .max_length = static_cast<size_t>(length)});
        if (ids.empty()) has_tokens[static_cast<size_t>(i)] = 0, ids.push_back(0);  // the model wants one
        return text::Encoding{std::move(ids), {}};
      },
      [&](const models::TokenRows& rows, int64_t first) {
        const auto computed = [&] {
          const Autocast autocast(options.precision);
          return features(rows).to(Dtype::f32);
        };
        const Tensor vectors =
            finished(pooled(pooling_, computed(), rows, left_out), width, options.normalize);
        std::copy_n(vectors.data<float>(), vectors.numel(), out.data<float>() + first * width);
      });
  for (size_t i = 0; i < texts.size(); ++i) {
    if (has_tokens[i] == 0) std::fill_n(out.data<float>() + static_cast<int64_t>(i) * width, width, 0.0F);
  }
  return out;
}

}  // namespace multihead::embed
