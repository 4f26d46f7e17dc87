#include "multihead/embed/sparse_encoder.h"

#include <algorithm>
#include <cmath>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/batches-inl.h"
#include "multihead/embed/modules/folder-inl.h"
#include "multihead/embed/modules/modules-inl.h"
#include "multihead/io/config.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {

SparseEncoder::SparseEncoder(models::Encoder encoder, text::Tokenizer tokenizer, SpladePooling pooling,
                             int64_t max_length)
    : encoder_(std::move(encoder)),
      tokenizer_(std::move(tokenizer)),
      pooling_(pooling),
      max_length_(max_length > 0 ? max_length : encoder_.config().context) {
  MH_CHECK(encoder_.config().head == models::EncoderHead::masked_lm, ValueError,
           "SparseEncoder: the model needs a masked_lm head, whose logits are the weights; it has ",
           word_of(encoder_.config().head));
  MH_CHECK(max_length_ <= encoder_.config().context, ValueError, "SparseEncoder: max_length ", max_length_,
           " is more than the model's context of ", encoder_.config().context);
  MH_CHECK(tokenizer_.plain_vocab_size() <= dim(), ValueError, "SparseEncoder: the tokenizer has ",
           tokenizer_.vocab_size(), " tokens, the model ", dim());
}

SparseEncoder SparseEncoder::load(const std::string& folder, nn::WeightDtype weights) {
  Prompts prompts = detail::read_prompts(folder, {"SparseEncoder"});
  const std::vector<detail::Module> modules = detail::read_modules(folder);
  const std::string& model = modules[0].path;
  models::Encoder encoder = models::load_encoder(model, weights, true);
  text::Tokenizer tokenizer = text::Tokenizer::load(models::tokenizer_folder(model));
  models::check_vocabulary(model, "tokenizer", tokenizer.plain_vocab_size(), encoder.config().vocab_size);
  const int64_t length = detail::read_max_length(model, encoder.config().context);
  SparseEncoder loaded(std::move(encoder), std::move(tokenizer), {}, length);
  detail::check_transformer(model, loaded.tokenizer_, "fill-mask");
  const bool has_list = modules.size() > 1 || std::filesystem::exists(detail::joined(folder, "modules.json"));
  MH_CHECK(!has_list || (modules.size() == 2 && modules[1].kind == "SpladePooling"), FormatError, folder,
           "/modules.json: a sparse encoder must be a Transformer and SpladePooling; other modules are not "
           "supported");
  if (has_list) loaded.read_pooling(modules[1].path);
  const Json json = detail::read_json(folder, "config_sentence_transformers.json");
  if (const Json* most = detail::find_value(json, "max_active_dims")) {
    MH_CHECK(most->is_number() && most->as_double() >= 1 && most->as_double() < 1e9, FormatError, folder,
             "/config_sentence_transformers.json: max_active_dims must be positive, got ",
             quote(most->dump(), 80));
    loaded.max_active_ = static_cast<int64_t>(most->as_double());
  }
  loaded.prompts_ = std::move(prompts);
  return loaded;
}

void SparseEncoder::read_pooling(const std::string& folder) {
  const std::string file = detail::joined(folder, "config.json");
  const Json json = io::load_json(file);
  io::ConfigReader config(json, file);
  const std::string how = config.string_or("pooling_strategy", "max");
  if (how != "max" && how != "sum")
    config.fail("pooling_strategy", concat("must be max or sum, got ", quote(how, 80)));
  const std::string function = config.string_or("activation_function", "relu");
  if (function != "relu" && function != "log1p_relu") {
    config.fail("activation_function", concat("must be relu or log1p_relu, got ", quote(function, 80)));
  }
  pooling_ = {.sums = how == "sum", .logs_twice = function == "log1p_relu"};
  for (const char* key : {"embedding_dimension", "word_embedding_dimension"}) {
    const Json* given = config.find(key);
    if (given == nullptr || given->is_null()) continue;
    if (*given != Json(dim()))
      config.fail(key, concat("must be ", dim(), ", the vocabulary's size, got ", given->dump()));
  }
  config.ignore({"chunk_size"});
  config.refuse_unknown();
}

