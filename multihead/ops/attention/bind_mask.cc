// Masks become analytic bands, lengths and intervals where they can: the kernel skips what those exclude
// without looking. Only dense flags, scattered documents, block maps and user functions cost code per
// element.
#include <algorithm>
#include <array>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/ops/attention/bind-inl.h"

namespace multihead::detail {
namespace {

constexpr int64_t kFar = int64_t{1} << 40;  // beyond any sequence, safe to add

// The smaller of two window sides, where -1 is open.
int64_t narrower(int64_t a, int64_t b) {
  if (a < 0) return b;
  return b < 0 ? a : std::min(a, b);
}

int64_t blocks_of(int64_t count, int64_t block) { return count / block + (count % block != 0); }

}  // namespace

BoundMask::BoundMask(std::string who, const AttentionSizes& sizes, const Mask& mask)
    : who_(std::move(who)), sizes_(sizes) {
  using Kind = MaskPart::Kind;
  const auto positioned = [](const MaskPart& part) {
    return part.kind == Kind::band || part.kind == Kind::prefix || part.kind == Kind::function;
  };
  const auto first = std::find_if(mask.parts().begin(), mask.parts().end(), positioned);
  offsets_ = resolve(first == mask.parts().end() ? Diagonal() : first->diagonal);
  for (const MaskPart& part : mask.parts()) {
    switch (part.kind) {
      case Kind::band:
        add_band(part);
        break;
      case Kind::prefix:
        add_prefix(part);
        break;
      case Kind::key_lengths:
        add_key_lengths(part);
        break;
      case Kind::query_lengths:
        add_query_lengths(part);
        break;
      case Kind::documents:
        add_documents(part);
        break;
      case Kind::keep:
      case Kind::drop:
        add_flags(part);
        break;
      case Kind::blocks:
        add_blocks(part);
        break;
      case Kind::function:
        add_function(part);
        break;
    }
  }
  combine_flags();
}

int64_t BoundMask::at(const std::vector<int64_t>& values, int64_t b) const {
  return values[values.size() == 1 ? 0 : static_cast<size_t>(b)];
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
    return offsets;
  }
  if (diagonal.align == Align::start) return {0};
  if (!sizes_.ragged) return {sizes_.keys - sizes_.queries};
  std::vector<int64_t> offsets;
  for (const auto& s : sizes_.sequences) offsets.push_back(s.key_count - s.query_count);
  return offsets.empty() ? std::vector<int64_t>{0} : offsets;
}

