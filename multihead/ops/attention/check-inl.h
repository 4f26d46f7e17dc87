// Checks query, key and value. Internal to ops.
#pragma once

#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {

/// Floating and alike.
void check_attention_dtypes(const char* who, const Tensor& query, const Tensor& key, const Tensor& value);
/// heads is a multiple of kv_heads.
void check_attention_heads(const char* who, int64_t heads, int64_t kv_heads);
/// The four axes of each, and the heads; returns the sizes.
AttentionSizes check_attention_shapes(const char* who, const Shape& query, const Shape& key,
                                      const Shape& value, Layout layout);
/// All of that.
AttentionSizes check_attention(const char* who, const Tensor& query, const Tensor& key, const Tensor& value,
                               Layout layout);

}  // namespace multihead::detail
