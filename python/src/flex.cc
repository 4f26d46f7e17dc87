// Score and mask functions traced in Python, as what attention() takes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "multihead/core/error.h"
#include "python/src/attention.h"
#include "python/src/bindings.h"
#include "python/src/score_program.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// (op, a, b, c, number, table) per instruction.
std::shared_ptr<ScoreProgram> make_program(nb::sequence code, nb::sequence tables) {
  std::vector<Instruction> instructions;
  for (nb::handle item : code) {
    const auto t = nb::cast<nb::tuple>(item);
    if (t.size() != 6)
      throw nb::type_error("score expression: instructions are (op, a, b, c, number, table)");
    instructions.push_back({parse_op(nb::cast<std::string>(t[0])), nb::cast<int32_t>(t[1]),
                            nb::cast<int32_t>(t[2]), nb::cast<int32_t>(t[3]), nb::cast<double>(t[4]),
                            nb::cast<int32_t>(t[5])});
  }
  std::vector<Tensor> converted;
  for (nb::handle table : tables) {
    const Tensor x = to_tensor(table, {"score_mod", "captured tensor", true});
    const Dtype dtype = x.dtype() == Dtype::f64  ? Dtype::f64
                        : is_floating(x.dtype()) ? Dtype::f32
                                                 : Dtype::i32;
    // A copy: the caller may change the tensor between forward and backward.
    converted.push_back(x.dtype() == dtype ? x.clone() : x.to(dtype));
  }
  return std::make_shared<ScoreProgram>(std::move(instructions), std::move(converted));
}

}  // namespace

std::shared_ptr<const ScoreProgram> to_score_program(nb::handle object) {
  if (!object.is_valid() || object.is_none()) return nullptr;
  std::shared_ptr<ScoreProgram> program;
  if (!nb::try_cast(object, program, false) || program == nullptr) {
    throw nb::type_error(
        "attention: score_mod must come from multihead.score_mod(function), which traces a Python function");
  }
  MH_CHECK(!program->is_mask(), ValueError,
           "score_mod: the function gives an integer or a condition, not a score");
  return program;
}

ScoreMod to_score_mod(nb::handle object) {
  auto program = to_score_program(object);
  return program ? to_score_mod(std::move(program)) : ScoreMod();
}

void bind_flex(nb::module_& m) {
  nb::class_<ScoreProgram>(m, "ScoreProgram", "A traced score or mask function.")
      .def_prop_ro("is_mask", &ScoreProgram::is_mask)
      .def_prop_ro("out_of_range", &ScoreProgram::out_of_range)
      .def("__len__", [](const ScoreProgram& p) { return p.code().size(); })
      .def(
          "mask",
          [](const std::shared_ptr<ScoreProgram>& p) {
            MH_CHECK(p->is_mask(), ValueError, "mask_mod: the function gives a number, not a condition");
            return to_mask(std::shared_ptr<const ScoreProgram>(p));
          },
          "The Mask of the pairs for which the function is true.");
  m.def("score_program", &make_program, "code"_a, "tables"_a);
}

}  // namespace multihead::python
