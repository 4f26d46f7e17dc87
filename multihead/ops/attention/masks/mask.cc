#include "multihead/ops/attention/masks/mask.h"

#include "multihead/core/error.h"
#include "multihead/ops/attention/masks/check-inl.h"

namespace multihead {

Diagonal::Diagonal(int64_t offset) : offsets(Tensor::of<int64_t>({1}, {offset})) {}

std::string Diagonal::to_string() const {
  if (!offsets.defined()) return align == Align::end ? "end" : "start";
  if (offsets.numel() == 1) return concat("offset=", offsets.to_vector<int64_t>()[0]);
  return concat("offsets=", offsets.shape());
}

int64_t Diagonal::offset_at(const detail::MaskPair& at) const {
  if (offsets.defined()) return detail::value_at(offsets, at.b);
  return align == Align::end ? at.keys - at.queries : 0;
}

Mask::Mask(std::shared_ptr<const MaskPart> part) : parts_{std::move(part)} {
  MH_CHECK(parts_[0] != nullptr, ValueError, "Mask: the part is null");
}

Mask& Mask::operator&=(const Mask& other) {
  const auto added = other.parts_;  // other may be *this
  parts_.insert(parts_.end(), added.begin(), added.end());
  return *this;
}

std::string Mask::to_string() const {
  if (parts_.empty()) return "all";
  std::string result;
  for (const auto& part : parts_) result += (result.empty() ? "" : " & ") + part->to_string();
  return result;
}

namespace detail {

void check_flags(const char* who, const Tensor& flags) {
  MH_CHECK(flags.defined(), ValueError, who, ": the tensor is undefined");
  MH_CHECK(
      flags.dtype() == Dtype::boolean, DtypeError, who, ": flags must be bool, got ", flags.dtype(),
      is_floating(flags.dtype()) ? "; numbers to add to the scores are a bias" : "; convert them to bool");
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

void check_diagonal(const char* who, const Diagonal& diagonal) {
  if (diagonal.offsets.defined()) check_integers(who, "offsets", diagonal.offsets, 1, 1, "[B]");
}

int64_t value_at(const Tensor& values, int64_t b) {
  return values.to_vector<int64_t>()[static_cast<size_t>(values.size(0) == 1 ? 0 : b)];
}

int64_t value_at(const Tensor& rows, int64_t b, int64_t t) {
  const bool shared = rows.rank() == 1 || rows.size(0) == 1;
  return rows.to_vector<int64_t>()[static_cast<size_t>((shared ? 0 : b * rows.size(1)) + t)];
}

double broadcast_at(const Tensor& x, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t index[4] = {b, h, i, j};
  int64_t offset = 0;
  for (int axis = 1; axis <= x.rank(); ++axis) {
    if (x.size(-axis) != 1) offset += index[4 - axis] * x.strides()[-axis];
  }
  return x.as_strided({1}, {1}, offset).item();
}

}  // namespace detail
}  // namespace multihead
