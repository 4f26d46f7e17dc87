#include "multihead/models/token_rows.h"

#include <algorithm>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/shape.h"

namespace multihead::models {
namespace {

Tensor joined(std::span<const std::vector<int32_t>> parts, int64_t count) {
  Tensor out = Tensor::empty({count}, Dtype::i64);
  int64_t* at = out.data<int64_t>();
  for (const std::vector<int32_t>& part : parts) at = std::copy(part.begin(), part.end(), at);
  return out;
}

}  // namespace

TokenRows TokenRows::of(std::span<const std::vector<int32_t>> sequences,
                        std::span<const std::vector<int32_t>> types) {
  MH_CHECK(types.empty() || types.size() == sequences.size(), ShapeError, "TokenRows: ", types.size(),
           " rows of types for ", sequences.size(), " sequences");
  std::vector<int64_t> ends = {0};
  for (size_t i = 0; i < sequences.size(); ++i) {
    ends.push_back(ends.back() + std::ssize(sequences[i]));
    MH_CHECK(types.empty() || types[i].size() == sequences[i].size(), ShapeError, "TokenRows: sequence ", i,
             " has ", sequences[i].size(), " tokens and ", types[i].size(), " types");
  }
  TokenRows rows = {joined(sequences, ends.back()), Tensor::of<int64_t>({std::ssize(ends)}, ends)};
  if (!types.empty()) rows.types = joined(types, ends.back());
  return rows;
}

void TokenRows::check(const char* who, int64_t longest) const {
  MH_CHECK(tokens.defined() && tokens.rank() == 1 && cu_seqlens.defined() && cu_seqlens.rank() == 1 &&
               sequences() >= 0,
           ShapeError, who, ": tokens must be [N] and cu_seqlens [S + 1]");
  MH_CHECK(!types.defined() || types.shape() == tokens.shape(), ShapeError, who, ": types must be ",
           tokens.shape(), ", got ", types.shape());
  const std::vector<int64_t> ends = cu_seqlens.to_vector<int64_t>();
  MH_CHECK(ends.front() == 0 && ends.back() == tokens.size(0), ShapeError, who, ": cu_seqlens go from ",
           ends.front(), " to ", ends.back(), " of ", tokens.size(0), " tokens");
  for (size_t s = 0; s + 1 < ends.size(); ++s) {
    const int64_t length = ends[s + 1] - ends[s];
    MH_CHECK(length > 0 && length <= longest, ValueError, who, ": sequence ", s, " has ", length,
             " tokens, expected 1 to ", longest);
  }
}

Tensor TokenRows::places(int64_t first) const {
  const std::vector<int64_t> ends = cu_seqlens.to_vector<int64_t>();
  Tensor out = Tensor::empty({tokens.size(0)}, Dtype::i64);
  int64_t* at = out.data<int64_t>();
  for (size_t s = 0; s + 1 < ends.size(); ++s) std::iota(at + ends[s], at + ends[s + 1], first);
  return out;
}

int64_t TokenRows::longest() const {
  const std::vector<int64_t> ends = cu_seqlens.to_vector<int64_t>();
  int64_t most = 0;
  for (size_t s = 0; s + 1 < ends.size(); ++s) most = std::max(most, ends[s + 1] - ends[s]);
  return most;
}

RotaryTable rotary_at(const RotaryTable& table, const Tensor& places) {
  RotaryTable at = table;
  for (Tensor* part : {&at.cos, &at.sin}) {
    const int64_t pairs = part->size(-1);
    *part = reshape(embedding(reshape(*part, {-1, pairs}), places), {1, places.size(0), pairs});
  }
  return at;
}

}  // namespace multihead::models
