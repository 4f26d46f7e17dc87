#include <algorithm>

#include "multihead/c/status-inl.h"
#include "multihead/ops/attention/attention.h"

namespace multihead::c {
namespace {

template <class T>
Tensor view(const T* data, const Shape& shape, const char* name) {
  if (shape.numel() == 0) return Tensor::zeros(shape, DtypeOf<T>::value);
  return Tensor::borrow(const_cast<T*>(&checked(data, name)),  // NOLINT(*-const-cast): only read
                        shape, contiguous_strides(shape), DtypeOf<T>::value);
}

Mask mask_of(const mh_attention_shape& shape, const mh_attention_options& options) {
  Mask mask;
  if (options.causal != 0) mask = mask & causal();
  if (options.key_lengths != nullptr)
    mask = mask & lengths(view(options.key_lengths, {shape.batch}, "key_lengths"));
  if (options.keep != nullptr) {
    Tensor flags = Tensor::empty({shape.batch, 1, shape.query_length, shape.key_length}, Dtype::boolean);
    std::transform(options.keep, options.keep + flags.numel(), flags.data<bool>(),
                   [](uint8_t x) { return x != 0; });
    mask = mask & keep(flags);
  }
  return mask;
}

void attend(const mh_attention_shape& shape, const float* query, const float* key, const float* value,
            const mh_attention_options& given, float* out) {
  const auto [batch, heads, kv_heads, query_length, key_length, head_dim, value_dim] = shape;
  Tensor lse;
  AttentionOptions options{.mask = mask_of(shape, given), .softcap = given.softcap};
  if (given.scale != nullptr) options.scale = *given.scale;
  if (given.lse != nullptr) options.lse = &lse;
  const Tensor result = attention(view(query, {batch, heads, query_length, head_dim}, "query"),
                                  view(key, {batch, kv_heads, key_length, head_dim}, "key"),
                                  view(value, {batch, kv_heads, key_length, value_dim}, "value"), options);
  if (result.numel() > 0) std::copy_n(result.data<float>(), result.numel(), &checked(out, "out"));
  if (given.lse != nullptr) std::copy_n(lse.data<float>(), lse.numel(), given.lse);
}

}  // namespace
}  // namespace multihead::c

mh_status mh_attention(const mh_attention_shape* shape, const float* query, const float* key,
                       const float* value, const mh_attention_options* options, float* out) {
  using namespace multihead::c;
  return guarded([&] {
    attend(checked(shape, "shape"), query, key, value,
           options_of(options, mh_attention_options MH_ATTENTION_OPTIONS), out);
  });
}
