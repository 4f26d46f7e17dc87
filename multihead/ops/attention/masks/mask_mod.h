// A user-defined mask function, with optional skipping of whole blocks.
#pragma once

#include <type_traits>
#include <utility>

#include "multihead/ops/attention/masks/mask.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

using kernels::BlockClass;

/// A rectangle of pairs, ends exclusive. Queries are positions, as in ScoreIndex.
struct MaskBlock {
  int64_t batch = 0, head = 0;
  int64_t query_begin = 0, query_end = 0;
  int64_t key_begin = 0, key_end = 0;
};

namespace detail {

/// A mask that code decides. `offset` is that of the queries' positions.
class FunctionMask : public MaskPart, public std::enable_shared_from_this<FunctionMask> {
 public:
  explicit FunctionMask(Diagonal diagonal) : diagonal_(std::move(diagonal)) {}

  /// Writes 0 or 1 to every element of the tile.
  virtual void fill(const kernels::KeepTile& tile, int64_t offset) const = 0;
  /// Whether classify() tells more than that every block is partial.
  virtual bool classifies() const { return false; }
  virtual BlockClass classify(const kernels::KeepTile&, int64_t) const { return BlockClass::partial; }
  /// It says the same for every head, so it may be run once for all.
  virtual bool every_head() const { return false; }

  std::string to_string() const override;
  const Diagonal* diagonal() const override { return &diagonal_; }
  bool allows(const MaskPair& at) const override;
  void bind(BoundMask& mask) const override;

 private:
  Diagonal diagonal_;
};

template <class F>
class PairFunction : public FunctionMask {
 public:
  PairFunction(F keep, Diagonal diagonal) : FunctionMask(std::move(diagonal)), keep_(std::move(keep)) {}

  void fill(const kernels::KeepTile& tile, int64_t offset) const final {
    for (int64_t k = 0; k < tile.key_count; ++k) {
      for (int64_t q = 0; q < tile.query_count; ++q) {
        const int64_t row = tile.query_begin + q;
        const ScoreIndex at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head),
                            static_cast<int32_t>(row + offset), static_cast<int32_t>(tile.key_begin + k),
                            static_cast<int32_t>(row)};
        tile.keep[k * tile.stride + q] = keep_(at) ? 1 : 0;
      }
    }
  }

 private:
  F keep_;
};

template <class F, class C>
class ClassifiedFunction final : public PairFunction<F> {
 public:
  ClassifiedFunction(F keep, C classify, Diagonal diagonal)
      : PairFunction<F>(std::move(keep), std::move(diagonal)), classify_(std::move(classify)) {}

  bool classifies() const override { return true; }
  BlockClass classify(const kernels::KeepTile& tile, int64_t offset) const override {
    return classify_(MaskBlock{tile.batch, tile.head, tile.query_begin + offset,
                               tile.query_begin + offset + tile.query_count, tile.key_begin,
                               tile.key_begin + tile.key_count});
  }

 private:
  C classify_;
};

}  // namespace detail

/// Allows the pairs for which f(ScoreIndex) is true. The function is copied and called from several threads;
/// anything it refers to must live until the backward has run.
template <class F>
Mask mask_mod(F f, Diagonal diagonal = Align::end) {
  static_assert(std::is_invocable_r_v<bool, const F&, ScoreIndex>,
                "mask_mod: f must be [](ScoreIndex at) { return true or false; }");
  return Mask(std::make_shared<detail::PairFunction<F>>(std::move(f), std::move(diagonal)));
}

/// As above with `classify(MaskBlock) -> BlockClass`: empty blocks are never computed and full ones carry no
/// mask code. It must agree with f; say partial when in doubt.
template <class F, class C>
requires std::is_invocable_r_v<BlockClass, C, MaskBlock> Mask mask_mod(F f, C classify,
                                                                       Diagonal diagonal = Align::end) {
  return Mask(std::make_shared<detail::ClassifiedFunction<F, C>>(std::move(f), std::move(classify),
                                                                 std::move(diagonal)));
}

}  // namespace multihead
