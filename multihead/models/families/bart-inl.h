// Rows and weights shared by BART, mBART, Marian and Pegasus.
#pragma once

#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail::bart {

/// The keys of all.
ConfigKeys<Seq2SeqConfig> config_keys();
/// The names of the weights: with embedding_norm, learned positions and final_norm where `config` has them.
WeightMap weight_map(const Seq2SeqConfig& config);
/// Tensors that files repeat.
std::vector<ExtraTensor> extra_tensors(const Seq2SeqConfig& config);
/// The bias of the logits, which a file must have, and tables that readers look for.
void complete(const Seq2SeqConfig& config, io::TensorMap& tensors);
/// A bias of the logits that files of ours may lack: transformers has no field for it.
ConfigKey<Seq2SeqConfig> output_bias_key();

/// Tables of embeddings in files.
inline constexpr const char* kShared = "model.shared.weight";
inline constexpr const char* kSource = "model.encoder.embed_tokens.weight";
inline constexpr const char* kTarget = "model.decoder.embed_tokens.weight";

}  // namespace multihead::models::detail::bart
