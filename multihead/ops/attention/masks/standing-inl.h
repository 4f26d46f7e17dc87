// Where the queries of a decoding step stand among the cached keys. Internal to the library.
#pragma once

#include <string>
#include <utility>

#include "multihead/ops/attention/masks/mask.h"

namespace multihead::detail {

/// Excludes nothing: the offset of each sample's queries, for every part of the mask that is aligned at the
/// end and for the score terms. The rows of a cache hold unequal numbers of tokens, so that Tk - Tq is right
/// for the longest alone.
class Standing final : public MaskPart {
 public:
  explicit Standing(Diagonal diagonal) : diagonal_(std::move(diagonal)) {}

  std::string to_string() const override { return "standing(" + diagonal_.to_string() + ")"; }
  const Diagonal* diagonal() const override { return &diagonal_; }
  bool allows(const MaskPair&) const override { return true; }
  void bind(BoundMask&) const override {}

 private:
  Diagonal diagonal_;
};

inline Mask standing(Diagonal diagonal) { return Mask(std::make_shared<Standing>(std::move(diagonal))); }

}  // namespace multihead::detail
