// Pieces of rows, by plain ops. Two rows share a piece if they see keys in the same blocks of 256: a row then meets
// operands of one size whatever rows come with it.
#include "multihead/ops/attention/rows/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/custom_op.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/elementwise/accumulate.h"
#include "multihead/ops/array/windows.h"
#include "multihead/ops/attention/bind-inl.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/narrow-inl.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the op's own internals

constexpr const char* kRowsWho = "attention_rows";
constexpr int64_t kMostRows = 64, kLeastRows = 8;
constexpr double kNoScore = std::numeric_limits<double>::infinity();
constexpr int64_t kPieceNumbers = 1 << 18;  // scores of a piece, if rows are short enough

// Rows [first, end), which see keys of [first_key, end_key) alone.
struct RowsPiece {
  int64_t first = 0, end = 0, first_key = 0, end_key = 0;
  int64_t rows() const { return end - first; }
  int64_t keys() const { return end_key - first_key; }
};

struct RowsCall {
  std::shared_ptr<const BoundAttention> bound;
  RowWeights weights;
  std::vector<RowsPiece> pieces;
  int64_t padded_keys = 0;

  const AttentionSizes& sizes() const { return bound->sizes(); }
};

std::vector<RowsPiece> pieces_of(const BoundAttention& bound) {
  constexpr int64_t kBlock = kernels::attention_key_block;
  const AttentionSizes& s = bound.sizes();
  std::vector<RowsPiece> pieces;
  for (int64_t i = 0; i < s.queries; ++i) {
    const kernels::AttentionReach reach = kernels::attention_reach(bound.problem(), i, i + 1);
    if (reach.begin >= reach.end) continue;
    const int64_t first = reach.begin / kBlock * kBlock, end = (reach.end + kBlock - 1) / kBlock * kBlock;
    const int64_t most = std::clamp(kPieceNumbers / std::max<int64_t>(1, s.batch * s.heads * (end - first)),
                                    kLeastRows, kMostRows);
    RowsPiece* last = pieces.empty() ? nullptr : &pieces.back();
    if (last && last->end == i && last->first_key == first && last->end_key == end && last->rows() < most) {
      last->end = i + 1;
    } else {
      pieces.push_back({i, i + 1, first, end});
    }
  }
  return pieces;
}

// The masks of one sample, as sample 0.
kernels::AttentionProblem sample_alone(const kernels::AttentionProblem& p, int64_t b) {
  kernels::AttentionProblem one = p;
  one.batch = 1;
  if (p.diagonals) one.diagonals += b;
  if (p.key_lengths) one.key_lengths += b;
  if (p.query_lengths) one.query_lengths += b;
  if (p.key_begin) one.key_begin += b * p.interval_stride;
  if (p.key_end) one.key_end += b * p.interval_stride;
  return one;
}

// bool [B, H, rows, keys]. Samples, or heads, with the same masks have copies of the first one's.
Tensor seen_keys_of(const RowsCall& call, const RowsPiece& piece) {
  const kernels::AttentionProblem& p = call.bound->problem();
  const bool flags = p.keep != nullptr || p.mask_function;
  const bool alike = !p.diagonals && !p.key_lengths && !p.query_lengths && p.interval_stride == 0;
  const Tensor seen = Tensor::zeros({p.batch, p.heads, piece.rows(), piece.keys()}, Dtype::boolean);
  auto* row = static_cast<uint8_t*>(seen.raw());
  const int64_t last = std::min(piece.end_key, p.keys), size = piece.rows() * piece.keys();
  std::vector<uint8_t> code(static_cast<size_t>(piece.keys()));
  for (int64_t n = 0; n < p.batch * p.heads; ++n) {
    const int64_t b = n / p.heads, h = n % p.heads;
    if (!flags && (h > 0 || (alike && b > 0))) {
      row = std::copy_n(row - size, size, row);
      continue;
    }
    const kernels::AttentionProblem one = sample_alone(p, b);
    for (int64_t i = piece.first; i < piece.end; ++i, row += piece.keys()) {
      const kernels::AttentionReach reach = kernels::attention_reach(one, i, i + 1);
      if (reach.begin >= reach.end) continue;
      std::fill(row + reach.begin - piece.first_key, row + reach.end - piece.first_key, 1);
      const kernels::Strides4& s = p.keep_strides;
      for (int64_t j = reach.begin; p.keep && j < reach.end; ++j) {
        row[j - piece.first_key] &= p.keep[b * s.batch + h * s.head + i * s.query + j * s.key];
      }
      if (!p.mask_function) continue;
      p.mask_function.fill(p.mask_function.context,
                           {code.data(), 1, b, h, i, 1, piece.first_key, last - piece.first_key});
      for (int64_t j = reach.begin; j < reach.end; ++j) {
        row[j - piece.first_key] &= code[static_cast<size_t>(j - piece.first_key)];
      }
    }
  }
  return seen;
}

