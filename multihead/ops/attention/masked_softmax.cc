#include "multihead/ops/attention/masked_softmax.h"

#include <algorithm>
#include <limits>

#include "multihead/core/error.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/softmax.h"

namespace multihead {
namespace {

// [B, 1 or Tq, Tk]: true before the valid length.
Tensor valid_keys(const char* who, const Tensor& scores, const Tensor& valid_lens) {
  MH_CHECK(scores.rank() == 3, ShapeError, who, ": scores must be [B, Tq, Tk], got ", scores.shape());
  MH_CHECK(valid_lens.dtype() == Dtype::i64 || valid_lens.dtype() == Dtype::i32, DtypeError, who,
           ": valid_lens must be i64 or i32, got ", valid_lens.dtype());
  const int64_t batch = scores.size(0), queries = scores.size(1), keys = scores.size(2);
  const bool per_query = valid_lens.rank() == 2;
  MH_CHECK(valid_lens.shape() == Shape({batch}) || valid_lens.shape() == Shape({batch, queries}), ShapeError,
           who, ": valid_lens must be [B=", batch, "] or [B=", batch, ", Tq=", queries, "], got ",
           valid_lens.shape());
  const auto lens = valid_lens.to_vector<int64_t>();
  Tensor valid = Tensor::zeros({batch, per_query ? queries : 1, keys}, Dtype::boolean);
  for (size_t row = 0; row < lens.size(); ++row) {
    MH_CHECK(lens[row] >= 0 && lens[row] <= keys, ValueError, who, ": valid_lens must be in [0, Tk=", keys,
             "], got ", lens[row]);
    std::fill_n(valid.data<bool>() + static_cast<int64_t>(row) * keys, lens[row], true);
  }
  return valid;
}

Tensor replaced(const char* who, const Tensor& scores, const Tensor& valid_lens, double value) {
  return where(valid_keys(who, scores, valid_lens), scores, Tensor::full({1}, value, scores.dtype()));
}

}  // namespace

Tensor masked_scores(const Tensor& scores, const Tensor& valid_lens, double value) {
  return replaced("masked_scores", scores, valid_lens, value);
}

Tensor masked_softmax(const Tensor& scores, const Tensor& valid_lens) {
  return softmax(replaced("masked_softmax", scores, valid_lens, -std::numeric_limits<double>::infinity()));
}

}  // namespace multihead
