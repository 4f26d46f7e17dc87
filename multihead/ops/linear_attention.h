// Linear attention: a state per head in place of the keys (Katharopoulos et al. 2020; retention: Sun et al. 2023; the
// delta rule: Schlag et al. 2021, Yang et al. 2024).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "multihead/core/tensor/tensor.h"
#include "multihead/core/text/enum_words.h"

namespace multihead {

/// How a token changes the state S [D, Dv] with its key k and value v, after the decay, if any, S' = diag(e^log_decay) S:
///   retention     S = S' + k vᵀ; without a decay plain linear attention
///   delta         S = S + beta k (v - Sᵀk)ᵀ
///   gated_delta   S = S' + beta k (v - S'ᵀk)ᵀ
enum class LinearRule { retention, delta, gated_delta };
constexpr auto enum_words(LinearRule) {
  return std::to_array<std::string_view>({"retention", "delta", "gated_delta"});
}

struct LinearAttentionOptions {
  LinearRule rule = LinearRule::retention;
  Tensor log_decay = {};             ///< [B, Hkv, T], or [B, Hkv, T, D] for each row of the state
  Tensor beta = {};                  ///< [B, Hkv, T], of the delta rules; default 1
  std::optional<double> scale = {};  ///< of the queries; default 1/sqrt(D)
  int64_t chunk = 64;   ///< tokens from one state that the backward keeps to the next; changes no bit
  Tensor state = {};    ///< [B, Hkv, D, Dv] after the tokens before; default 0
  Tensor lengths = {};  ///< [B] i64: tokens per sequence; the state is that after them, outputs past them 0
};

/// out_t = scale S_tᵀ q_t, causal by nature; and the state after the last token, from which the next call goes on. Takes
/// O(T D Dv). The bits are the same for any number of threads, batch, chunk, and any split of a sequence into calls.
///
/// Shapes    q [B, H, T, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv] -> [B, H, T, Dv], [B, Hkv, D, Dv]
/// Dtypes    f32, f64; bf16, f16: as f32, with a state of f32
/// Gradient  q, k, v, log_decay, beta, state; the backward holds T / chunk states
/// Throws    ShapeError, DtypeError, ValueError (an option that the rule does not have, or lacks)
std::vector<Tensor> linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const LinearAttentionOptions& options = {});

}  // namespace multihead
