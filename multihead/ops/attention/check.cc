#include "multihead/ops/attention/check-inl.h"

#include "multihead/core/error.h"

namespace multihead::detail {

void check_attention_dtypes(const char* who, const Tensor& query, const Tensor& key, const Tensor& value) {
  MH_CHECK(query.defined() && key.defined() && value.defined(), ValueError, who,
           ": query, key and value must be defined tensors");
  MH_CHECK(is_floating(query.dtype()), DtypeError, who, ": query must be f32, f64, bf16 or f16, got ",
           query.dtype());
  MH_CHECK(key.dtype() == query.dtype(), DtypeError, who, ": key must be ", query.dtype(),
           " like query, got ", key.dtype());
  MH_CHECK(value.dtype() == query.dtype(), DtypeError, who, ": value must be ", query.dtype(),
           " like query, got ", value.dtype());
}

void check_attention_heads(const char* who, int64_t heads, int64_t kv_heads) {
  MH_CHECK(kv_heads > 0 ? heads % kv_heads == 0 : heads == 0, ShapeError, who,
           ": the number of query heads must be a multiple of the number of key heads, got H=", heads,
           " and Hkv=", kv_heads);
}

AttentionSizes check_attention_shapes(const char* who, const Shape& query, const Shape& key,
                                      const Shape& value, Layout layout) {
  const bool swapped = layout == Layout::bthd;
  const int head = swapped ? 2 : 1, token = swapped ? 1 : 2;
  const char* names = swapped ? "[B, Tq, H, D]" : "[B, H, Tq, D]";
  MH_CHECK(query.rank() == 4, ShapeError, who, ": query must be ", names, ", got ", query);
  AttentionSizes s;
  s.batch = query[0], s.heads = query[head], s.queries = query[token];
  s.head_dim = query[3];
  MH_CHECK(s.head_dim > 0, ShapeError, who, ": head_dim must be > 0, got query ", query);
  const bool key_fits = key.rank() == 4 && key[0] == s.batch && key[3] == s.head_dim;
  MH_CHECK(key_fits, ShapeError, who, ": key must be [B=", s.batch,
           swapped ? ", Tk, Hkv, D=" : ", Hkv, Tk, D=", s.head_dim, "] to match query ", query, ", got ",
           key);
  s.kv_heads = key[head], s.keys = key[token];
  const bool value_fits =
      value.rank() == 4 && value[0] == s.batch && value[head] == s.kv_heads && value[token] == s.keys;
  MH_CHECK(value_fits, ShapeError, who, ": value must be [B=", s.batch,
           swapped ? ", Tk=" : ", Hkv=", swapped ? s.keys : s.kv_heads,
           swapped ? ", Hkv=" : ", Tk=", swapped ? s.kv_heads : s.keys, ", Dv] to match key ", key, ", got ",
           value);
  s.value_dim = value[3];
  check_attention_heads(who, s.heads, s.kv_heads);
  return s;
}

AttentionSizes check_attention(const char* who, const Tensor& query, const Tensor& key, const Tensor& value,
                               Layout layout) {
  check_attention_dtypes(who, query, key, value);
  return check_attention_shapes(who, query.shape(), key.shape(), value.shape(), layout);
}

}  // namespace multihead::detail
