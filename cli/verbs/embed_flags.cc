#include "cli/verbs/embed_flags.h"

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "multihead/core/text/utf8.h"
#include "multihead/train/settings.h"

namespace multihead::cli {

using embed::EncodeTextOptions;
using embed::MultiVectorEncoder;
using embed::SentenceEncoder;
using embed::SparseEncoder;
using embed::TextTask;

void EmbedFlags::declare(Flags& flags) {
  flags.positional("DIR", folder, "model folder: sentence-transformers', an encoder's or a decoder's");
  flags.choice(
      "kind", kind, words_after<embed::VectorKind>("folder"),
      "of vectors: one, one weight for each token of the vocabulary (SPLADE), or one for each token of "
      "the text (ColBERT); folder: the folder's");
  flags.integer("max-active", max_active,
                "keep the N largest weights of sparse vectors (0: as the folder says)");
  flags.choice("pooling", pooling, words_after<embed::Pooling>("folder"),
               "pooling of token vectors (folder: the folder's, else mean)");
  flags.text("prompt-name", "NAME", options.prompt_name, "prepend this prompt of the folder to every text");
  flags.text("prompt", "TEXT", prompt, "prepend this prompt to every text");
  flags.integer("truncate-dim", options.truncate_dim,
                "keep only the first N dimensions (0: as the folder says, or all)");
  flags.integer("batch-tokens", options.batch_tokens, "tokens per batch; affects memory, not results",
                {.least = 1});
  declare_weights(flags, weights);
  flags.choice("precision", precision, word_list<train::Precision>(),
               "of products and attention; bf16: of the weights too, unless --weights says otherwise");
}

SentenceEncoder EmbedFlags::pooled_as_asked(SentenceEncoder encoder) const {
  if (const auto pools = value_of<embed::Pooling>(pooling)) encoder.set_pooling(*pools);
  return encoder;
}

// Flags that mean something for one kind of vectors only.
void EmbedFlags::check_flags_of(embed::VectorKind made) const {
  const bool is_dense = made == embed::VectorKind::dense;
  if (max_active != 0 && made != embed::VectorKind::sparse)
    throw UsageError(
        concat("--max-active is for sparse vectors; those of ", quote(folder), " are ", word_of(made)));
  for (const auto& [is_given, flag] :
       {std::pair(pooling != "folder", "--pooling"), std::pair(normalize, "--normalize"),
        std::pair(options.truncate_dim != 0, "--truncate-dim")}) {
    if (is_given && !is_dense)
      throw UsageError(
          concat(flag, " is for dense vectors; those of ", quote(folder), " are ", word_of(made)));
  }
}

AnyEncoder EmbedFlags::load(const std::string& task) {
  if (normalize) options.normalize = true;
  if (!prompt.empty()) options.prompt = prompt;
  options.precision = train::dtype_of_products(*value_of<train::Precision>(precision));
  if (weights == "stored" && precision != "f32") weights = precision;
  std::optional<nn::WeightDtype> dtype;
  if (weights != "stored") dtype = kernels::parse_weight_dtype(weights);
  const nn::WeightDtype dense = dtype.value_or(nn::WeightDtype::f32);  // of folders
  const auto how = value_of<embed::VectorKind>(kind);
  const embed::VectorKind made = how ? *how : reading([&] { return embed::vector_kind(folder); });
  check_flags_of(made);
  return reading([&]() -> AnyEncoder {
    if (made == embed::VectorKind::sparse) return SparseEncoder::load(folder, dense);
    if (made == embed::VectorKind::multi_vector) return MultiVectorEncoder::load(folder, dense);
    return pooled_as_asked(SentenceEncoder::load(folder, dtype, task));
  });
}

std::optional<AnyEncoder> EmbedFlags::encoder_of_queries(const AnyEncoder& loaded) const {
  return encoder_for(loaded, TextTask::query);
}

std::optional<AnyEncoder> EmbedFlags::encoder_of_documents(const AnyEncoder& loaded) const {
  if (embed::has_routes(folder)) return {};  // it was loaded for them
  return encoder_for(loaded, TextTask::document);
}

std::optional<AnyEncoder> EmbedFlags::encoder_for(const AnyEncoder& loaded, TextTask task) const {
  const auto* dense = std::get_if<SentenceEncoder>(&loaded);
  if (dense == nullptr) return {};
  return reading([&] { return pooled_as_asked(dense->for_task(task)); });
}

IndexRecord EmbedFlags::record_of(std::span<const std::string> texts) const {
  return {texts, Json::object({{"pooling", pooling},
                               {"prompt", valid_utf8(prompt)},
                               {"prompt-name", valid_utf8(options.prompt_name)},
                               {"truncate-dim", options.truncate_dim},
                               {"weights", weights},
                               {"precision", precision}})};
}

AnyVectors EmbedFlags::encode(const AnyEncoder& any, std::span<const std::string> texts, TextTask task,
                              const Progress& progress) const {
  EncodeTextOptions given = options;
  if (!std::holds_alternative<SentenceEncoder>(any)) given.normalize.reset();
  given.progress = progress;
  const auto own = [&](const auto& encoder) -> AnyVectors {
    using Encoder = std::decay_t<decltype(encoder)>;
    if constexpr (std::is_same_v<Encoder, SparseEncoder>) return encoder.encode(texts, given, max_active);
    if constexpr (std::is_same_v<Encoder, MultiVectorEncoder>) return encoder.encode(texts, task, given);
    if constexpr (std::is_same_v<Encoder, SentenceEncoder>) return encoder.encode(texts, given);
  };
  return std::visit(own, any);
}

}  // namespace multihead::cli
