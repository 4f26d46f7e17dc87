// Masks by function whose queries each see one run of keys, found by running the function once for all heads.
// The kernel then skips what is outside without a look, where it would run the function in every head
// (documents of 300 tokens, causal, 1024 tokens, 8 heads of 64, one core of a Zen 5: 6.3 -> 1.8 ms;
// 2026-11-21).
#include <algorithm>
#include <array>
#include <utility>

#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {
namespace {

constexpr int64_t kRows = 64, kColumns = 64;

// The runs of up to 64 queries, keys taken in ascending order.
class Runs {
 public:
  Runs() { begin_.fill(0), end_.fill(kNone); }

  // Keys [k0, k1) are seen by every query.
  bool add_full(int32_t k0, int32_t k1) {
    int32_t bad = 0;
    for (size_t q = 0; q < kRows; ++q) {
      bad |= int32_t{end_[q] != kNone} & int32_t{end_[q] != k0};
      begin_[q] = end_[q] == kNone ? k0 : begin_[q];
      end_[q] = k1;
    }
    return bad == 0;
  }

  // keep[k - k0][q] says who sees key k.
  bool add(const uint8_t* keep, int32_t k0, int32_t k1) {
    int32_t bad = 0;
    for (int32_t k = k0; k < k1; ++k, keep += kRows) {
      for (size_t q = 0; q < kRows; ++q) {
        // Without branches, so that the loop becomes vectors.
        const int32_t seen = keep[q] != 0, first = seen & int32_t{end_[q] == kNone};
        bad |= (seen ^ first) & int32_t{end_[q] != k};
        begin_[q] = first != 0 ? k : begin_[q];
        end_[q] = seen != 0 ? k + 1 : end_[q];
      }
    }
    return bad == 0;
  }

  void store(int64_t count, int64_t* begin, int64_t* end) const {
    for (int64_t q = 0; q < count; ++q) {
      begin[q] = begin_[static_cast<size_t>(q)];
      end[q] = std::max(end_[static_cast<size_t>(q)], 0);
    }
  }

 private:
  static constexpr int32_t kNone = -1;
  std::array<int32_t, kRows> begin_, end_;
};

// One function on up to 64 queries of a sample.
struct Scan {
  const MaskPart* part;
  int64_t offset;
  kernels::KeepTile rows;  // the queries
  Runs runs;

  // Halves what is neither empty nor full, down to blocks whose elements are looked at.
  bool visit(int64_t k0, int64_t k1) {
    kernels::KeepTile tile = rows;
    tile.key_begin = k0, tile.key_count = k1 - k0;
    const kernels::BlockClass block = part->classify(part->function.get(), tile, offset);
    if (block == kernels::BlockClass::empty) return true;
    if (block == kernels::BlockClass::full) {
      return runs.add_full(static_cast<int32_t>(k0), static_cast<int32_t>(k1));
    }
    if (k1 - k0 > kColumns) {
      const int64_t middle = k0 + ((k1 - k0) / 2 + kColumns - 1) / kColumns * kColumns;
      return visit(k0, middle) && visit(middle, k1);
    }
    std::array<uint8_t, kRows * kColumns> keep{};
    tile.keep = keep.data(), tile.stride = kRows;
    part->fill(part->function.get(), tile, offset);
    return runs.add(keep.data(), static_cast<int32_t>(k0), static_cast<int32_t>(k1));
  }
};

}  // namespace

void BoundMask::add_function(const MaskPart& part) {
  Function f{part, resolve(part.diagonal), {}, {}, 0, 0, 0, 0, {}};
  if (part.every_head && part.classify && find_intervals(f)) {
    notes_.push_back("mask_mod: intervals of keys per query");
    return;
  }
  functions_.push_back(std::move(f));
  notes_.push_back(part.classify ? "mask_mod: blocks classified by the user's function"
                                 : "mask_mod: no classify function, so every block is computed");
}

// False if some query sees more than one run of keys. Keys outside the band, which precedes, do not matter.
bool BoundMask::find_intervals(const Function& f) {
  std::vector<int64_t> begin(static_cast<size_t>(sizes_.batch * sizes_.queries)), end(begin.size());
  const int64_t right = causal_ ? 0 : right_;
  for (int64_t b = 0; b < sizes_.batch; ++b) {
    const int64_t queries = sizes_.query_count(b), keys = sizes_.key_count(b), diagonal = at(offsets_, b);
    for (int64_t q = 0; q < queries; q += kRows) {
      kernels::KeepTile rows;
      rows.batch = b, rows.query_begin = q, rows.query_count = std::min(kRows, queries - q);
      const int64_t first = left_ < 0 ? 0 : std::clamp<int64_t>(q + diagonal - left_, 0, keys);
      const int64_t last = right < 0 ? keys : q + rows.query_count + diagonal + right;
      Scan scan{&f.part, at(f.offsets, b), rows, {}};
      if (first < std::min(last, keys) && !scan.visit(first, std::min(last, keys))) return false;
      const int64_t n = b * sizes_.queries + q;
      scan.runs.store(rows.query_count, begin.data() + n, end.data() + n);
    }
  }
  intersect_intervals(begin, end);
  return true;
}

void BoundMask::intersect_intervals(const std::vector<int64_t>& begin, const std::vector<int64_t>& end) {
  ensure_intervals();
  for (size_t n = 0; n < begin_.size(); ++n) {
    begin_[n] = std::max(begin_[n], begin[n]);
    end_[n] = std::min(end_[n], end[n]);
  }
}

}  // namespace multihead::detail
