#include "multihead/ops/attention/ring/ring.h"

#include <optional>

#include "multihead/core/error.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/attention/ring/ring_call-inl.h"
#include "multihead/ops/narrow-inl.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the op's own internals
using distributed::Group;

constexpr const char* kRing = "ring_attention";

// One call's arguments, and the state its random numbers started in.
struct Arguments {
  Group* group;
  SequenceShards shards;
  AttentionOptions options;
  ScoreMod score_mod;
  std::optional<Rng> rng;
};

// [B, H, T, D], whatever the layout: and back again.
Tensor heads_first(const Tensor& x, Layout layout) {
  return layout == Layout::bthd ? transpose(x.detach(), 1, 2) : x.detach();
}

void check_shards(const Group& group, const SequenceShards& shards, const AttentionSizes& sizes) {
  MH_CHECK(shards.ranks() == group.size(), ValueError, kRing, ": shards are for ", shards.ranks(),
           " ranks, the group has ", group.size());
  const int64_t rows = shards.rows(group.rank());
  MH_CHECK(sizes.queries == rows && sizes.keys == rows, ShapeError, kRing, ": rank ", group.rank(), " has ",
           rows, " of ", shards.length(), " rows, got ", sizes.queries, " queries and ", sizes.keys, " keys");
}

// Whether running sums can do it; else every rank computes the whole.
bool passes(const Tensor& value, const AttentionOptions& options, const ScoreMod& score_mod) {
  if (value.size(-1) == 0 || value.dtype() == Dtype::f64 || kernels::current_isa() == kernels::Isa::baseline)
    return false;
  if (options.empty_row != EmptyRow::zero || options.capture) return false;
  if (options.normalise != Normalise::softmax) return false;
  if (Tape::current() == nullptr) return true;
  return score_mod.captured().empty() &&
         std::none_of(kLearnedOptions.begin(), kLearnedOptions.end(),
                      [&](auto term) { return (options.*term).requires_grad(); });
}

// Everything on every rank: attention() itself. The random numbers begin where they did.
Tensor attention_gathered(const Arguments& a, const Tensor& query, const Tensor& key, const Tensor& value) {
  const int axis = a.options.layout == Layout::bthd ? 1 : 2;
  const auto whole = [&](const Tensor& x) { return gather_rows(*a.group, a.shards, x, axis); };
  AttentionOptions options = a.options;
  Tensor lse;
  std::optional<Rng> rng = a.rng;
  if (rng) options.rng = &*rng;
  const NoContextParallel all;
  if (options.lse) options.lse = &lse;
  const Tensor out = attention(whole(query), whole(key), whole(value), options, a.score_mod);
  if (a.options.lse) *a.options.lse = own_rows(*a.group, a.shards, lse, 2);
  return own_rows(*a.group, a.shards, out, axis);
}