std::vector<int64_t> BoundMask::per_sample(const Tensor& values, const char* name, bool keys) const {
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

void BoundMask::add_band(const MaskPart& part) {
  const std::vector<int64_t> offsets = resolve(part.diagonal);
  if (offsets == offsets_) {
    causal_ = causal_ || part.right == 0;
    left_ = narrower(left_, std::min(part.left, kFar));
    right_ = narrower(right_, std::min(part.right, kFar));
    notes_.push_back(part.causal ? "causal: blocks above the diagonal are skipped"
                                 : "window: blocks outside are skipped");
    return;
  }
  ensure_intervals();  // a second diagonal
  for (int64_t b = 0; b < sizes_.batch; ++b) {
    for (int64_t i = 0; i < sizes_.queries; ++i) {
      const auto n = static_cast<size_t>(b * sizes_.queries + i);
      const int64_t position = i + at(offsets, b);
      if (part.left >= 0) begin_[n] = std::max(begin_[n], position - std::min(part.left, kFar));
      if (part.right >= 0) end_[n] = std::min(end_[n], position + std::min(part.right, kFar) + 1);
    }
  }
  notes_.push_back("a band on a second diagonal: intervals of keys per query");
}

void BoundMask::add_prefix(const MaskPart& part) {
  const std::vector<int64_t> offsets = resolve(part.diagonal);
  const std::vector<int64_t> lengths = per_sample(part.tensor, "prefix", true);
  ensure_intervals();
  for (int64_t b = 0; b < sizes_.batch; ++b) {
    for (int64_t i = 0; i < sizes_.queries; ++i) {
      int64_t& end = end_[static_cast<size_t>(b * sizes_.queries + i)];
      end = std::min(end, std::max(i + at(offsets, b) + 1, lengths[static_cast<size_t>(b)]));
    }
  }
  notes_.push_back("prefix: intervals of keys per query");
}

void BoundMask::add_key_lengths(const MaskPart& part) {
  if (part.tensor.rank() == 1) {
    const std::vector<int64_t> lengths = per_sample(part.tensor, "lengths", true);
    if (key_lengths_.empty()) key_lengths_ = lengths;
    for (size_t b = 0; b < lengths.size(); ++b) key_lengths_[b] = std::min(key_lengths_[b], lengths[b]);
    notes_.push_back("lengths: keys behind the end are skipped");
    return;
  }
  const Tensor& x = part.tensor;
  MH_CHECK((x.size(0) == 1 || x.size(0) == sizes_.batch) && x.size(1) == sizes_.queries, ShapeError, who_,
           ": lengths must be [B=", sizes_.batch, "] or [B, Tq=", sizes_.queries, "], got ", x.shape());
  const std::vector<int64_t> lengths = x.to_vector<int64_t>();
  ensure_intervals();
  for (int64_t b = 0; b < sizes_.batch; ++b) {
    for (int64_t i = 0; i < sizes_.query_count(b); ++i) {
      const int64_t length = lengths[static_cast<size_t>((x.size(0) == 1 ? 0 : b) * sizes_.queries + i)];
      MH_CHECK(length >= 0 && length <= sizes_.key_count(b), ValueError, who_,
               ": lengths must be in [0, Tk=", sizes_.key_count(b), "], got ", length, " for query ", i,
               " of sample ", b);
      int64_t& end = end_[static_cast<size_t>(b * sizes_.queries + i)];
      end = std::min(end, length);
    }
  }
  notes_.push_back("lengths per query: intervals of keys per query");
}

void BoundMask::add_query_lengths(const MaskPart& part) {
  const std::vector<int64_t> lengths = per_sample(part.tensor, "query_lengths", false);
  if (query_lengths_.empty()) query_lengths_ = lengths;
  for (size_t b = 0; b < lengths.size(); ++b) query_lengths_[b] = std::min(query_lengths_[b], lengths[b]);
  notes_.push_back("query_lengths: queries behind the end are skipped");
}

void BoundMask::add_documents(const MaskPart& part) {
  MH_CHECK(!sizes_.ragged, ValueError, who_,
           ": documents() makes no sense in a ragged batch, whose sequences never see each other");
  const Tensor& key_ids = part.other.defined() ? part.other : part.tensor;
  const auto check = [&](const char* name, const Tensor& ids, int64_t count) {
    const bool fits =
        ids.size(-1) == count && (ids.rank() == 1 || ids.size(0) == 1 || ids.size(0) == sizes_.batch);
    MH_CHECK(fits, ShapeError, who_, ": ", name, " must be [", count, "] or [B=", sizes_.batch, ", ", count,
             "], got ", ids.shape());
  };
  check(part.other.defined() ? "query document ids" : "document ids", part.tensor, sizes_.queries);
  check(part.other.defined() ? "key document ids" : "document ids", key_ids, sizes_.keys);
  const auto stride = [](const Tensor& ids) { return ids.rank() == 1 || ids.size(0) == 1 ? 0 : ids.size(1); };
  Function f{part,
             {0},
             part.tensor.to_vector<int64_t>(),
             key_ids.to_vector<int64_t>(),
             sizes_.queries,
             sizes_.keys,
             stride(part.tensor),
             stride(key_ids),
             {}};

  const auto queries = static_cast<size_t>(sizes_.queries);
  std::vector<int64_t> begin(static_cast<size_t>(sizes_.batch) * queries), end(begin.size());
  bool contiguous = true;
  for (int64_t b = 0; b < sizes_.batch && contiguous; ++b) {
    contiguous = kernels::attention_document_intervals(
        f.query_ids.data() + b * f.query_id_stride, sizes_.queries, f.key_ids.data() + b * f.key_id_stride,
        sizes_.keys, begin.data() + b * sizes_.queries, end.data() + b * sizes_.queries);
  }
  if (!contiguous) {
    functions_.push_back(std::move(f));
    notes_.push_back("documents: scattered ids, compared element by element");
    return;
  }
  intersect_intervals(begin, end);
  notes_.push_back("documents: intervals of keys per query");
}

void BoundMask::add_flags(const MaskPart& part) {
  broadcast_strides(who_, "mask", part.tensor, sizes_);
  check_exact(part);
  flags_.push_back(part);
}

// Axes that another system's mask does not broadcast.
void BoundMask::check_exact(const MaskPart& part) const {
  if (part.exact == 0) return;
  constexpr const char* kNames[] = {"B", "H", "Tq", "Tk"};
  const std::array<int64_t, 4> sizes = {sizes_.batch, sizes_.heads, sizes_.queries, sizes_.keys};
  for (int axis = 0; axis < 4; ++axis) {
    const auto a = static_cast<size_t>(axis);
    const int from_end = 4 - axis;
    const int64_t size = from_end <= part.tensor.rank() ? part.tensor.size(-from_end) : 1;
    MH_CHECK((part.exact >> a & 1) == 0 || size == sizes[a], ShapeError, who_, ": the mask ",
             part.tensor.shape(), " must have ", kNames[a], "=", sizes[a], ", got ", size,
             ": this axis is not broadcast");
  }
}

void BoundMask::add_blocks(const MaskPart& part) {
  AttentionSizes grid = sizes_;
  grid.ragged = false;
  grid.queries = blocks_of(sizes_.queries, part.query_block);
  grid.keys = blocks_of(sizes_.keys, part.key_block);
  Function f{part, {0}, {}, {}, 0, 0, 0, 0, broadcast_strides(who_, "blocks", part.tensor, grid)};
  functions_.push_back(std::move(f));
  notes_.push_back("blocks: excluded blocks are skipped");
}

// One keep tensor is used where it lies; drops and conjunctions become one new tensor of their joint shape.
void BoundMask::combine_flags() {
  if (flags_.empty()) return;
  if (flags_.size() == 1 && flags_[0].kind == MaskPart::Kind::keep) {
    keep_ = flags_[0].tensor;
  } else {
    Shape shape;
    for (const MaskPart& part : flags_) shape = broadcast_shapes(shape, part.tensor.shape());
    keep_ = Tensor::ones(shape, Dtype::boolean);
    auto* keep = static_cast<uint8_t*>(keep_.raw());
    for (const MaskPart& part : flags_) {
      Shape strides = Shape::filled(shape.rank(), 0);
      for (int axis = 1; axis <= part.tensor.rank(); ++axis) {
        if (part.tensor.size(-axis) != 1) strides[-axis] = part.tensor.strides()[-axis];
      }
      const Tensor flags = part.tensor.as_strided(shape, strides).contiguous();
      const auto* from = static_cast<const uint8_t*>(flags.raw());
      const bool wanted = part.kind == MaskPart::Kind::keep;
      for (int64_t n = 0; n < keep_.numel(); ++n) keep[n] &= static_cast<uint8_t>((from[n] != 0) == wanted);
    }
  }
  keep_strides_ = broadcast_strides(who_, "mask", keep_, sizes_);
  kernels::AttentionProblem problem;
  apply(problem);
  keep_classes_.resize(static_cast<size_t>(kernels::attention_keep_classes_size(problem)));
  kernels::attention_keep_classes(problem, keep_classes_.data());
  notes_.push_back("dense mask: a summary of its blocks lets empty and full ones go");
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
  if (!functions_.empty()) problem.mask_function = {this, &BoundMask::fill, &BoundMask::classify};
}

void BoundMask::fill_part(const Function& f, const kernels::KeepTile& tile) {
  const MaskPart& part = f.part;
  if (part.kind == MaskPart::Kind::function) {
    const int64_t offset = f.offsets[f.offsets.size() == 1 ? 0 : static_cast<size_t>(tile.batch)];
    part.fill(part.function.get(), tile, offset);
    return;
  }
  for (int64_t k = 0; k < tile.key_count; ++k) {
    uint8_t* column = tile.keep + k * tile.stride;
    const int64_t j = tile.key_begin + k;
    if (part.kind == MaskPart::Kind::documents) {
      const int64_t* ids = f.query_ids.data() + tile.batch * f.query_id_stride + tile.query_begin;
      const int64_t id = f.key_ids[static_cast<size_t>(tile.batch * f.key_id_stride + j)];
      for (int64_t q = 0; q < tile.query_count; ++q) column[q] = ids[q] == id;
    } else {
      const auto* flags = static_cast<const uint8_t*>(part.tensor.raw()) + tile.batch * f.flags.batch +
                          tile.head * f.flags.head + j / part.key_block * f.flags.key;
      for (int64_t q = 0; q < tile.query_count; ++q) {
        column[q] = flags[(tile.query_begin + q) / part.query_block * f.flags.query] != 0;
      }
    }
  }
}

void BoundMask::fill(const void* self, const kernels::KeepTile& tile) {
  const auto& functions = static_cast<const BoundMask*>(self)->functions_;
  fill_part(functions[0], tile);
  for (size_t n = 1; n < functions.size(); ++n) {
    std::vector<uint8_t> more(static_cast<size_t>(tile.query_count * tile.key_count));
    kernels::KeepTile second = tile;
    second.keep = more.data();
    second.stride = tile.query_count;
    fill_part(functions[n], second);
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
  for (const Function& f : static_cast<const BoundMask*>(self)->functions_) {
    const MaskPart& part = f.part;
    BlockClass block = BlockClass::partial;
    if (part.kind == MaskPart::Kind::function && part.classify) {
      const int64_t offset = f.offsets[f.offsets.size() == 1 ? 0 : static_cast<size_t>(tile.batch)];
      block = part.classify(part.function.get(), tile, offset);
    } else if (part.kind == MaskPart::Kind::blocks && tile.query_count > 0 && tile.key_count > 0) {
      bool any = false, all = true;
      const auto* flags = static_cast<const uint8_t*>(part.tensor.raw()) + tile.batch * f.flags.batch +
                          tile.head * f.flags.head;
      const int64_t last_row = (tile.query_begin + tile.query_count - 1) / part.query_block;
      const int64_t last_column = (tile.key_begin + tile.key_count - 1) / part.key_block;
      for (int64_t i = tile.query_begin / part.query_block; i <= last_row; ++i) {
        for (int64_t j = tile.key_begin / part.key_block; j <= last_column; ++j) {
          const bool flag = flags[i * f.flags.query + j * f.flags.key] != 0;
          any = any || flag;
          all = all && flag;
        }
      }
      block = all ? BlockClass::full : any ? BlockClass::partial : BlockClass::empty;
    }
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

}  // namespace multihead::detail
