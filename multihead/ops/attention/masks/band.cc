// causal() and window(): keys around a diagonal.
#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

class BandMask final : public MaskPart {
 public:
  BandMask(Diagonal diagonal, int64_t left, int64_t right, bool causal)
      : diagonal_(std::move(diagonal)), left_(left), right_(right), causal_(causal) {}

  std::string to_string() const override {
    if (causal_) return concat("causal(", diagonal_.to_string(), ")");
    return concat("window(", left_, ", ", right_, ", ", diagonal_.to_string(), ")");
  }

  const Diagonal* diagonal() const override { return &diagonal_; }

  bool is_causal() const override {
    return right_ == 0 && diagonal_.align == Align::start && !diagonal_.offsets.defined();
  }

  bool allows(const detail::MaskPair& at) const override {
    const int64_t position = at.i + diagonal_.offset_at(at);
    return (left_ < 0 || at.j >= position - left_) && (right_ < 0 || at.j <= position + right_);
  }

  void bind(detail::BoundMask& mask) const override {
    const bool first = mask.add_band(mask.resolve(diagonal_), left_, right_);
    mask.add_note(!first    ? "a band on a second diagonal: intervals of keys per query"
                  : causal_ ? "causal: blocks above the diagonal are skipped"
                            : "window: blocks outside are skipped");
  }

 private:
  Diagonal diagonal_;
  int64_t left_, right_;  // keys allowed before and after the diagonal, -1: all
  bool causal_;
};

}  // namespace

Mask causal(Diagonal diagonal) {
  detail::check_diagonal("causal", diagonal);
  return Mask(std::make_shared<BandMask>(std::move(diagonal), -1, 0, true));
}

Mask causal_offset(int64_t offset) { return causal(Diagonal(offset)); }

Mask causal_offset(const Tensor& offsets) {
  MH_CHECK(offsets.defined(), ValueError, "causal_offset: offsets is undefined");
  return causal(Diagonal(offsets.detach()));
}

Mask window(int64_t left, int64_t right, Diagonal diagonal) {
  MH_CHECK(left >= -1, ValueError, "window: left must be >= 0, or -1 for all, got ", left);
  MH_CHECK(right >= -1, ValueError, "window: right must be >= 0, or -1 for all, got ", right);
  detail::check_diagonal("window", diagonal);
  return Mask(std::make_shared<BandMask>(std::move(diagonal), left, right, false));
}

}  // namespace multihead
