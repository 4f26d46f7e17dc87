// keep() and drop(): a bool for every pair.
#include <array>

#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

class FlagMask final : public MaskPart {
 public:
  FlagMask(Tensor flags, bool wanted, unsigned exact)
      : flags_(std::move(flags)), wanted_(wanted), exact_(exact) {}

  std::string to_string() const override { return concat(wanted_ ? "keep(" : "drop(", flags_.shape(), ")"); }

  bool allows(const detail::MaskPair& at) const override {
    return (detail::broadcast_at(flags_, at.b, at.h, at.i, at.j) != 0) == wanted_;
  }

  void bind(detail::BoundMask& mask) const override {
    detail::broadcast_strides(mask.who(), "mask", flags_, mask.sizes());
    check_exact(mask);
    mask.add_flags(flags_, wanted_);
  }

 private:
  void check_exact(const detail::BoundMask& mask) const {
    constexpr const char* kNames[] = {"B", "H", "Tq", "Tk"};
    const detail::AttentionSizes& s = mask.sizes();
    const std::array<int64_t, 4> sizes = {s.batch, s.heads, s.queries, s.keys};
    for (int axis = 0; axis < 4; ++axis) {
      const auto a = static_cast<size_t>(axis);
      const int from_end = 4 - axis;
      const int64_t size = from_end <= flags_.rank() ? flags_.size(-from_end) : 1;
      MH_CHECK((exact_ >> a & 1) == 0 || size == sizes[a], ShapeError, mask.who(), ": the mask ",
               flags_.shape(), " must have ", kNames[a], "=", sizes[a], ", got ", size,
               ": this axis is not broadcast");
    }
  }

  Tensor flags_;
  bool wanted_;     // the flag of pairs that may meet
  unsigned exact_;  // bit a: axis a of [B, H, Tq, Tk] is not broadcast
};

}  // namespace

Mask detail::flag_mask(const Tensor& flags, bool wanted, unsigned exact) {
  check_flags(wanted ? "keep" : "drop", flags);
  return Mask(std::make_shared<FlagMask>(flags.detach(), wanted, exact));
}

Mask keep(const Tensor& flags) { return detail::flag_mask(flags, true, 0); }

Mask drop(const Tensor& flags) { return detail::flag_mask(flags, false, 0); }

}  // namespace multihead
