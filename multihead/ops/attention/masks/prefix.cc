// prefix(): causal, except that everybody sees the first keys.
#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

class PrefixMask final : public MaskPart {
 public:
  PrefixMask(Tensor lengths, Diagonal diagonal)
      : lengths_(std::move(lengths)), diagonal_(std::move(diagonal)) {}

  std::string to_string() const override {
    return concat("prefix(", lengths_.shape(), ", ", diagonal_.to_string(), ")");
  }

  const Diagonal* diagonal() const override { return &diagonal_; }

  bool allows(const detail::MaskPair& at) const override {
    return at.j <= at.i + diagonal_.offset_at(at) || at.j < detail::value_at(lengths_, at.b);
  }

  void bind(detail::BoundMask& mask) const override {
    const std::vector<int64_t> offsets = mask.resolve(diagonal_);
    const std::vector<int64_t> lengths = mask.sample_lengths(lengths_, "prefix", true);
    mask.add_intervals([&](int64_t b, int64_t i) {
      const int64_t causal_end = i + detail::BoundMask::of_sample(offsets, b) + 1;
      return detail::KeyInterval{0, std::max(causal_end, lengths[static_cast<size_t>(b)])};
    });
    mask.add_note("prefix: intervals of keys per query");
  }

 private:
  Tensor lengths_;
  Diagonal diagonal_;
};

}  // namespace

Mask prefix(int64_t length, Diagonal diagonal) {
  const Tensor lengths = Tensor::empty({1}, Dtype::i64);
  lengths.data<int64_t>()[0] = length;
  return prefix(lengths, std::move(diagonal));
}

Mask prefix(const Tensor& lengths, Diagonal diagonal) {
  detail::check_integers("prefix", "lengths", lengths, 1, 1, "[B]");
  detail::check_diagonal("prefix", diagonal);
  return Mask(std::make_shared<PrefixMask>(lengths.detach(), std::move(diagonal)));
}

}  // namespace multihead