// features [tokens of a text, embed_dim] -> weights [dim()]. Logits are made for some tokens at a time: those
// of a long text and a large vocabulary would take gigabytes.
void SparseEncoder::pool(const Tensor& features, float* weights) const {
  constexpr int64_t kTokens = 64, kColumns = 2048;
  const int64_t tokens = features.size(0), width = dim();
  const auto weight = [this](float logit) {
    const float once = std::log1p(std::max(logit, 0.0F));
    return pooling_.logs_twice ? std::log1p(once) : once;
  };
  std::fill_n(weights, width, 0.0F);
  for (int64_t begin = 0; begin < tokens; begin += kTokens) {
    const int64_t end = std::min(begin + kTokens, tokens);
    const Tensor logits = encoder_.masked_lm_logits(slice(features, 0, begin, end)).to(Dtype::f32);
    parallel_ranges(width, kColumns, [&](int64_t first, int64_t last) {
      for (int64_t t = 0; t < end - begin; ++t) {
        const float* row = logits.data<float>() + t * width;
        for (int64_t c = first; c < last; ++c) {
          weights[c] = pooling_.sums ? weights[c] + weight(row[c]) : std::max(weights[c], row[c]);
        }
      }
    });
  }
  if (pooling_.sums) return;
  for (int64_t c = 0; c < width; ++c) weights[c] = weight(weights[c]);  // both functions are increasing
}

namespace {

// The columns of a row's weights, by increasing column: those that are not 0, `most` of them at most (0:
// all).
std::vector<int64_t> active_columns(std::span<const float> weights, int64_t most) {
  std::vector<int64_t> columns;
  for (size_t c = 0; c < weights.size(); ++c) {
    if (weights[c] != 0) columns.push_back(static_cast<int64_t>(c));
  }
  if (most == 0 || std::ssize(columns) <= most) return columns;
  std::nth_element(columns.begin(), columns.begin() + most, columns.end(), [&](int64_t a, int64_t b) {
    const float x = weights[static_cast<size_t>(a)], y = weights[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  columns.resize(static_cast<size_t>(most));
  std::sort(columns.begin(), columns.end());
  return columns;
}

}  // namespace

SparseRows SparseEncoder::encode(std::span<const std::string> texts, const EncodeTextOptions& options,
                                 int64_t max_active) const {
  MH_CHECK(!options.normalize && options.truncate_dim == 0, ValueError,
           "SparseEncoder: normalize and truncate_dim are those of dense vectors");
  MH_CHECK(max_active >= 0, ValueError, "SparseEncoder: max_active must not be negative, got ", max_active);
  const NoTape silent;
  const std::string prompt = prompts_.resolve("SparseEncoder", options.prompt, options.prompt_name);
  const int64_t length = options.max_length > 0 ? std::min(options.max_length, max_length_) : max_length_;
  const int64_t most = max_active > 0 ? max_active : max_active_;
  std::vector<int64_t> ends = {0}, columns;
  std::vector<float> values, weights(static_cast<size_t>(dim()));
  each_batch(
      std::ssize(texts), options.batch_tokens, options.progress,
      [&](int64_t i) {
        return text::Encoding{
            tokenizer_.encode(prompt + texts[static_cast<size_t>(i)],
                              {.parse_special = true, .max_length = static_cast<size_t>(length)}),
            {}};
      },
      [&](const models::TokenRows& rows, int64_t) {
        const Autocast autocast(options.precision);
        const Tensor features = encoder_.features(rows);
        const int64_t* cut = rows.cu_seqlens.data<int64_t>();
        for (int64_t s = 0; s < rows.sequences(); ++s) {
          pool(slice(features, 0, cut[s], cut[s + 1]), weights.data());
          const std::vector<int64_t> active = active_columns(weights, most);
          columns.insert(columns.end(), active.begin(), active.end());
          for (const int64_t column : active) values.push_back(weights[static_cast<size_t>(column)]);
          ends.push_back(std::ssize(columns));
        }
      });
  return {Tensor::of({std::ssize(ends)}, ends), Tensor::of({std::ssize(columns)}, columns),
          Tensor::of({std::ssize(values)}, values), dim()};
}

}  // namespace multihead::embed