// `d`: of output and log-sum-exps.
Gradients gradients_gathered(const Arguments& arguments, const AttentionCall& call,
                             const std::array<Tensor, 2>& d) {
  Arguments a = arguments;
  Tensor lse;
  a.options.lse = d[1].defined() ? &lse : nullptr;
  Tape tape;
  std::vector<Tensor> leaves;
  for (const Tensor& x : {call.query, call.key, call.value}) {
    leaves.push_back(heads_first(x, a.options.layout).to(call.out.dtype()));
    leaves.back().set_requires_grad();
  }
  const Tensor out = attention_gathered(a, leaves[0], leaves[1], leaves[2]);
  // Both results meet in one node, so that a single backward seeds them together.
  const Tensor both = record({out, lse}, Tensor::zeros({}), [&](const Tensor&) -> Gradients {
    return {d[0], d[1]};
  });
  tape.backward(both);
  return {leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

Tensor in_kernel(const Tensor& x, Layout layout) {
  const Tensor heads = heads_first(x, layout);  // f16 is storage alone
  return heads.dtype() == Dtype::f16 ? heads.to(Dtype::f32) : with_dense_rows(heads);
}

RingCall bind_ring(const Arguments& a, AttentionSizes sizes, const Tensor& query, const Tensor& key,
                   const Tensor& value) {
  sizes.queries = sizes.keys = a.shards.length();
  const Layout layout = a.options.layout;
  RingCall ring{a.group, a.shards,
                bind_call(kRing, sizes, kBhtd,
                          {in_kernel(query, layout), in_kernel(key, layout), in_kernel(value, layout)},
                          a.options, a.score_mod)};
  const Tensor& q = ring.call.query;
  ring.call.out = empty_ordered_like(q, {sizes.batch, sizes.heads, q.size(2), sizes.value_dim}, q.dtype());
  ring.call.lse = Tensor::empty({sizes.batch, sizes.heads, q.size(2)});
  return ring;
}

Tensor attention_passing(const Arguments& a, const AttentionSizes& sizes, const Tensor& query,
                         const Tensor& key, const Tensor& value) {
  RingCall ring = bind_ring(a, sizes, query, key, value);
  if (!ring_forward(ring)) return attention_gathered(a, query, key, value);
  if (query.dtype() == Dtype::f16) ring.call.out = ring.call.out.to(Dtype::f16);
  const Layout layout = a.options.layout;
  const std::array<bool, 3> wanted = {query.requires_grad(), key.requires_grad(), value.requires_grad()};
  std::vector<Tensor> results = {heads_first(ring.call.out, layout)};
  if (a.options.lse) results.push_back(reported_lse(ring.call));
  const Shape shape = ring.call.out.shape();
  results =
      record_many({query, key, value}, std::move(results),
                  [a, ring, wanted, layout, shape](const std::vector<Tensor>& d) -> Gradients {
                    const Tensor d_out = d[0].defined() ? heads_first(d[0], layout) : Tensor::zeros(shape);
                    const Tensor d_lse = d.size() > 1 ? d[1] : Tensor();
                    RingGradients gradients;
                    if (ring.has_large_rows || !ring_backward(ring, {d_out, d_lse}, wanted, gradients)) {
                      return gradients_gathered(a, ring.call, {heads_first(d_out, layout), d_lse});
                    }
                    Gradients all;
                    for (const Tensor& x : gradients)
                      all.push_back(x.defined() ? heads_first(x, layout) : Tensor());
                    return all;
                  });
  if (a.options.lse) *a.options.lse = results[1];
  return results[0];
}

}  // namespace

Tensor ring_attention(Group& group, const SequenceShards& shards, const Tensor& queries, const Tensor& keys,
                      const Tensor& values, const AttentionOptions& options, const ScoreMod& score_mod) {
  const Tensor query = for_product(queries), key = for_product(keys), value = for_product(values);
  const AttentionSizes sizes = check_attention(kRing, query, key, value, options.layout);
  check_shards(group, shards, sizes);
  if (group.size() == 1) return attention(query, key, value, options, score_mod);
  Arguments a{&group, shards, options, score_mod, {}};
  if (options.rng) a.rng = *options.rng;
  if (passes(value, options, score_mod)) return attention_passing(a, sizes, query, key, value);
  const Tensor out = attention_gathered(a, query, key, value);
  if (options.rng && options.dropout_p != 0) options.rng->next();
  return out;
}

namespace {

Tensor gather(Group& group, const SequenceShards& shards, const Tensor& own, int axis) {
  Shape shape = own.shape();
  shape[axis] = shards.length();
  Tensor whole = Tensor::empty(shape, own.dtype());
  std::vector<Journey> journeys;
  for (int rank = 0; rank < group.size(); ++rank) {
    journeys.push_back({rank, 0, ranks_after(rank, group.size(), [](int) { return true; })});
  }
  const auto memory = [&](const Journey& journey) -> std::vector<Tensor> {
    if (journey.chunk == group.rank()) return {own.contiguous()};
    Shape rows = own.shape();
    rows[axis] = shards.rows(journey.chunk);
    return {Tensor::empty(rows, own.dtype())};
  };
  relay(group, journeys, {memory, [&](const Journey& journey, const std::vector<Tensor>& tensors) {
                            shards.put(tensors[0], axis, journey.chunk, whole);
                          }});
  return whole;
}

}  // namespace

Tensor gather_rows(Group& group, const SequenceShards& shards, const Tensor& own, int axis) {
  return record({own}, gather(group, shards, own.detach(), axis),
                [shards, axis, rank = group.rank()](const Tensor& whole) -> Gradients {
                  return {shards.take(whole, axis, rank)};
                });
}

Tensor own_rows(Group& group, const SequenceShards& shards, const Tensor& whole, int axis) {
  return record(
      {whole}, shards.take(whole, axis, group.rank()),
      [&group, shards, axis](const Tensor& own) -> Gradients { return {gather(group, shards, own, axis)}; });
}

}  // namespace multihead
