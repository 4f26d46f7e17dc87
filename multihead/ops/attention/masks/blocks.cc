// blocks(): block-sparse attention, a bool for every block.
#include <algorithm>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {
namespace {

struct Blocks {
  Tensor flags;
  int64_t query_block, key_block;
};

class BlockCode final : public detail::MaskCode {
 public:
  BlockCode(const Blocks& blocks, const kernels::Strides4& strides) : blocks_(blocks), strides_(strides) {}

  void fill(const kernels::KeepTile& tile) const override {
    const uint8_t* flags = flags_of(tile);
    uint8_t* before = nullptr;
    for (int64_t k = 0; k < tile.key_count; ++k) {
      uint8_t* column = tile.keep + k * tile.stride;
      const int64_t key = tile.key_begin + k;
      if (before != nullptr && key % blocks_.key_block != 0) {
        std::copy_n(before, tile.query_count, column);
      } else {
        fill_column(flags + key / blocks_.key_block * strides_.key, tile, column);
      }
      before = column;
    }
  }

  int64_t grain() const override { return 1; }

  kernels::BlockClass classify(const kernels::KeepTile& tile) const override {
    if (tile.query_count <= 0 || tile.key_count <= 0) return kernels::BlockClass::partial;
    const uint8_t* flags = flags_of(tile);
    const int64_t last_row = (tile.query_begin + tile.query_count - 1) / blocks_.query_block;
    const int64_t last_column = (tile.key_begin + tile.key_count - 1) / blocks_.key_block;
    bool any = false, all = true;
    for (int64_t i = tile.query_begin / blocks_.query_block; i <= last_row; ++i) {
      for (int64_t j = tile.key_begin / blocks_.key_block; j <= last_column; ++j) {
        const bool flag = flags[i * strides_.query + j * strides_.key] != 0;
        any = any || flag;
        all = all && flag;
      }
    }
    return all ? kernels::BlockClass::full : any ? kernels::BlockClass::partial : kernels::BlockClass::empty;
  }

 private:
  // Queries that share a flag at a time.
  void fill_column(const uint8_t* flags, const kernels::KeepTile& tile, uint8_t* column) const {
    for (int64_t q = 0, end = 0; q < tile.query_count; q = end) {
      const int64_t block = (tile.query_begin + q) / blocks_.query_block;
      // Blocks longer than the tile do not overflow here.
      end = block == (tile.query_begin + tile.query_count - 1) / blocks_.query_block
                ? tile.query_count
                : (block + 1) * blocks_.query_block - tile.query_begin;
      std::memset(column + q, static_cast<int>(flags[block * strides_.query] != 0),
                  static_cast<size_t>(end - q));
    }
  }

  const uint8_t* flags_of(const kernels::KeepTile& tile) const {
    return static_cast<const uint8_t*>(blocks_.flags.raw()) + tile.batch * strides_.batch +
           tile.head * strides_.head;
  }

  Blocks blocks_;
  kernels::Strides4 strides_;
};

class BlockMask final : public MaskPart {
 public:
  explicit BlockMask(Blocks blocks) : blocks_(std::move(blocks)) {}

  std::string to_string() const override {
    return concat("blocks(", blocks_.flags.shape(), ", ", blocks_.query_block, ", ", blocks_.key_block, ")");
  }

  bool allows(const detail::MaskPair& at) const override {
    return detail::broadcast_at(blocks_.flags, at.b, at.h, at.i / blocks_.query_block,
                                at.j / blocks_.key_block) != 0;
  }

  void bind(detail::BoundMask& mask) const override {
    const auto count = [](int64_t size, int64_t block) { return size / block + (size % block != 0); };
    detail::AttentionSizes grid = mask.sizes();
    grid.ragged = false;
    grid.queries = count(grid.queries, blocks_.query_block);
    grid.keys = count(grid.keys, blocks_.key_block);
    const kernels::Strides4 strides = detail::broadcast_strides(mask.who(), "blocks", blocks_.flags, grid);
    mask.add_code(std::make_unique<BlockCode>(blocks_, strides));
    mask.add_note("blocks: looked at block by block; what the kernel skips stands below");
  }

 private:
  Blocks blocks_;
};

}  // namespace

Mask blocks(const Tensor& flags, int64_t query_block, int64_t key_block) {
  detail::check_flags("blocks", flags);
  MH_CHECK(query_block > 0 && key_block > 0, ValueError, "blocks: block sizes must be > 0, got ", query_block,
           " and ", key_block);
  return Mask(std::make_shared<BlockMask>(Blocks{flags.detach(), query_block, key_block}));
}

}  // namespace multihead
