// A user's function that says which pairs may meet, with optional skipping of whole blocks.
#pragma once

#include <type_traits>
#include <utility>

#include "multihead/ops/attention/mask.h"
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

template <class F, class C>
struct MaskFunctions {
  F keep;
  C classify;
};

struct NoClassify {};

template <class F, class C>
void fill_mask(const void* function, const kernels::KeepTile& tile, int64_t offset) {
  const F& keep = static_cast<const MaskFunctions<F, C>*>(function)->keep;
  for (int64_t k = 0; k < tile.key_count; ++k) {
    for (int64_t q = 0; q < tile.query_count; ++q) {
      const int64_t row = tile.query_begin + q;
      const ScoreIndex at{static_cast<int32_t>(tile.batch), static_cast<int32_t>(tile.head),
                          static_cast<int32_t>(row + offset), static_cast<int32_t>(tile.key_begin + k),
                          static_cast<int32_t>(row)};
      tile.keep[k * tile.stride + q] = keep(at) ? 1 : 0;
    }
  }
}

template <class F, class C>
BlockClass classify_mask(const void* function, const kernels::KeepTile& tile, int64_t offset) {
  return static_cast<const MaskFunctions<F, C>*>(function)->classify(MaskBlock{
      tile.batch, tile.head, tile.query_begin + offset, tile.query_begin + offset + tile.query_count,
      tile.key_begin, tile.key_begin + tile.key_count});
}

}  // namespace detail

/// Pairs for which f(ScoreIndex) is true may meet. The function is copied and called from several threads;
/// what it refers to must live until the backward has run.
template <class F>
Mask mask_mod(F f, Diagonal diagonal = Align::end) {
  using Functions = detail::MaskFunctions<F, detail::NoClassify>;
  MaskPart part;
  part.kind = MaskPart::Kind::function;
  part.diagonal = std::move(diagonal);
  part.function = std::make_shared<const Functions>(Functions{std::move(f), {}});
  part.fill = detail::fill_mask<F, detail::NoClassify>;
  return Mask(std::move(part));
}

/// As above with `classify(MaskBlock) -> BlockClass`: empty blocks are never computed and full ones carry no
/// mask code. It must agree with f; say partial when in doubt.
template <class F, class C>
requires std::is_invocable_r_v<BlockClass, C, MaskBlock> Mask mask_mod(F f, C classify,
                                                                       Diagonal diagonal = Align::end) {
  using Functions = detail::MaskFunctions<F, C>;
  MaskPart part;
  part.kind = MaskPart::Kind::function;
  part.diagonal = std::move(diagonal);
  part.function = std::make_shared<const Functions>(Functions{std::move(f), std::move(classify)});
  part.fill = detail::fill_mask<F, C>;
  part.classify = detail::classify_mask<F, C>;
  return Mask(std::move(part));
}

}  // namespace multihead
