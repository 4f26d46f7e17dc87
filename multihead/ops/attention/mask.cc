#include "multihead/ops/attention/mask.h"

#include "multihead/core/error.h"

namespace multihead {
namespace {

void check_flags(const char* who, const Tensor& flags) {
  MH_CHECK(flags.defined(), ValueError, who, ": the tensor is undefined");
  MH_CHECK(flags.dtype() == Dtype::boolean, DtypeError, who, ": flags must be bool, got ", flags.dtype(),
           is_floating(flags.dtype()) ? "; numbers to add to the scores go into options.bias"
                                      : "; convert with .to(Dtype::boolean)");
  MH_CHECK(flags.rank() <= 4, ShapeError, who, ": flags must broadcast to [B, H, Tq, Tk], got ",
           flags.shape());
}

void check_integers(const char* who, const char* argument, const Tensor& x, int lowest_rank, int highest_rank,
                    const char* expected) {
  MH_CHECK(x.defined(), ValueError, who, ": ", argument, " is undefined");
  MH_CHECK(x.dtype() == Dtype::i64 || x.dtype() == Dtype::i32, DtypeError, who, ": ", argument,
           " must be i64 or i32, got ", x.dtype());
  MH_CHECK(x.rank() >= lowest_rank && x.rank() <= highest_rank, ShapeError, who, ": ", argument, " must be ",
           expected, ", got ", x.shape());
}

Mask of_tensor(MaskPart::Kind kind, const Tensor& tensor) {
  MaskPart part;
  part.kind = kind;
  part.tensor = tensor.detach();
  return Mask(std::move(part));
}

void check_diagonal(const char* who, const Diagonal& diagonal) {
  if (diagonal.offsets.defined()) check_integers(who, "offsets", diagonal.offsets, 1, 1, "[B]");
}

std::string text(const Diagonal& diagonal) {
  if (!diagonal.offsets.defined()) return diagonal.align == Align::end ? "end" : "start";
  if (diagonal.offsets.numel() == 1) return concat("offset=", diagonal.offsets.to_vector<int64_t>()[0]);
  return concat("offsets=", diagonal.offsets.shape());
}

std::string text(const MaskPart& part) {
  using Kind = MaskPart::Kind;
  switch (part.kind) {
    case Kind::keep:
      return concat("keep(", part.tensor.shape(), ")");
    case Kind::drop:
      return concat("drop(", part.tensor.shape(), ")");
    case Kind::band:
      if (part.causal) return concat("causal(", text(part.diagonal), ")");
      return concat("window(", part.left, ", ", part.right, ", ", text(part.diagonal), ")");
    case Kind::prefix:
      return concat("prefix(", part.tensor.shape(), ", ", text(part.diagonal), ")");
    case Kind::key_lengths:
      return concat("lengths(", part.tensor.shape(), ")");
    case Kind::query_lengths:
      return concat("query_lengths(", part.tensor.shape(), ")");
    case Kind::documents:
      return part.other.defined() ? concat("documents(", part.tensor.shape(), ", ", part.other.shape(), ")")
                                  : concat("documents(", part.tensor.shape(), ")");
    case Kind::blocks:
      return concat("blocks(", part.tensor.shape(), ", ", part.query_block, ", ", part.key_block, ")");
    case Kind::function:
      return part.classify ? "mask_mod(f, classify)" : "mask_mod(f)";
  }
  return "?";
}

}  // namespace

Diagonal::Diagonal(int64_t offset) : offsets(Tensor::full({1}, static_cast<double>(offset), Dtype::i64)) {
  offsets.data<int64_t>()[0] = offset;
}

Mask& Mask::operator&=(const Mask& other) {
  const std::vector<MaskPart> added = other.parts_;  // other may be *this
  parts_.insert(parts_.end(), added.begin(), added.end());
  return *this;
}

std::string Mask::to_string() const {
  if (parts_.empty()) return "all";
  std::string result;
  for (const MaskPart& part : parts_) result += (result.empty() ? "" : " & ") + text(part);
  return result;
}

Mask keep(const Tensor& flags) {
  check_flags("keep", flags);
  return of_tensor(MaskPart::Kind::keep, flags);
}

Mask drop(const Tensor& flags) {
  check_flags("drop", flags);
  return of_tensor(MaskPart::Kind::drop, flags);
}

Mask causal(Diagonal diagonal) {
  check_diagonal("causal", diagonal);
  MaskPart part;
  part.kind = MaskPart::Kind::band;
  part.causal = true;
  part.right = 0;
  part.diagonal = std::move(diagonal);
  return Mask(std::move(part));
}

Mask causal_offset(int64_t offset) { return causal(Diagonal(offset)); }

Mask causal_offset(const Tensor& offsets) {
  MH_CHECK(offsets.defined(), ValueError, "causal_offset: offsets is undefined");
  return causal(Diagonal(offsets.detach()));
}

Mask window(int64_t left, int64_t right, Diagonal diagonal) {
  MH_CHECK(left >= -1, ValueError, "window: left must be >= 0, or -1 for all, got ", left);
  MH_CHECK(right >= -1, ValueError, "window: right must be >= 0, or -1 for all, got ", right);
  check_diagonal("window", diagonal);
  MaskPart part;
  part.kind = MaskPart::Kind::band;
  part.left = left;
  part.right = right;
  part.diagonal = std::move(diagonal);
  return Mask(std::move(part));
}

Mask prefix(int64_t length, Diagonal diagonal) {
  const Tensor lengths = Tensor::empty({1}, Dtype::i64);
  lengths.data<int64_t>()[0] = length;
  return prefix(lengths, std::move(diagonal));
}

Mask prefix(const Tensor& lengths, Diagonal diagonal) {
  check_integers("prefix", "lengths", lengths, 1, 1, "[B]");
  check_diagonal("prefix", diagonal);
  MaskPart part;
  part.kind = MaskPart::Kind::prefix;
  part.tensor = lengths.detach();
  part.diagonal = std::move(diagonal);
  return Mask(std::move(part));
}

Mask lengths(const Tensor& valid_lens) {
  check_integers("lengths", "valid_lens", valid_lens, 1, 2, "[B] or [B, Tq]");
  return of_tensor(MaskPart::Kind::key_lengths, valid_lens);
}

Mask query_lengths(const Tensor& valid_lens) {
  check_integers("query_lengths", "valid_lens", valid_lens, 1, 1, "[B]");
  return of_tensor(MaskPart::Kind::query_lengths, valid_lens);
}

Mask documents(const Tensor& ids) {
  check_integers("documents", "ids", ids, 1, 2, "[T] or [B, T]");
  return of_tensor(MaskPart::Kind::documents, ids);
}

Mask documents(const Tensor& query_ids, const Tensor& key_ids) {
  check_integers("documents", "query_ids", query_ids, 1, 2, "[Tq] or [B, Tq]");
  check_integers("documents", "key_ids", key_ids, 1, 2, "[Tk] or [B, Tk]");
  MaskPart part;
  part.kind = MaskPart::Kind::documents;
  part.tensor = query_ids.detach();
  part.other = key_ids.detach();
  return Mask(std::move(part));
}

Mask blocks(const Tensor& flags, int64_t query_block, int64_t key_block) {
  check_flags("blocks", flags);
  MH_CHECK(query_block > 0 && key_block > 0, ValueError, "blocks: block sizes must be > 0, got ", query_block,
           " and ", key_block);
  MaskPart part;
  part.kind = MaskPart::Kind::blocks;
  part.tensor = flags.detach();
  part.query_block = query_block;
  part.key_block = key_block;
  return Mask(std::move(part));
}

}  // namespace multihead
