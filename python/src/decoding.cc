// What a decoder remembers while it generates.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>

#include "multihead/models/state_file.h"
#include "multihead/nn/state.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

void bind_decoding(nb::module_& m) {
  using State = nn::DecodeState;
  nb::class_<State>(m, "DecodeState",
                    "Keys and values of every layer and the number of tokens each row has seen; made by "
                    "LanguageModel.make_state().\nCopies share memory until one of them goes on.")
      .def_ro("lengths", &State::lengths, "Tokens per row; the position of the next one.")
      .def_ro("starts", &State::starts, "Ring: tokens per row that were dropped.")
      .def_ro("capacity", &State::capacity)
      .def_ro("window", &State::window)
      .def_prop_ro("batch", &State::batch)
      .def_prop_ro("nbytes", &State::bytes)
      .def_prop_ro("room", &State::room, "Tokens that a call may add to a row.")
      .def(
          "layers",
          [](const State& s) {
            nb::list result;
            for (const nn::KvCache& cache : s.layers) result.append(nb::make_tuple(cache.key, cache.value));
            return result;
          },
          "(key, value) of each layer, [B, Hkv, capacity, D] each; row b holds lengths[b] tokens.")
      .def(
          "reorder",
          [](State& s, nb::handle rows) {
            const std::vector<int64_t> order = to_integers(rows, {"reorder", "rows"});
            unlocked([&] {
              s.reorder(order);
              return 0;
            });
          },
          "rows"_a, "Row i becomes what row rows[i] was: beam search, and batches that shrink or grow.")
      .def("repeat", &State::repeat, "times"_a, nb::call_guard<Unlocked>(),
           "Every row `times` times in a row.")
      .def("truncate", &State::truncate, "length"_a, "Drops the tokens of every row past `length`.")
      .def("clear", &State::clear, "row"_a, "The row forgets everything.")
      .def("fork", &State::fork, "A copy; what it shares is copied when either side goes on.")
      .def("__copy__", &State::fork)
      .def("__deepcopy__", [](const State& s, nb::handle) { return s.fork(); });
  m.def(
      "save_state",
      [](const std::string& path, const State& state, const models::LanguageModel& model) {
        unlocked([&] {
          models::save_state(path, state, model);
          return 0;
        });
      },
      "path"_a, "state"_a, "model"_a, "Writes a decoding state with a checksum of the model's weights.");
  m.def(
      "load_state",
      [](const std::string& path, const models::LanguageModel& model, int64_t capacity) {
        return unlocked([&] { return models::load_state(path, model, capacity); });
      },
      "path"_a, "model"_a, "capacity"_a = 0,
      "A state to go on from; FormatError if another model wrote it. capacity 0: as it was saved.");
}

}  // namespace multihead::python
