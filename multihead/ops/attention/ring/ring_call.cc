#include "multihead/ops/attention/ring/ring_call-inl.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "multihead/kernels/elementwise/elementwise.h"
#include "multihead/kernels/elementwise/optimizer.h"
#include "multihead/ops/shape.h"

namespace multihead::detail {
namespace {

using Rows = SequenceShards::Rows;

// A chunk of queries against a chunk of keys, in the kernel's terms.
struct Piece {
  kernels::AttentionSlice slice;
  kernels::AttentionProblem problem;

  Piece(const kernels::AttentionProblem& whole, const Rows& queries, const Rows& keys, int64_t head = -1)
      : slice{queries.begin, keys.begin, whole.queries, whole.keys, head}, problem(whole) {
    problem.queries = queries.count(), problem.keys = keys.count();
    problem.slice = &slice;
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
};

kernels::Operand operand_of(const Tensor& x) { return operand(x, kBhtd); }

// The heads of [B, H, …] that are number `part` in their groups: [B, Hkv, …].
Tensor heads_of(const Tensor& x, int64_t group, int64_t part) {
  Shape shape = x.shape(), strides = x.strides();
  shape[1] /= group, strides[1] *= group;
  return x.as_strided(shape, strides, part * x.strides()[1]);
}

// For memory without gaps, in any order of the axes.
bool all_finite(const Tensor& x) {
  const Tensor wide = x.dtype() == Dtype::f32 ? x : x.to(Dtype::f32);
  return std::isfinite(kernels::sum_of_squares(static_cast<const float*>(wide.raw()), wide.numel()));
}

// Rows whose log-sum-exp says too little of their probabilities.
bool has_large_rows(const Tensor& lse) {
  const auto* rows = static_cast<const float*>(lse.raw());
  return std::any_of(rows, rows + lse.numel(),
                     [](float row) { return std::isfinite(row) && std::abs(row) > kernels::kLargeLogSum; });
}

// One rank's part in one pass.
class Ring {
 public:
  explicit Ring(const RingCall& ring)
      : group_(*ring.group), shards_(ring.shards), whole_(ring.call.bound->problem()) {
    for (int c = 0; c < shards_.chunks(); ++c) {
      const Rows queries = shards_.chunk(c);
      const kernels::AttentionReach keys = kernels::attention_reach(whole_, queries.begin, queries.end);
      reach_.push_back({keys.begin, keys.end});
    }
  }

  int64_t group_heads() const { return whole_.group(); }
  std::vector<int> own() const { return shards_.chunks_of(group_.rank()); }
  /// Whether a chunk of queries may see a chunk of keys.
  bool meet(int queries, int keys) const {
    const Rows seen = reach_[static_cast<size_t>(queries)], there = shards_.chunk(keys);
    return seen.begin < there.end && there.begin < seen.end;
  }
  /// The rows of an own chunk in a tensor [B, H, T', …].
  Tensor rows(const Tensor& x, int chunk) const {
    const Rows own = shards_.own_rows(chunk);
    return slice(x.detach(), 2, own.begin, own.end);
  }
  Piece piece(int queries, int keys, int64_t head = -1) const {
    return {whole_, shards_.chunk(queries), shards_.chunk(keys), head};
  }
  /// No keys: what is left to do when all have been there.
  Piece end(int queries) const { return {whole_, shards_.chunk(queries), {}}; }

  /// Keys and values pass; use(queries, keys, their tensors) where the own queries may see them.
  template <class F>
  void pass_keys(const Tensor& key, const Tensor& value, F use) const {
    std::vector<Journey> journeys;
    for (int j = 0; j < shards_.chunks(); ++j) {
      journeys.push_back({j, 0, ranks(j, [&](int i) { return meet(i, j); })});
    }
    run(journeys, {key, value}, 1, [&](const Journey& journey, const std::vector<Tensor>& tensors) {
      for (const int i : own()) {
        if (meet(i, journey.chunk)) use(i, journey.chunk, tensors);
      }
    });
  }