// x where `seen`, else `fill`. If it flushes, numbers too small for their full precision are 0: weights that fall off
// exponentially have many, and products with them take several times as long. Rows of x are whole blocks of keys.
Tensor masked(const Tensor& x, const Tensor& seen, double fill, bool flushes) {
  const Tensor from = x.contiguous(), y = Tensor::empty(x.shape(), x.dtype());
  const auto* see = static_cast<const uint8_t*>(seen.raw());
  with_data(
      [&](auto* to, auto* at) {
        using T = std::remove_reference_t<decltype(*to)>;
        const T smallest = flushes ? std::numeric_limits<T>::min() : T(0), other = static_cast<T>(fill);
        constexpr int64_t kVector = 16;  // a count that compilers know
        parallel_ranges(y.numel() / kVector, 1024, [&](int64_t begin, int64_t end) {
          for (int64_t n = begin * kVector; n < end * kVector; n += kVector) {
            for (int64_t i = n; i < n + kVector; ++i) {
              const T kept = std::abs(at[i]) < smallest ? T(0) : at[i];
              to[i] = see[i] != 0 ? kept : other;
            }
          }
        });
      },
      y, from);
  return y;
}

// x [B, H, rows, k] with heads that share keys one below the other: [B, Hkv, rows of a group, k].
Tensor rows_in_groups(const Tensor& x, const AttentionSizes& s) {
  return reshape(x, {s.batch, s.kv_heads, s.heads / s.kv_heads * x.size(2), x.size(3)});
}

// The output of a piece from its rows of queries and its keys and values.
Tensor piece_output(const RowsCall& call, const RowsPiece& piece, const Tensor& query, const Tensor& key,
                    const Tensor& value, const std::vector<Tensor>& inputs) {
  const AttentionSizes& s = call.sizes();
  const Shape shape = {s.batch, s.heads, piece.rows(), piece.keys()};
  const Tensor products =
      matmul(rows_in_groups(scale(query, call.bound->problem().scale), s), transpose(key, 2, 3));
  ScoreRows rows;
  rows.seen = seen_keys_of(call, piece);
  rows.scores = record({products}, masked(reshape(products.detach(), shape), rows.seen, -kNoScore, false),
                       [seen = rows.seen, from = products.shape()](const Tensor& d) -> Gradients {
                         return {reshape(masked(d, seen, 0, true), from)};
                       });
  rows.query = query, rows.first_row = piece.first, rows.first_key = piece.first_key;
  const Tensor weights = call.weights(rows, inputs);
  MH_CHECK(weights.defined() && weights.shape() == shape, ShapeError, kRowsWho,
           ": weights must return [B, H, rows, keys] = ", shape, ", got ",
           weights.defined() ? weights.shape() : Shape{});
  MH_CHECK(weights.dtype() == query.dtype(), DtypeError, kRowsWho, ": weights must return ", query.dtype(),
           ", as the scores are, got ", weights.dtype());
  const Tensor kept =
      record({weights}, masked(weights.detach(), rows.seen, 0, true),
             [seen = rows.seen](const Tensor& d) -> Gradients { return {masked(d, seen, 0, false)}; });
  const Tensor out = matmul(rows_in_groups(kept, s), value);
  return reshape(out, {s.batch, s.heads, piece.rows(), s.value_dim});
}

// Copies or adds rows [begin, begin + x.size(2)) of `to` [B, H, T, D] from x [B, H, rows, D].
void put_rows(const Tensor& x, const Tensor& to, int64_t begin, bool add) {
  const Tensor from = x.contiguous();
  const int64_t count = from.size(2) * from.size(3), stride = to.size(2) * to.size(3);
  with_data(
      [&](auto* y, auto* rows) {
        for (int64_t n = 0; n < from.size(0) * from.size(1); ++n) {
          auto* at = y + n * stride + begin * from.size(3);
          if (add) {
            kernels::accumulate(at, rows + n * count, count);
          } else {
            std::copy_n(rows + n * count, count, at);
          }
        }
      },
      to, from);
}

