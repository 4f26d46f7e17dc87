// attention_rows(), whose weights are a Python function.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "multihead/ops/attention/rows/attention_rows.h"
#include "python/src/attention/attention.h"
#include "python/src/bindings.h"
#include "python/src/gil.h"
#include "python/src/shared_object.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

RowWeights to_row_weights(const nb::object& function) {
  return [held = shared(function)](const ScoreRows& rows, const std::vector<Tensor>& inputs) {
    const Locked locked;
    nb::list given;
    for (const Tensor& x : inputs) given.append(nb::cast(x));
    const nb::object found =
        (*held)(rows.scores, rows.seen, rows.query, rows.first_row, rows.first_key, *nb::tuple(given));
    return to_tensor(found, {"attention_rows", "what weights returns"});
  };
}

}  // namespace

void bind_attention_rows(nb::module_& m) {
  m.def(
      "attention_rows",
      [](nb::handle query, nb::handle key, nb::handle value, const nb::object& weights, nb::handle mask,
         std::optional<double> scale, const std::vector<Tensor>& inputs) {
        constexpr const char* who = "attention_rows";
        const Tensor q = to_tensor(query, {who, "query"}), k = to_tensor(key, {who, "key"});
        const Tensor v = to_tensor(value, {who, "value"});
        const Mask to = to_mask(mask);
        const Tensor out =
            attention_rows(q, k, v, to_row_weights(weights), {.mask = to, .scale = scale, .inputs = inputs});
        raise_faults(who, to, nb::none());
        return out;
      },
      "query"_a, "key"_a, "value"_a, "weights"_a, "mask"_a.none(), "scale"_a.none(), "inputs"_a,
      "multihead.attention_rows, with the parts of ScoreRows one by one.");
}

}  // namespace multihead::python
