// Attention to tokens that lie anywhere in memory: a step of beam search.
#pragma once

#include <cstdint>

namespace multihead::kernels {

/// A few queries, all of them of one list of tokens.
struct TokenAttentionArgs {
  const float* query = nullptr;  ///< [rows][heads · head_dim], rows query_stride apart
  int64_t query_stride = 0;
  int64_t rows = 0;
  const float* const* tokens = nullptr;  ///< [count]; a token's keys [heads · head_dim] are key_offset …
  int64_t count = 0;
  int64_t key_offset = 0, value_offset = 0;  ///< … its values value_offset floats past its pointer
  int64_t heads = 0, head_dim = 0;
  float scale = 1;
  const float* bias = nullptr;  ///< [count][heads], added to the scaled scores of every query; null: none
  float* out = nullptr;         ///< [rows][heads · head_dim], rows out_stride apart
  int64_t out_stride = 0;
  float* scratch = nullptr;  ///< token_attention_scratch(count, interleaved) floats
  bool interleaved = false;  ///< element d of head h, everywhere, at d·heads + h instead of h·head_dim + d
};
int64_t token_attention_scratch(int64_t count, bool interleaved);
/// Whether it may be interleaved: heads divide 16, 16 divides heads · head_dim. Much faster for one row.
bool token_attention_interleaves(int64_t heads, int64_t head_dim);

/// out = softmax(scale · query · keyᵀ + bias) · value per row and head; zeros without tokens.
///
/// Scores are chains over head_dim (interleaved: 16 / heads chains), sums over the tokens chains in their
/// order: the bits of a row depend on itself and on its tokens alone.
void token_attention(const TokenAttentionArgs& args);

}  // namespace multihead::kernels
