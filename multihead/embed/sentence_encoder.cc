#include "multihead/embed/sentence_encoder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/batches-inl.h"
#include "multihead/embed/folder-inl.h"
#include "multihead/embed/modules-inl.h"
#include "multihead/io/gguf.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/norm.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

namespace fs = std::filesystem;
using detail::dense_functions;
using detail::find_value;
using detail::joined;

// Refuses the values of sentence_bert_config.json that would give other vectors.
void check_transformer(const std::string& folder) {
  const Json json = detail::read_json(folder, "sentence_bert_config.json");
  for (const auto& [key, only] : {std::pair("transformer_task", "feature-extraction"),
                                  {"module_output_name", "token_embeddings"},
                                  {"query_length", ""},
                                  {"document_length", ""},
                                  {"query_expansion", ""}}) {
    const Json* given = find_value(json, key);
    MH_CHECK(given == nullptr || *given == Json(only), FormatError, folder,
             "/sentence_bert_config.json: ", key, " ", quote(given->dump(), 80), " is not supported");
  }
}

// A tokenizer that keeps capitals is refused where the folder wants them gone.
void check_lower_case(const std::string& folder, const text::Tokenizer& tokenizer) {
  const Json json = detail::read_json(folder, "sentence_bert_config.json");
  const Json* lowers = find_value(json, "do_lower_case");
  MH_CHECK(lowers == nullptr || !lowers->is_bool() || !lowers->as_bool() ||
               tokenizer.encode("The CAT") == tokenizer.encode("the cat"),
           FormatError, folder,
           "/sentence_bert_config.json: do_lower_case is not supported, and the tokenizer keeps capitals");
}

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

}  // namespace

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

SentenceEncoder SentenceEncoder::load(const std::string& folder, std::optional<nn::WeightDtype> weights) {
  std::vector<Step> steps;
  std::error_code ignored;
  const std::string list = joined(folder, "modules.json");
  if (fs::exists(list, ignored)) {
    const Json modules = io::load_json(list);
    MH_CHECK(modules.is_array(), FormatError, list, ": must be an array of modules");
    for (const Json& module : modules.items()) {
      const Json *type = find_value(module, "type"), *path = find_value(module, "path");
      MH_CHECK(type != nullptr && type->is_string() && path != nullptr && path->is_string(), FormatError,
               list, ": each module needs a type and a path");
      const std::string& name = type->as_string();
      const std::string& part = path->as_string();
      MH_CHECK(fs::path(part).is_relative() && part.find("..") == part.npos, FormatError, list, ": path ",
               quote(part), " leaves the folder");
      steps.push_back({name.substr(name.rfind('.') + 1), joined(folder, part)});
    }
  } else {
    steps = {{"Transformer", folder}};
  }
  MH_CHECK(!steps.empty() && steps[0].kind == "Transformer", FormatError, list,
           ": the first module must be a Transformer");
  TextModel encoder = TextModel::load(steps[0].path, weights);
  const int64_t length = detail::read_max_length(steps[0].path, encoder.context());
  SentenceEncoder loaded(std::move(encoder), text::Tokenizer::load(models::tokenizer_folder(steps[0].path)),
                         {Pooling::mean}, length);
  if (io::is_gguf_file(folder)) loaded.pooling_ = {pooling_of_gguf(folder)};
  check_transformer(steps[0].path);
  check_lower_case(steps[0].path, loaded.tokenizer_);
  for (size_t i = 1; i < steps.size(); ++i) loaded.read_module(steps[i], list);
  // The last one is an option of encode().
  if (!loaded.steps_.empty() && loaded.steps_.back().kind == VectorStep::Kind::normalize) {
    loaded.steps_.pop_back();
    loaded.normalizes_ = true;
  }
  loaded.read_prompts(folder);
  return loaded;
}

void SentenceEncoder::set_pooling(Pooling pooling) {
  MH_CHECK(steps_.empty() || pooling_.size() == 1, ValueError,
           "SentenceEncoder: modules follow several ways of pooling, which one cannot replace");
  pooling_ = {pooling};
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
  MH_CHECK(!options.prompt || options.prompt_name.empty(), ValueError,
           "SentenceEncoder: give a prompt or the name of one, not both");
  const std::string& name = options.prompt_name.empty() ? default_prompt_ : options.prompt_name;
  std::string prompt = options.prompt.value_or("");
  if (!options.prompt && !name.empty()) {
    const auto found = prompts_.find(name);
    if (found == prompts_.end()) {
      std::string known;
      for (const auto& [other, text] : prompts_) known += (known.empty() ? "" : ", ") + other;
      throw ValueError(concat("SentenceEncoder: prompt_name ", quote(name), " is unknown; the folder has ",
                              known.empty() ? "none" : known));
    }
    prompt = found->second;
  }
  return prompt;
}

int64_t SentenceEncoder::skipped(const std::string& prompt) const {
  if (pools_prompt_ || prompt.empty()) return 0;
  const std::vector<int32_t> ids =
      tokenizer_.encode(prompt, {.parse_special = true, .max_length = static_cast<size_t>(max_length_)});
  return std::ssize(ids) - (!ids.empty() && tokenizer_.is_special(ids.back()) ? 1 : 0);
}