Tensor rows_forward(const RowsCall& call, const std::vector<Tensor>& in, bool recorded) {
  const AttentionSizes& s = call.sizes();
  const std::vector<Tensor> inputs(in.begin() + 3, in.end());
  const Tensor out = Tensor::zeros({s.batch, s.heads, s.queries, s.value_dim}, in[0].dtype());
  for (const RowsPiece& piece : call.pieces) {
    // A tape sees what `weights` reads besides its inputs: the gradient of that would be lost.
    std::optional<Tape> tape;
    if (recorded && &piece == call.pieces.data()) tape.emplace();
    const Tensor rows = piece_output(call, piece, slice(in[0], 2, piece.first, piece.end),
                                     slice(in[1], 2, piece.first_key, piece.end_key),
                                     slice(in[2], 2, piece.first_key, piece.end_key), inputs);
    MH_CHECK(!rows.requires_grad(), ValueError, kRowsWho,
             ": weights reads a tensor that needs a gradient; give it among inputs");
    put_rows(rows, out, piece.first, false);
  }
  return out;
}

Gradients rows_backward(const RowsCall& call, const Tensor& d_out, const std::vector<Tensor>& in,
                        const std::vector<bool>& wanted) {
  Gradients all(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    if (wanted[i]) all[i] = Tensor::zeros(in[i].shape(), arithmetic_dtype(in[i].dtype()));
  }
  for (const RowsPiece& piece : call.pieces) {
    const auto part = [&](size_t i) {
      if (i == 0) return slice(in[0], 2, piece.first, piece.end);
      return i < 3 ? slice(in[i], 2, piece.first_key, piece.end_key) : in[i];
    };
    Tape tape;
    std::vector<Tensor> leaves;
    for (size_t i = 0; i < in.size(); ++i) {
      leaves.push_back(part(i).detach());
      if (wanted[i]) leaves.back().set_requires_grad();
    }
    const std::vector<Tensor> inputs(leaves.begin() + 3, leaves.end());
    const Tensor out = piece_output(call, piece, leaves[0], leaves[1], leaves[2], inputs);
    if (!out.requires_grad()) continue;
    tape.backward(out, slice(d_out.detach(), 2, piece.first, piece.end));
    for (size_t i = 0; i < in.size(); ++i) {
      const Tensor gradient = wanted[i] ? leaves[i].grad() : Tensor();
      if (!gradient.defined()) continue;
      if (i < 3) {
        put_rows(gradient, all[i], i == 0 ? piece.first : piece.first_key, i != 0);
      } else {
        with_data([&](auto* to, auto* from) { kernels::accumulate(to, from, gradient.numel()); }, all[i],
                  gradient.contiguous());
      }
    }
  }
  return all;
}

}  // namespace

Tensor attention_rows(const Tensor& query, const Tensor& key, const Tensor& value, const RowWeights& weights,
                      const AttentionRowsOptions& options) {
  MH_CHECK(weights != nullptr, ValueError, kRowsWho, ": weights must be a function");
  const AttentionSizes sizes = check_attention(kRowsWho, query, key, value, Layout::bhtd);
  const Dtype dtype = arithmetic_dtype(query.dtype());
  const Autocast exact(Dtype::f32);
  AttentionOptions bound;
  bound.mask = options.mask, bound.scale = options.scale;
  RowsCall call{std::make_shared<BoundAttention>(kRowsWho, sizes, bound, ScoreMod(), dtype), weights, {}, 0};
  if (sizes.batch > 0 && sizes.heads > 0) call.pieces = pieces_of(*call.bound);
  for (const RowsPiece& piece : call.pieces) call.padded_keys = std::max(call.padded_keys, piece.end_key);
  const auto padded = [&](const Tensor& x) {
    return pad(cast(x, dtype), 2, 0, std::max<int64_t>(0, call.padded_keys - x.size(2)));
  };
  std::vector<Tensor> in = {cast(query, dtype), padded(key), padded(value)};
  in.insert(in.end(), options.inputs.begin(), options.inputs.end());
  std::vector<bool> wanted;
  for (const Tensor& x : in) {
    MH_CHECK(x.defined(), ValueError, kRowsWho, ": inputs must be defined tensors");
    wanted.push_back(x.requires_grad());
  }
  const bool recorded = Tape::current() != nullptr;
  const std::vector<Tensor> out = custom_op(
      in, [&](const std::vector<Tensor>& plain) { return std::vector{rows_forward(call, plain, recorded)}; },
      [call, wanted](const std::vector<Tensor>& d, const std::vector<Tensor>& plain, const auto&) {
        const Autocast again(Dtype::f32);
        return rows_backward(call, d[0], plain, wanted);
      });
  return cast(out[0], query.dtype());
}

}  // namespace multihead
