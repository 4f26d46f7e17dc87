// Linear attention as a recurrence over tokens. A head's state S [dim, value_dim] and a token's k, v, g, b:
//
//   S' = diag(g) S;   u = v, or b (v - S'ᵀk) by the delta rule;   S = S' + k uᵀ;   out = scale Sᵀ q
#pragma once

#include <cstdint>

namespace multihead::kernels {

struct LinearAttentionSizes {
  int64_t batch, heads, kv_heads, length, dim, value_dim;
  bool is_delta;
  int64_t decays;  ///< of a token: 0, 1 (a head's) or dim
  double scale;
  int64_t chunk;           ///< tokens from one kept state to the next
  const int64_t* lengths;  ///< [batch]; null: all have `length`

  int64_t chunks() const { return (length + chunk - 1) / chunk; }
  /// Parts of value_dim that tasks take by themselves.
  int64_t blocks() const { return (value_dim + 31) / 32; }
};

/// q [B, H, T, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv], decay [B, Hkv, T, decays], beta [B, Hkv, T], state [B, Hkv, D,
/// Dv], contiguous. Null: no decay, beta (1), former state (0).
template <class T>
struct LinearAttentionInputs {
  const T *q, *k, *v, *decay, *beta, *state;
};

/// out [B, H, T, Dv], 0 past a sequence's length; the state after it. `kept`: null, or the states before every chunk [B,
/// Hkv, chunks, D, Dv].
void linear_attention(const LinearAttentionInputs<float>& in, float* out, float* state, float* kept,
                      const LinearAttentionSizes& sizes);
void linear_attention(const LinearAttentionInputs<double>& in, double* out, double* state, double* kept,
                      const LinearAttentionSizes& sizes);

/// Gradients, all zeroed before. Those with a leading axis of blocks() are to be added up. d_decay is that of ln(decay).
template <class T>
struct LinearAttentionGradients {
  const T *d_out, *d_state;  ///< d_state: null where the state was not used
  T *q, *k;                  ///< [blocks, …]
  T* v;
  T *log_decay, *beta;  ///< [blocks, …], null without
  T* state;
};
void linear_attention_backward(const LinearAttentionInputs<float>& in, const float* kept,
                               const LinearAttentionGradients<float>& d, const LinearAttentionSizes& sizes);
void linear_attention_backward(const LinearAttentionInputs<double>& in, const double* kept,
                               const LinearAttentionGradients<double>& d, const LinearAttentionSizes& sizes);

}  // namespace multihead::kernels
