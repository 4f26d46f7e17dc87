// lengths() of keys and query_lengths().
#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

class KeyLengths final : public MaskPart {
 public:
  explicit KeyLengths(Tensor lengths) : lengths_(std::move(lengths)) {}

  std::string to_string() const override { return concat("lengths(", lengths_.shape(), ")"); }

  bool allows(const detail::MaskPair& at) const override {
    return at.j <
           (lengths_.rank() == 1 ? detail::value_at(lengths_, at.b) : detail::value_at(lengths_, at.b, at.i));
  }

  void bind(detail::BoundMask& mask) const override {
    if (lengths_.rank() == 2) return bind_rows(mask);
    mask.add_key_lengths(mask.sample_lengths(lengths_, "lengths", true));
    mask.add_note("lengths: keys after the end are skipped");
  }

 private:
  void bind_rows(detail::BoundMask& mask) const {
    const detail::AttentionSizes& sizes = mask.sizes();
    const Tensor& x = lengths_;
    MH_CHECK((x.size(0) == 1 || x.size(0) == sizes.batch) && x.size(1) == sizes.queries, ShapeError,
             mask.who(), ": lengths must be [B=", sizes.batch, "] or [B, Tq=", sizes.queries, "], got ",
             x.shape());
    const std::vector<int64_t> lengths = x.to_vector<int64_t>();
    mask.add_intervals([&](int64_t b, int64_t i) {
      const int64_t keys = sizes.key_count(b);
      if (i >= sizes.query_count(b)) return detail::KeyInterval{0, keys};
      const int64_t length = lengths[static_cast<size_t>((x.size(0) == 1 ? 0 : b) * sizes.queries + i)];
      MH_CHECK(length >= 0 && length <= keys, ValueError, mask.who(), ": lengths must be in [0, Tk=", keys,
               "], got ", length, " for query ", i, " of sample ", b);
      return detail::KeyInterval{0, length};
    });
    mask.add_note("lengths per query: intervals of keys per query");
  }

  Tensor lengths_;
};

class QueryLengths final : public MaskPart {
 public:
  explicit QueryLengths(Tensor lengths) : lengths_(std::move(lengths)) {}

  std::string to_string() const override { return concat("query_lengths(", lengths_.shape(), ")"); }

  bool allows(const detail::MaskPair& at) const override { return at.i < detail::value_at(lengths_, at.b); }

  void bind(detail::BoundMask& mask) const override {
    mask.add_query_lengths(mask.sample_lengths(lengths_, "query_lengths", false));
    mask.add_note("query_lengths: queries after the end are skipped");
  }

 private:
  Tensor lengths_;
};

}  // namespace

Mask lengths(const Tensor& valid_lens) {
  detail::check_integers("lengths", "valid_lens", valid_lens, 1, 2, "[B] or [B, Tq]");
  return Mask(std::make_shared<KeyLengths>(valid_lens.detach()));
}

Mask query_lengths(const Tensor& valid_lens) {
  detail::check_integers("query_lengths", "valid_lens", valid_lens, 1, 1, "[B]");
  return Mask(std::make_shared<QueryLengths>(valid_lens.detach()));
}

}  // namespace multihead