  /// Rows of queries pass, head after head of each group; use(head, queries, their tensors, keys).
  template <class F>
  void pass_queries(const std::vector<Tensor>& all, F use) const {
    std::vector<Journey> journeys;
    for (int part = 0; part < group_heads(); ++part) {
      for (int i = 0; i < shards_.chunks(); ++i) {
        journeys.push_back({i, part, ranks(i, [&](int j) { return meet(i, j); })});
      }
    }
    run(journeys, all, group_heads(), [&](const Journey& journey, const std::vector<Tensor>& tensors) {
      for (const int j : own()) {
        if (meet(journey.chunk, j)) use(journey, tensors, j);
      }
    });
  }

  std::byte set_everywhere(std::byte mine) const { return detail::set_everywhere(group_, mine); }

 private:
  // The owner of a chunk and the ranks with a chunk that meets it.
  template <class F>
  std::vector<int> ranks(int chunk, F meets) const {
    return ranks_after(shards_.owner(chunk), shards_.ranks(), [&](int rank) {
      const std::vector<int> chunks = shards_.chunks_of(rank);
      return std::any_of(chunks.begin(), chunks.end(), meets);
    });
  }

  template <class F>
  void run(const std::vector<Journey>& journeys, const std::vector<Tensor>& all, int64_t group, F use) const {
    const auto memory = [&](const Journey& journey) {
      const bool mine = journey.ranks[0] == group_.rank();
      std::vector<Tensor> tensors;
      for (const Tensor& x : all) {
        const Tensor heads = heads_of(x, group, journey.part);
        Shape shape = heads.shape();
        shape[2] = shards_.chunk(journey.chunk).count();
        tensors.push_back(mine ? rows(heads, journey.chunk).clone() : Tensor::empty(shape, x.dtype()));
      }
      return tensors;
    };
    relay(group_, journeys, {memory, use});
  }

