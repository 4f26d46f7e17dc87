// Other systems' definitions of attention: their defaults as options, and other differences.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "multihead/ops/attention/options.h"

namespace multihead {

enum class Profile { labml, blog, lecture, d2l, torch_mha, torch_sdpa, onnx };

/// Which projections have a bias by default.
struct BiasFlags {
  bool query = true, key = true, value = true, out = true;
};

struct AttentionProfile {
  Profile profile = Profile::torch_sdpa;
  std::string name;
  std::string source;
  /// Scale and empty-row rule; add the mask and whatever else the call needs.
  AttentionOptions options;
  Align causal_align = Align::start;
  std::string mask_polarity;
  bool has_capture = false;  ///< exposes its weights
  CaptureStage capture_stage = CaptureStage::probabilities;
  bool averages_heads = false;  ///< of the exposed weights
  double dropout_p = 0;         ///< its default
  BiasFlags bias;
  std::vector<std::string> differences;  ///< from multihead's own rule

  /// The effective rule as lines of text.
  std::string to_string() const;
};

/// The rules of one system. `embed_dim` is needed by blog, whose scale is 1/sqrt(embed_dim); ValueError
/// without it.
AttentionProfile attention_profile(Profile profile, int64_t embed_dim = 0);

std::string_view profile_name(Profile profile);
/// "labml", "blog", "lecture", "d2l", "torch_mha", "torch_sdpa" or "onnx"; throws ValueError.
Profile parse_profile(std::string_view name);

// Masks as those systems write them. Each throws ShapeError and DtypeError as the systems' own checks do: the
// number of axes and the dtype here; their sizes where the mask is used. An axis is broadcast only where "or
// 1" says so.

/// labml: [Tq or 1, Tk, B or 1], every non-zero element (any dtype, also NaN) may attend.
Mask from_labml_mask(const Tensor& mask);
/// torch.nn.MultiheadAttention attn_mask, bool [Tq, Tk]: True may NOT attend. Float masks go into
/// options.bias.
Mask from_torch_mha_mask(const Tensor& attn_mask);
/// torch.nn.MultiheadAttention key_padding_mask, bool [B, Tk]: True is padding.
Mask from_torch_key_padding_mask(const Tensor& key_padding_mask);
/// torch scaled_dot_product_attention attn_mask, bool, broadcast to [B, H, Tq, Tk]: True may attend.
Mask from_torch_sdpa_mask(const Tensor& attn_mask);

}  // namespace multihead
