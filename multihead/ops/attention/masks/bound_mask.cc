#include "multihead/ops/attention/masks/bound_mask-inl.h"
#include "multihead/ops/attention/masks/standing-inl.h"

#include <limits>

#include "multihead/core/error.h"

namespace multihead::detail {
namespace {

// The smaller of two window sides, where -1 is open.
int64_t narrower(int64_t a, int64_t b) {
  if (a < 0) return b;
  return b < 0 ? a : std::min(a, b);
}

}  // namespace

BoundMask::BoundMask(std::string who, const AttentionSizes& sizes, const Mask& mask)
    : who_(std::move(who)), sizes_(sizes) {
  for (const auto& part : mask.parts()) {
    if (const auto* standing = dynamic_cast<const Standing*>(part.get()))
      ends_ = resolve(*standing->diagonal());
  }
  const auto first = std::find_if(mask.parts().begin(), mask.parts().end(),
                                  [](const auto& part) { return part->diagonal() != nullptr; });
  offsets_ = resolve(first == mask.parts().end() ? Diagonal() : *(*first)->diagonal());
  for (const auto& part : mask.parts()) part->bind(*this);
  combine_flags();
}

std::vector<int64_t> BoundMask::resolve(const Diagonal& diagonal) const {
  if (diagonal.offsets.defined()) {
    const std::vector<int64_t> offsets = diagonal.offsets.to_vector<int64_t>();
    const auto count = static_cast<int64_t>(offsets.size());
    MH_CHECK(count == 1 || count == sizes_.batch, ShapeError, who_, ": offsets must be [B=", sizes_.batch,
             "], got ", diagonal.offsets.shape());
    for (const int64_t offset : offsets) {
      MH_CHECK(offset > -kFar && offset < kFar, ValueError, who_, ": offset ", offset, " is out of range");
    }
    return offsets.empty() ? std::vector<int64_t>{0} : offsets;
  }
  if (diagonal.align == Align::start) return {0};
  if (!ends_.empty()) return ends_;
  if (!sizes_.ragged) return {sizes_.keys - sizes_.queries};
  std::vector<int64_t> offsets;
  for (const auto& s : sizes_.sequences) offsets.push_back(s.key_count - s.query_count);
  return offsets.empty() ? std::vector<int64_t>{0} : offsets;
}

std::vector<int64_t> BoundMask::sample_lengths(const Tensor& values, const char* name, bool keys) const {
  const int64_t count = values.size(0);
  MH_CHECK(count == 1 || count == sizes_.batch, ShapeError, who_, ": ", name, " must be [B=", sizes_.batch,
           keys ? "] or [B, Tq], got " : "], got ", values.shape());
  std::vector<int64_t> result = values.to_vector<int64_t>();
  if (count == 1) result.assign(static_cast<size_t>(std::max<int64_t>(sizes_.batch, 1)), result[0]);
  for (int64_t b = 0; b < sizes_.batch; ++b) {
    const int64_t limit = keys ? sizes_.key_count(b) : sizes_.query_count(b);
    const int64_t length = result[static_cast<size_t>(b)];
    MH_CHECK(length >= 0 && length <= limit, ValueError, who_, ": ", name, " must be in [0, ",
             keys ? "Tk=" : "Tq=", limit, "], got ", length, " for sample ", b);
  }
  return result;
}

void BoundMask::ensure_intervals() {
  if (!begin_.empty() || sizes_.batch * sizes_.queries == 0) return;
  begin_.assign(static_cast<size_t>(sizes_.batch * sizes_.queries), 0);
  end_.resize(begin_.size());
  for (int64_t b = 0; b < sizes_.batch; ++b) {
    std::fill_n(end_.begin() + b * sizes_.queries, sizes_.queries, sizes_.key_count(b));
  }
}

KeyInterval BoundMask::band_of(int64_t b, int64_t i) const {
  const int64_t position = i + of_sample(offsets_, b), keys = sizes_.key_count(b);
  return {left_ < 0 ? 0 : std::clamp<int64_t>(position - left_, 0, keys),
          right_ < 0 ? keys : std::min(position + right_ + 1, keys)};
}

bool BoundMask::add_band(const std::vector<int64_t>& offsets, int64_t left, int64_t right) {
  if (offsets == offsets_) {
    causal_ = causal_ || right == 0;
    left_ = narrower(left_, std::min(left, kFar));
    right_ = narrower(right_, std::min(right, kFar));
    return true;
  }
  add_intervals([&](int64_t b, int64_t i) {
    const int64_t position = i + of_sample(offsets, b);
    return KeyInterval{left < 0 ? 0 : position - std::min(left, kFar),
                       right < 0 ? kFar : position + std::min(right, kFar) + 1};
  });
  return false;
}

void BoundMask::add_intervals(const std::vector<int64_t>& begin, const std::vector<int64_t>& end) {
  add_intervals([&](int64_t b, int64_t i) {
    const auto n = static_cast<size_t>(b * sizes_.queries + i);
    return KeyInterval{begin[n], end[n]};
  });
}

void BoundMask::shorten(std::vector<int64_t>& lengths, const std::vector<int64_t>& others) {
  if (lengths.empty()) lengths = others;
  for (size_t b = 0; b < others.size(); ++b) lengths[b] = std::min(lengths[b], others[b]);
}

// One keep tensor is used where it lies; drops and conjunctions become one new tensor of their joint shape.
void BoundMask::combine_flags() {
  if (flags_.empty()) return;
  if (flags_.size() == 1 && flags_[0].wanted) {
    keep_ = flags_[0].tensor;
  } else {
    Shape shape;
    for (const Flags& part : flags_) shape = broadcast_shapes(shape, part.tensor.shape());
    keep_ = Tensor::ones(shape, Dtype::boolean);
    auto* keep = static_cast<uint8_t*>(keep_.raw());
    for (const Flags& part : flags_) {
      Shape strides = Shape::filled(shape.rank(), 0);
      for (int axis = 1; axis <= part.tensor.rank(); ++axis) {
        if (part.tensor.size(-axis) != 1) strides[-axis] = part.tensor.strides()[-axis];
      }
      const Tensor flags = part.tensor.as_strided(shape, strides).contiguous();
      const auto* from = static_cast<const uint8_t*>(flags.raw());
      for (int64_t n = 0; n < keep_.numel(); ++n)
        keep[n] &= static_cast<uint8_t>((from[n] != 0) == part.wanted);
    }
  }
  keep_strides_ = broadcast_strides(who_, "mask", keep_, sizes_);
  kernels::AttentionProblem problem;
  apply(problem);
  keep_classes_.resize(static_cast<size_t>(kernels::attention_keep_classes_size(problem)));
  kernels::attention_keep_classes(problem, keep_classes_.data());
  notes_.emplace_back("dense mask: summarised per block; empty blocks are skipped, full ones unmasked");
}

void BoundMask::apply(kernels::AttentionProblem& problem) const {
  problem.batch = sizes_.batch;
  problem.heads = sizes_.heads;
  problem.kv_heads = sizes_.kv_heads;
  problem.queries = sizes_.queries;
  problem.keys = sizes_.keys;
  problem.head_dim = sizes_.head_dim;
  problem.value_dim = sizes_.value_dim;
  problem.sequences = sizes_.ragged ? sizes_.sequences.data() : nullptr;
  problem.causal = causal_;
  problem.window_left = left_;
  problem.window_right = causal_ ? -1 : right_;
  problem.diagonal = offsets_[0];
  problem.diagonals = offsets_.size() > 1 ? offsets_.data() : nullptr;
  const auto pointer = [](const std::vector<int64_t>& v) { return v.empty() ? nullptr : v.data(); };
  problem.key_lengths = pointer(key_lengths_);
  problem.query_lengths = pointer(query_lengths_);
  problem.key_begin = pointer(begin_);
  problem.key_end = pointer(end_);
  problem.interval_stride = sizes_.queries;
  if (keep_.defined()) {
    problem.keep = static_cast<const uint8_t*>(keep_.raw());
    problem.keep_strides = keep_strides_;
    problem.keep_classes = keep_classes_.empty() ? nullptr : keep_classes_.data();
  }
  if (!code_.empty()) problem.mask_function = {this, &BoundMask::fill, &BoundMask::classify};
}

void BoundMask::fill(const void* self, const kernels::KeepTile& tile) {
  const auto& code = static_cast<const BoundMask*>(self)->code_;
  code[0]->fill(tile);
  for (size_t n = 1; n < code.size(); ++n) {
    std::vector<uint8_t> more(static_cast<size_t>(tile.query_count * tile.key_count));
    kernels::KeepTile second = tile;
    second.keep = more.data();
    second.stride = tile.query_count;
    code[n]->fill(second);
    for (int64_t k = 0; k < tile.key_count; ++k) {
      for (int64_t q = 0; q < tile.query_count; ++q) {
        tile.keep[k * tile.stride + q] &= more[static_cast<size_t>(k * tile.query_count + q)];
      }
    }
  }
}

kernels::BlockClass BoundMask::classify(const void* self, const kernels::KeepTile& tile) {
  using kernels::BlockClass;
  bool full = true;
  for (const auto& code : static_cast<const BoundMask*>(self)->code_) {
    const BlockClass block = tile.key_count < code->grain() ? BlockClass::partial : code->classify(tile);
    if (block == BlockClass::empty) return block;
    full = full && block == BlockClass::full;
  }
  return full ? BlockClass::full : BlockClass::partial;
}

kernels::Strides4 broadcast_strides(const std::string& who, const char* what, const Tensor& x,
                                    const AttentionSizes& sizes) {
  const int64_t target[4] = {sizes.batch, sizes.heads, sizes.queries, sizes.keys};
  int64_t strides[4] = {0, 0, 0, 0};
  bool fits = x.rank() <= 4;
  for (int axis = 1; fits && axis <= x.rank(); ++axis) {
    const int64_t size = x.size(-axis);
    fits = size == 1 || size == target[4 - axis];
    if (fits && size != 1) strides[4 - axis] = x.strides()[-axis];
  }
  MH_CHECK(fits, ShapeError, who, ": ", what, " must broadcast to [B=", sizes.batch, ", H=", sizes.heads,
           ", Tq=", sizes.queries, ", Tk=", sizes.keys, "], got ", x.shape());
  return {strides[0], strides[1], strides[2], strides[3]};
}

void check_index_sizes(const std::string& who, const AttentionSizes& sizes,
                       const std::vector<int64_t>& offsets) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
  for (const int64_t offset : offsets) {
    MH_CHECK(offset > -kMost && offset + sizes.queries < kMost, ValueError, who,
             ": functions of a ScoreIndex take positions below 2^30, got the offset ", offset);
  }
  MH_CHECK(sizes.queries < kMost && sizes.keys < kMost && sizes.batch < kMost, ValueError, who,
           ": functions of a ScoreIndex take lengths below 2^30, got Tq=", sizes.queries,
           ", Tk=", sizes.keys);
}

}  // namespace multihead::detail
