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

AttentionSizes check_attention(const char* who, const Tensor& query, const Tensor& key, const Tensor& value,
                               Layout layout) {
  check_attention_dtypes(who, query, key, value);
  const bool swapped = layout == Layout::bthd;
  const int head = swapped ? 2 : 1, token = swapped ? 1 : 2;
  const char* names = swapped ? "[B, Tq, H, D]" : "[B, H, Tq, D]";
  MH_CHECK(query.rank() == 4, ShapeError, who, ": query must be ", names, ", got ", query.shape());
  AttentionSizes s;
  s.batch = query.size(0), s.heads = query.size(head), s.queries = query.size(token);
  s.head_dim = query.size(3);
  MH_CHECK(s.head_dim > 0, ShapeError, who, ": head_dim must be > 0, got query ", query.shape());
  const bool key_fits = key.rank() == 4 && key.size(0) == s.batch && key.size(3) == s.head_dim;
  MH_CHECK(key_fits, ShapeError, who, ": key must be [B=", s.batch,
           swapped ? ", Tk, Hkv, D=" : ", Hkv, Tk, D=", s.head_dim, "] to match query ", query.shape(),
           ", got ", key.shape());
  s.kv_heads = key.size(head), s.keys = key.size(token);
  const bool value_fits = value.rank() == 4 && value.size(0) == s.batch && value.size(head) == s.kv_heads &&
                          value.size(token) == s.keys;
  MH_CHECK(value_fits, ShapeError, who, ": value must be [B=", s.batch,
           swapped ? ", Tk=" : ", Hkv=", swapped ? s.keys : s.kv_heads,
           swapped ? ", Hkv=" : ", Tk=", swapped ? s.kv_heads : s.keys, ", Dv] to match key ", key.shape(),
           ", got ", value.shape());
  s.value_dim = value.size(3);
  check_attention_heads(who, s.heads, s.kv_heads);
  return s;
}

}  // namespace multihead::detail