  distributed::Group& group_;
  const SequenceShards& shards_;
  const kernels::AttentionProblem& whole_;
  std::vector<Rows> reach_;
};

kernels::AttentionInput input_of(const Ring& ring, const Tensor& query, int i,
                                 const std::vector<Tensor>& key_value) {
  return {operand_of(ring.rows(query, i)), operand_of(key_value[0]), operand_of(key_value[1])};
}

// Gradient of the own queries: keys pass.
void query_gradient(const Ring& ring, const AttentionCall& wide, const OutputGradients& d,
                    const Tensor& delta, const Tensor& d_query) {
  ring.pass_keys(wide.key, wide.value, [&](int i, int j, const std::vector<Tensor>& key_value) {
    const Piece piece = ring.piece(i, j);
    kernels::AttentionGradient g;
    g.out = operand_of(ring.rows(wide.out, i)), g.lse = operand_of(ring.rows(wide.lse, i));
    if (d.lse.defined()) g.d_lse = ring.rows(d.lse, i).raw();
    g.d_out = operand_of(ring.rows(d.out, i)), g.d_query = operand_of(ring.rows(d_query, i));
    g.delta = ring.rows(delta, i).raw();
    g.partial = true;
    kernels::attention_backward(piece.problem, wide.bound->terms(), input_of(ring, wide.query, i, key_value),
                                g);
  });
}

// Gradients of the own keys and values: queries pass.
void key_gradients(const Ring& ring, const AttentionCall& wide, const Tensor& d_out, const Tensor& delta,
                   const Tensor& d_key, const Tensor& d_value) {
  const std::vector<Tensor> passing = {wide.query, d_out, wide.lse, delta};
  ring.pass_queries(passing, [&](const Journey& queries, const std::vector<Tensor>& tensors, int j) {
    const Piece piece = ring.piece(queries.chunk, j, queries.part);
    kernels::AttentionGradient g;
    g.d_out = operand_of(tensors[1]), g.lse = operand_of(tensors[2]), g.delta = tensors[3].raw();
    if (d_key.defined()) g.d_key = operand_of(ring.rows(d_key, j));
    if (d_value.defined()) g.d_value = operand_of(ring.rows(d_value, j));
    g.partial = true;
    const Tensor key = ring.rows(wide.key, j), value = ring.rows(wide.value, j);
    kernels::attention_backward(piece.problem, wide.bound->terms(),
                                {operand_of(tensors[0]), operand_of(key), operand_of(value)}, g);
  });
}

// Gives sums of gradients the factor that they lack. x · f + -0 is x · f, zeros too.
void scale_gradient(const Tensor& x, double factor) {
  auto* data = static_cast<float*>(x.raw());
  kernels::affine(data, data, x.numel(), factor, -0.0);
}

// Zeros with the layout of the gradient of `x`.
Tensor zero_gradient(const Tensor& x) {
  Tensor sums = empty_gradient(x);
  sums.fill(0);
  return sums;
}

}  // namespace

bool ring_forward(RingCall& call) {
  const AttentionCall& c = call.call;
  const Ring ring(call);
  const Tensor values = c.out.dtype() == Dtype::f32 ? c.out : Tensor::empty(c.out.shape());
  const Tensor sum = Tensor::zeros(c.lse.shape());
  c.lse.fill(-std::numeric_limits<double>::infinity());  // the maximum until the end
  values.fill(0);
  const auto state = [&](int i) {
    return kernels::AttentionState{operand_of(ring.rows(c.lse, i)), operand_of(ring.rows(sum, i)),
                                   operand_of(ring.rows(values, i))};
  };
  ring.pass_keys(c.key, c.value, [&](int i, int j, const std::vector<Tensor>& key_value) {
    const Piece piece = ring.piece(i, j);
    kernels::attention_forward(piece.problem, c.bound->terms(), input_of(ring, c.query, i, key_value),
                               {{}, {}, state(i)});
  });
  for (const int i : ring.own()) {
    const Piece piece = ring.end(i);
    kernels::attention_forward(piece.problem, c.bound->terms(), {operand_of(ring.rows(c.query, i)), {}, {}},
                               {operand_of(ring.rows(c.out, i)), operand_of(ring.rows(c.lse, i)), state(i)});
  }
  if (const Tensor& sinks = c.bound->tensor(&AttentionOptions::sinks); sinks.defined()) {
    kernels::AttentionProblem own = c.bound->problem();
    own.queries = c.out.size(2);
    kernels::attention_add_sinks(own, sinks.raw(), {operand_of(c.out), operand_of(c.lse)});
  }
  constexpr std::byte kFinite{1}, kSmallRows{2};
  const std::byte agreed = ring.set_everywhere((all_finite(c.out) ? kFinite : std::byte{0}) |
                                               (has_large_rows(c.lse) ? std::byte{0} : kSmallRows));
  call.has_large_rows = (agreed & kSmallRows) == std::byte{0};
  return (agreed & kFinite) != std::byte{0};
}

bool ring_backward(const RingCall& call, const OutputGradients& d, const std::array<bool, 3>& wanted,
                   RingGradients& gradients) {
  AttentionCall wide = stays_bf16(call.call) ? call.call : widened(call.call);
  const Tensor dy = in_arithmetic(d.out), delta = Tensor::zeros(wide.lse.shape());
  const Ring ring(call);
  gradients[0] = zero_gradient(wide.query);  // on the way to which `delta` is made
  for (size_t n : {1, 2}) {
    if (wanted[n]) gradients[n] = zero_gradient(n == 1 ? wide.key : wide.value);
  }
  query_gradient(ring, wide, {dy, d.lse.defined() ? d.lse.contiguous() : Tensor()}, delta, gradients[0]);
  wide.out = Tensor();
  if (wanted[1] || wanted[2]) key_gradients(ring, wide, dy, delta, gradients[1], gradients[2]);
  scale_gradient(gradients[0], wide.bound->problem().scale);
  if (wanted[1]) scale_gradient(gradients[1], wide.bound->problem().scale);
  bool finite = true;
  for (const Tensor& x : gradients) finite = finite && (!x.defined() || all_finite(x));
  if (!wanted[0]) gradients[0] = Tensor();
  return ring.set_everywhere(std::byte{finite}) != std::byte{0};
}

}  // namespace multihead::detail
