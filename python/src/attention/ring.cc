// Attention to sequences of which each rank has a part, and ranks that are threads.
#include "multihead/ops/attention/ring/ring.h"

#include <nanobind/stl/vector.h>

#include "multihead/distributed/local_group.h"
#include "python/src/attention/attention_keywords.h"
#include "python/src/bindings.h"
#include "python/src/def_op.h"
#include "python/src/interrupt.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

using distributed::Group;

void bind_shards(nb::module_& m) {
  using S = SequenceShards;
  nb::class_<S> c(m, "SequenceShards",
                  "A sequence of `length` rows cut into chunks that are dealt to the ranks in zigzag order, "
                  "which balances work under a\ncausal mask. Chunks begin at multiples of 256; a rank's rows "
                  "are its chunks in order.");
  c.def(nb::init<int64_t, int, int>(), "length"_a, "ranks"_a, "chunks_per_rank"_a = 4)
      .def_prop_ro("length", &S::length)
      .def_prop_ro("ranks", &S::ranks)
      .def_prop_ro("chunks", &S::chunks)
      .def("rows", &S::rows, "rank"_a, "How many rows a rank has.")
      .def("positions", &S::positions, "rank"_a, "Positions of a rank's rows: int64 [rows].")
      .def(
          "chunk",
          [](const S& shards, int number) {
            const S::Rows rows = shards.chunk(number);
            return nb::make_tuple(rows.begin, rows.end);
          },
          "number"_a, "(begin, end) of a chunk in the sequence.")
      .def("chunks_of", &S::chunks_of, "rank"_a, "The chunks of a rank.")
      .def("owner", &S::owner, "chunk"_a, "The rank that has a chunk.");
  def_op(
      c, "take", "SequenceShards",
      [](const S& shards, const Tensor& whole, int axis, int rank) { return shards.take(whole, axis, rank); },
      "whole"_a, "axis"_a, "rank"_a,
      "A copy of a rank's rows along this axis: of tokens, targets, a rotary table … No gradient.");
}

void bind_ring_attention(nb::module_& m) {
  Attention<Group&, const SequenceShards&, nb::handle, nb::handle, nb::handle>::bind(
      m, "ring_attention", "ring_attention", kFunctionKeywords,
      [](Group& group, const SequenceShards& shards, nb::handle query, nb::handle key, nb::handle value,
         AttentionArguments& to) {
        constexpr const char* who = "ring_attention";
        const Tensor q = to_tensor(query, {who, "query"}), k = to_tensor(key, {who, "key"}),
                     v = to_tensor(value, {who, "value"});
        return with_lse(
            interruptible([&] { return ring_attention(group, shards, q, k, v, to.call, to.call.score_mod); }),
            to);
      },
      "attention() of a sequence of which each rank of the group has its shards.rows(rank): the rows of the "
      "whole and\ntheir gradients, bit for bit, in O(T / ranks) memory. All ranks call it, and run the "
      "backward, at the same time.\nMasks, biases and lengths are those of the whole sequence, and rng is in "
      "the same state everywhere.\nGradient: query, key, value. Raises GroupError if a rank is lost.",
      "group"_a, "shards"_a, "query"_a, "key"_a, "value"_a, nb::kw_only());
  const auto rows = [&](const char* name, auto f, const char* argument, const char* doc) {
    m.def(
        name,
        [f, name, argument](Group& group, const SequenceShards& shards, nb::handle x, int axis) {
          const Tensor tensor = to_tensor(x, {name, argument});
          return interruptible([&] { return f(group, shards, tensor, axis); });
        },
        "group"_a, "shards"_a, nb::arg(argument), "axis"_a, doc);
  };
  rows("gather_rows", gather_rows, "own",
       "Every rank's rows along an axis, from each rank's own. Gradient: the rank's rows of it.");
  rows("own_rows", own_rows, "whole",
       "The rank's own rows along an axis. Gradient: gathered from the ranks.");
}

// A Group in Python ends with its body: afterwards it is a TypeError, not a dangling pointer.
void run_local(int size, const nb::object& body) {
  unlocked([&] {
    distributed::run_local_group(size, [&](Group& group) {
      const Locked locked;
      nb::object object = nb::cast(&group, nb::rv_policy::reference);
      try {
        body(object);
      } catch (...) {
        nb::inst_set_state(object, false, false);
        throw;
      }
      nb::inst_set_state(object, false, false);
    });
    return 0;
  });
}

}  // namespace

void bind_ring(nb::module_& m) {
  bind_shards(m);
  bind_ring_attention(m);
  m.def("run_local_group", &run_local, "size"_a, "body"_a,
        "Runs body(group) on `size` threads of this process, as ranks 0 to size - 1 that take turns: for "
        "trying out\ncode for mpirun without it. The first exception is raised here; the group ends with the "
        "call.");
}

}  // namespace multihead::python