namespace {

Tensor apply(const VectorStep& step, const Tensor& x) {
  if (step.kind == VectorStep::Kind::normalize) return normalized_rows(x);
  if (step.kind == VectorStep::Kind::layer_norm) return layer_norm(x, step.weight, step.bias, 1e-5);
  const Tensor y = dense_functions().at(step.function)(linear(x, step.weight, step.bias));
  if (!step.has_residual) return y;
  return add(y, step.residual.defined() ? linear(x, step.residual) : x);
}

}  // namespace

Tensor SentenceEncoder::finished(const Tensor& pooled, int64_t columns, std::optional<bool> normalize) const {
  Tensor x = pooled;
  for (const VectorStep& step : steps_) x = apply(step, x);
  if (!normalize && normalizes_) x = normalized_rows(x);  // a module of the folder, before it is truncated
  if (columns < dim()) x = contiguous(slice(x, 1, 0, columns));
  return normalize.value_or(false) ? normalized_rows(x) : x;
}

Tensor SentenceEncoder::vectors(const models::TokenRows& rows, bool normalize, Rng* rng) const {
  return finished(pooled(pooling_, encoder_.features(rows, rng), rows, skipped(prompt_of({}))), dim(),
                  normalize);
}

std::vector<int32_t> SentenceEncoder::tokens(const std::string& text, int64_t max_length) const {
  return tokenizer_.encode(prompt_of({}) + text,
                           {.parse_special = true, .max_length = static_cast<size_t>(max_length)});
}

Tensor SentenceEncoder::encode(std::span<const std::string> texts, const EncodeTextOptions& options) const {
  MH_CHECK(options.truncate_dim >= 0, ValueError, "SentenceEncoder: truncate_dim must not be negative, got ",
           options.truncate_dim);
  const NoTape silent;
  const std::string prompt = prompt_of(options);
  const int64_t left_out = skipped(prompt);
  const int64_t count = std::ssize(texts);
  MH_CHECK(options.max_length >= 0, ValueError, "SentenceEncoder: max_length must not be negative, got ",
           options.max_length);
  const int64_t length = options.max_length > 0 ? std::min(options.max_length, max_length_) : max_length_;
  const int64_t width = options.truncate_dim > 0 ? std::min(options.truncate_dim, dim()) : dim();
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
        const auto features = [&] {
          const Autocast autocast(options.precision);
          return encoder_.features(rows).to(Dtype::f32);
        };
        const Tensor vectors =
            finished(pooled(pooling_, features(), rows, left_out), width, options.normalize);
        std::copy_n(vectors.data<float>(), vectors.numel(), out.data<float>() + first * width);
      });
  for (size_t i = 0; i < texts.size(); ++i) {
    if (has_tokens[i] == 0) std::fill_n(out.data<float>() + static_cast<int64_t>(i) * width, width, 0.0F);
  }
  return out;
}

namespace {

void check_finite(const char* who, const Tensor& rows) {
  const Tensor x = rows.contiguous();
  const int64_t width = x.size(1);
  for (int64_t row = 0; row < x.size(0); ++row) {
    const float* const first = x.data<float>() + row * width;
    MH_CHECK(std::all_of(first, first + width, [](float value) { return std::isfinite(value); }), ValueError,
             "nearest: row ", row, " of the ", who, " holds NaN or Inf");
  }
}

}  // namespace

std::vector<std::vector<Match>> nearest(const Tensor& queries, const Tensor& corpus, int64_t count) {
  MH_CHECK(queries.rank() == 2 && corpus.rank() == 2 && queries.size(1) == corpus.size(1), ShapeError,
           "nearest: expected [q, dim] and [n, dim], got ", queries.shape(), " and ", corpus.shape());
  MH_CHECK(count > 0, ValueError, "nearest: count must be positive, got ", count);
  check_finite("queries", queries), check_finite("corpus", corpus);
  const NoTape silent;
  const int64_t rows = corpus.size(0), asked = queries.size(0);
  constexpr int64_t kRows = 4096;  // of the corpus at a time
  std::vector<std::vector<Match>> best(static_cast<size_t>(asked));
  const auto is_better = [](const Match& a, const Match& b) {
    return a.score > b.score || (a.score == b.score && a.row < b.row);
  };
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t end = std::min(begin + kRows, rows);
    const Tensor scores = linear(queries, slice(corpus, 0, begin, end));  // [q, end - begin]
    const float* score = scores.data<float>();
    MH_CHECK(std::all_of(score, score + scores.numel(), [](float value) { return std::isfinite(value); }),
             ValueError, "nearest: an inner product is not finite: the rows' numbers are too large for f32");
    parallel_for(asked, [&](int64_t q, int) {
      std::vector<Match>& list = best[static_cast<size_t>(q)];
      for (int64_t i = 0; i < end - begin; ++i) list.push_back({begin + i, score[q * (end - begin) + i]});
      const auto kept = std::min(std::ssize(list), count);
      std::partial_sort(list.begin(), list.begin() + kept, list.end(), is_better);
      list.resize(static_cast<size_t>(kept));
    });
  }
  return best;
}

}  // namespace multihead::embed
