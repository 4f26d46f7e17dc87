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
#include "multihead/io/gguf.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {
namespace {

namespace fs = std::filesystem;
using detail::find_value;

std::string joined(const std::string& folder, const std::string& part) {
  return part.empty() ? folder : (fs::path(folder) / part).string();
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
  check_lower_case(steps[0].path, loaded.tokenizer_);
  for (size_t i = 1; i < steps.size(); ++i) {
    const Step& step = steps[i];
    MH_CHECK(!loaded.normalizes_, FormatError, list, ": ", step.kind, " after Normalize is not supported");
    if (step.kind == "Pooling") {
      loaded.read_pooling(step.path);
    } else if (step.kind == "Dense") {
      loaded.read_dense(step.path);
    } else if (step.kind == "Normalize") {
      loaded.normalizes_ = true;
    } else {
      throw FormatError(concat(list, ": ", quote(step.kind),
                               " is not supported; supported are Transformer, Pooling, Dense and Normalize"));
    }
  }
  loaded.read_prompts(folder);
  return loaded;
}

void SentenceEncoder::read_pooling(const std::string& folder) {
  const std::string file = joined(folder, "config.json");
  const Json json = io::load_json(file);
  MH_CHECK(dense_.empty(), FormatError, file, ": Pooling after Dense is not supported");
  constexpr std::pair<const char*, Pooling> kModes[] = {{"cls_token", Pooling::cls},
                                                        {"max_tokens", Pooling::max},
                                                        {"mean_tokens", Pooling::mean},
                                                        {"mean_sqrt_len_tokens", Pooling::mean_sqrt},
                                                        {"lasttoken", Pooling::last}};
  pooling_.clear();
  const auto is_set = [&](const std::string& mode) {
    const Json* value = find_value(json, concat("pooling_mode_", mode).c_str());
    return value != nullptr && value->is_bool() && value->as_bool();
  };
  for (const auto& [mode, how] : kModes) {
    if (is_set(mode)) pooling_.push_back(how);
  }
  MH_CHECK(!is_set("weightedmean_tokens"), FormatError, file,
           ": pooling_mode_weightedmean_tokens is not supported");
  if (const Json* mode = find_value(json, "pooling_mode"); mode != nullptr && pooling_.empty()) {
    MH_CHECK(mode->is_string(), FormatError, file, ": pooling_mode must be a string, got ",
             quote(mode->dump(), 80));
    const std::string word = mode->as_string() == "lasttoken"              ? "last"
                             : mode->as_string() == "mean_sqrt_len_tokens" ? "mean_sqrt"
                                                                           : mode->as_string();
    const std::optional<Pooling> how = value_of<Pooling>(word);
    MH_CHECK(how.has_value(), FormatError, file, ": pooling_mode ", quote(word), " is not supported");
    pooling_ = {*how};
  }
  MH_CHECK(!pooling_.empty(), FormatError, file, ": it names no way of pooling");
  if (const Json* included = find_value(json, "include_prompt")) {
    pools_prompt_ = !included->is_bool() || included->as_bool();
  }
}

void SentenceEncoder::read_dense(const std::string& folder) {
  const std::string file = joined(folder, "config.json");
  const Json json = io::load_json(file);
  const io::SafetensorsFile weights(joined(folder, "model.safetensors"));
  DenseStep step = {.weight = weights.load("linear.weight").to(Dtype::f32)};
  if (weights.contains("linear.bias")) step.bias = weights.load("linear.bias").to(Dtype::f32);
  const Json* activation = find_value(json, "activation_function");
  const std::string name =
      activation != nullptr && activation->is_string() ? activation->as_string() : "Tanh";
  step.tanh = name.ends_with("Tanh");
  MH_CHECK(step.tanh || name.ends_with("Identity"), FormatError, file, ": activation_function ", quote(name),
           " is not supported; supported are Tanh and Identity");
  const int64_t width = dim();
  MH_CHECK(step.weight.rank() == 2 && step.weight.size(1) == width, FormatError, folder,
           ": linear.weight must be [out, ", width, "], got ", step.weight.shape());
  MH_CHECK(!step.bias.defined() || step.bias.shape() == Shape{step.weight.size(0)}, FormatError, folder,
           ": linear.bias must be [", step.weight.size(0), "], got ", step.bias.shape());
  dense_.push_back(std::move(step));
}

void SentenceEncoder::read_prompts(const std::string& folder) {
  std::error_code ignored;
  const std::string file = joined(folder, "config_sentence_transformers.json");
  if (!fs::exists(file, ignored)) return;
  const Json json = io::load_json(file);
  if (const Json* prompts = find_value(json, "prompts"); prompts != nullptr && prompts->is_object()) {
    for (const auto& [name, prompt] : prompts->members()) {
      MH_CHECK(prompt.is_string(), FormatError, file, ": prompt ", quote(name), " must be a text");
      prompts_[std::string(name)] = prompt.as_string();
    }
  }
  if (const Json* name = find_value(json, "default_prompt_name")) {
    MH_CHECK(name->is_string() && prompts_.contains(name->as_string()), FormatError, file,
             ": default_prompt_name ", quote(name->dump(), 80), " is none of its prompts");
    default_prompt_ = name->as_string();
  }
  if (const Json* name = find_value(json, "similarity_fn_name")) {
    MH_CHECK(name->is_string(), FormatError, file, ": similarity_fn_name must be a string, got ",
             quote(name->dump(), 80));
    similarity_ = name->as_string();
  }
}

void SentenceEncoder::set_pooling(Pooling pooling) {
  MH_CHECK(dense_.empty() || pooling_.size() == 1, ValueError,
           "SentenceEncoder: a Dense module follows several ways of pooling, which one cannot replace");
  pooling_ = {pooling};
}

int64_t SentenceEncoder::dim() const {
  return dense_.empty() ? std::ssize(pooling_) * encoder_.embed_dim() : dense_.back().weight.size(0);
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
  MH_CHECK(prompt.empty() || pools_prompt_, ValueError,
           "SentenceEncoder: the folder leaves prompts out of the pooling, which is not supported");
  return prompt;
}

Tensor SentenceEncoder::finished(const Tensor& features, const models::TokenRows& rows, int64_t columns,
                                 std::optional<bool> normalize) const {
  Tensor x = pooled(pooling_, features, rows);
  for (const DenseStep& step : dense_) {
    x = linear(x, step.weight, step.bias);
    if (step.tanh) x = tanh(x);
  }
  if (!normalize && normalizes_) x = normalized_rows(x);  // a module of the folder, before it is truncated
  if (columns < dim()) x = contiguous(slice(x, 1, 0, columns));
  return normalize.value_or(false) ? normalized_rows(x) : x;
}

Tensor SentenceEncoder::vectors(const models::TokenRows& rows, bool normalize, Rng* rng) const {
  return finished(encoder_.features(rows, rng), rows, dim(), normalize);
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
  const int64_t count = std::ssize(texts);
  const int64_t width = options.truncate_dim > 0 ? std::min(options.truncate_dim, dim()) : dim();
  Tensor out = Tensor::empty({count, width}, Dtype::f32);
  std::vector<char> has_tokens(texts.size(), 1);
  each_batch(
      count, options.batch_tokens, options.progress,
      [&](int64_t i) {
        const std::string& text = texts[static_cast<size_t>(i)];
        std::vector<int32_t> ids =
            tokenizer_.encode(prompt.empty() ? text : prompt + text,
                              {.parse_special = true, .max_length = static_cast<size_t>(max_length_)});
        if (ids.empty()) has_tokens[static_cast<size_t>(i)] = 0, ids.push_back(0);  // the model wants one
        return text::Encoding{std::move(ids), {}};
      },
      [&](const models::TokenRows& rows, int64_t first) {
        const auto features = [&] {
          const Autocast autocast(options.precision);
          return encoder_.features(rows).to(Dtype::f32);
        };
        const Tensor vectors = finished(features(), rows, width, options.normalize);
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
