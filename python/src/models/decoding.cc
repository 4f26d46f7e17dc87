// States of decoding: the keys and values of earlier tokens.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "multihead/models/files/state_file.h"
#include "multihead/nn/decode/state.h"
#include "python/src/bindings.h"
#include "python/src/path.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

template <class Model>
void bind_state_file(nb::module_& m) {
  m.def(
      "save_state",
      [](const Path& path, const nn::DecodeState& state, const Model& model) {
        unlocked([&] {
          models::save_state(path, state, model);
          return 0;
        });
      },
      "path"_a, "state"_a, "model"_a, "Writes a decoding state with a checksum of the model's weights.");
  m.def(
      "load_state",
      [](const Path& path, const Model& model, int64_t capacity) {
        return unlocked([&] { return models::load_state(path, model, capacity); });
      },
      "path"_a, "model"_a, "capacity"_a = 0,
      "Loads a decoding state; FormatError if it belongs to another model. capacity 0: as saved.");
}

nb::list pairs(const std::vector<nn::KvCache>& caches) {
  nb::list result;
  for (const nn::KvCache& cache : caches) result.append(nb::make_tuple(cache.key, cache.value));
  return result;
}

}  // namespace

void bind_decoding(nb::module_& m) {
  using State = nn::DecodeState;
  nb::class_<State>(
      m, "DecodeState",
      "Keys and values of every layer and the number of tokens in each row; created by "
      "LanguageModel.make_state(),\nTransformerDecoder.start(), Seq2Seq.start(), and make_state() "
      "of layers and attention.\nCopies share memory until one of them is written to.")
      .def_ro("lengths", &State::lengths, "Tokens per row; the position of the next one.")
      .def_ro("starts", &State::starts, "Ring: tokens dropped per row.")
      .def_ro("capacity", &State::capacity)
      .def_ro("window", &State::window)
      .def_prop_ro("batch", &State::batch)
      .def_prop_ro("nbytes", &State::bytes)
      .def_prop_ro("room", &State::room, "Tokens a call may add to a row.")
      .def(
          "layers", [](const State& s) { return pairs(s.layers); },
          "(key, value) of each layer, [B, Hkv, capacity, D] each; row b holds lengths[b] tokens.")
      .def(
          "cross", [](const State& s) { return pairs(s.cross); },
          "(key, value) of the memory, per layer: [rows, Hkv, Ts, D] each, projected once; none in a "
          "decoder-only model.")
      .def_ro("cross_lengths", &State::cross_lengths, "Valid tokens of each row of the memory.")
      .def_prop_ro("group", &State::group, "Rows of the state per row of the memory (1 without).")
      .def_prop_ro("held", &State::held, "Tokens held per row: lengths - starts.")
      .def(
          "reorder",
          [](State& s, nb::handle rows) {
            const std::vector<int64_t> order = to_integers(rows, {"reorder", "rows"});
            unlocked([&] {
              s.reorder(order);
              return 0;
            });
          },
          "rows"_a,
          "Replaces row i by the former row rows[i]: for beam search, and batches that shrink or grow. The "
          "memory's rows follow.")
      .def("repeat", &State::repeat, "times"_a, nb::call_guard<Unlocked>(),
           "Repeats every row `times` times.")
      .def("truncate", nb::overload_cast<int64_t>(&State::truncate), "length"_a,
           "Drops the tokens of every row beyond `length`.")
      .def("truncate", nb::overload_cast<int64_t, int64_t>(&State::truncate), "row"_a, "length"_a,
           "Drops the tokens of one row beyond `length`.")
      .def("put", &State::put, "to"_a, "other"_a, "row"_a, "tokens"_a,
           "The first `tokens` tokens of a row of another state of the same model become row `to`.")
      .def("clear", &State::clear, "row"_a, "Empties the row.")
      .def("fork", &State::fork, "A copy; shared memory is copied on write.")
      .def("__copy__", &State::fork)
      .def("__deepcopy__", [](const State& s, nb::handle) { return s.fork(); });
  bind_state_file<models::LanguageModel>(m);
  bind_state_file<models::Seq2Seq>(m);
}

}  // namespace multihead::python
