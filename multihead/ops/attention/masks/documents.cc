// documents(): query and key of the same one. Ids in runs become intervals of keys, scattered ones are
// compared.
#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

// Ids [T], [1, T] or [B, T] with their row of a sample.
struct Ids {
  explicit Ids(const Tensor& x)
      : values(x.to_vector<int64_t>()), stride(x.rank() == 1 || x.size(0) == 1 ? 0 : x.size(1)) {}
  const int64_t* row(int64_t b) const { return values.data() + b * stride; }

  std::vector<int64_t> values;
  int64_t stride;
};

class SameId final : public detail::MaskCode {
 public:
  SameId(Ids query_ids, Ids key_ids) : query_ids_(std::move(query_ids)), key_ids_(std::move(key_ids)) {}

  void fill(const kernels::KeepTile& tile) const override {
    const int64_t* ids = query_ids_.row(tile.batch) + tile.query_begin;
    for (int64_t k = 0; k < tile.key_count; ++k) {
      const int64_t id = key_ids_.row(tile.batch)[tile.key_begin + k];
      uint8_t* column = tile.keep + k * tile.stride;
      for (int64_t q = 0; q < tile.query_count; ++q) column[q] = ids[q] == id;
    }
  }

 private:
  Ids query_ids_, key_ids_;
};

class Documents final : public MaskPart {
 public:
  Documents(Tensor query_ids, Tensor key_ids)
      : query_ids_(std::move(query_ids)), given_key_ids_(std::move(key_ids)) {}

  std::string to_string() const override {
    return given_key_ids_.defined() ? concat("documents(", query_ids_.shape(), ", ", key_ids().shape(), ")")
                                    : concat("documents(", query_ids_.shape(), ")");
  }

  bool allows(const detail::MaskPair& at) const override {
    return detail::value_at(query_ids_, at.b, at.i) == detail::value_at(key_ids(), at.b, at.j);
  }

  void bind(detail::BoundMask& mask) const override {
    const detail::AttentionSizes& sizes = mask.sizes();
    MH_CHECK(!sizes.ragged, ValueError, mask.who(),
             ": documents() has no meaning in a ragged batch, whose sequences never attend to each other");
    const bool both = given_key_ids_.defined();
    check(mask, both ? "query document ids" : "document ids", query_ids_, sizes.queries);
    check(mask, both ? "key document ids" : "document ids", key_ids(), sizes.keys);
    Ids queries(query_ids_), keys(key_ids());
    std::vector<int64_t> begin(static_cast<size_t>(sizes.batch * sizes.queries)), end(begin.size());
    bool contiguous = true;
    for (int64_t b = 0; b < sizes.batch && contiguous; ++b) {
      contiguous = kernels::attention_document_intervals(queries.row(b), sizes.queries, keys.row(b),
                                                         sizes.keys, begin.data() + b * sizes.queries,
                                                         end.data() + b * sizes.queries);
    }
    if (!contiguous) {
      mask.add_code(std::make_unique<SameId>(std::move(queries), std::move(keys)));
      mask.add_note("documents: scattered ids, compared element by element");
      return;
    }
    mask.add_intervals(begin, end);
    mask.add_note("documents: intervals of keys per query");
  }

 private:
  const Tensor& key_ids() const { return given_key_ids_.defined() ? given_key_ids_ : query_ids_; }

  static void check(const detail::BoundMask& mask, const char* name, const Tensor& ids, int64_t count) {
    const int64_t batch = mask.sizes().batch;
    const bool fits = ids.size(-1) == count && (ids.rank() == 1 || ids.size(0) == 1 || ids.size(0) == batch);
    MH_CHECK(fits, ShapeError, mask.who(), ": ", name, " must be [", count, "] or [B=", batch, ", ", count,
             "], got ", ids.shape());
  }

  Tensor query_ids_, given_key_ids_;
};

}  // namespace

Mask documents(const Tensor& ids) {
  detail::check_integers("documents", "ids", ids, 1, 2, "[T] or [B, T]");
  return Mask(std::make_shared<Documents>(ids.detach(), Tensor()));
}

Mask documents(const Tensor& query_ids, const Tensor& key_ids) {
  detail::check_integers("documents", "query_ids", query_ids, 1, 2, "[Tq] or [B, Tq]");
  detail::check_integers("documents", "key_ids", key_ids, 1, 2, "[Tk] or [B, Tk]");
  return Mask(std::make_shared<Documents>(query_ids.detach(), key_ids.detach()));
}

}  // namespace multihead
