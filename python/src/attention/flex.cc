// Score and mask functions traced in Python, as what attention() takes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>

#include "multihead/core/error.h"
#include "python/src/attention/attention.h"
#include "python/src/bindings.h"
#include "python/src/names.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// (op, a, b, c, d, number, table, kind) per instruction.
program::Instruction to_instruction(nb::handle item) {
  const auto t = nb::cast<nb::tuple>(item);
  if (t.size() != 8) {
    throw nb::type_error("score expression: instructions are (op, a, b, c, d, number, table, kind)");
  }
  return {program::parse_op(nb::cast<std::string>(t[0])),
          nb::cast<int32_t>(t[1]),
          nb::cast<int32_t>(t[2]),
          nb::cast<int32_t>(t[3]),
          nb::cast<int32_t>(t[4]),
          nb::cast<double>(t[5]),
          nb::cast<int32_t>(t[6]),
          to_enum<program::Kind>(nb::cast<std::string>(t[7]), "score expression",
                                 {{"any", program::Kind::any},
                                  {"f16", program::Kind::f16},
                                  {"bf16", program::Kind::bf16},
                                  {"f32", program::Kind::f32},
                                  {"f64", program::Kind::f64}})};
}

constexpr auto kKindNames = std::to_array({"any", "f16", "bf16", "f32", "f64"});

nb::list to_instructions(const ScoreProgram& program) {
  nb::list result;
  for (const program::Instruction& in : program.code()) {
    result.append(nb::make_tuple(program::name_of(in.op), in.a, in.b, in.c, in.d, in.number, in.table,
                                 kKindNames.at(static_cast<size_t>(in.kind))));
  }
  return result;
}

// `learnt`: tables that get gradients.
std::shared_ptr<ScoreProgram> make_program(nb::sequence code, nb::sequence tables, nb::sequence learnt) {
  std::vector<program::Instruction> instructions;
  for (nb::handle item : code) instructions.push_back(to_instruction(item));
  std::vector<Tensor> tensors, converted;
  for (nb::handle table : tables) {
    tensors.push_back(to_tensor(table, {"score_mod", "captured tensor", true}));
    // A copy: the caller may change it between forward and backward.
    converted.push_back(program::to_table(tensors.back()));
  }
  std::vector<ScoreProgram::Learnt> learns;
  for (nb::handle table : learnt) {
    const auto i = nb::cast<int32_t>(table);
    learns.push_back({i, tensors.at(static_cast<size_t>(i))});
  }
  return std::make_shared<ScoreProgram>(std::move(instructions), std::move(converted), std::move(learns));
}

Tensor random_numbers(uint64_t key, nb::handle indices) {
  const Tensor x = to_tensor(indices, {"random", "indices", true}).contiguous();
  MH_CHECK(x.dtype() == Dtype::i32 && x.rank() == 2 && x.size(0) >= 1 && x.size(0) <= 4, ShapeError,
           "random: indices must be int32 [1 to 4, count], got ", x.dtype(), " ", x.shape());
  const int64_t count = x.size(1);
  const auto* at = x.data<int32_t>();
  Tensor y = Tensor::empty({count}, Dtype::f32);
  for (int64_t n = 0; n < count; ++n, ++at) {
    float& number = y.data<float>()[n];
    switch (x.size(0)) {
      case 1:
        number = random(key, at[0]);
        break;
      case 2:
        number = random(key, at[0], at[count]);
        break;
      case 3:
        number = random(key, at[0], at[count], at[2 * count]);
        break;
      default:
        number = random(key, at[0], at[count], at[2 * count], at[3 * count]);
    }
  }
  return y;
}

void raise(const std::string& who, int faults) {
  const auto error = [&](PyObject* type, const char* text) {
    PyErr_SetString(type, concat(who, text).c_str());
    throw nb::python_error();
  };
  if (faults & program::kOutOfRange)
    error(PyExc_IndexError, ": the function used an index outside a captured tensor");
  if (faults & program::kDivisionByZero)
    error(PyExc_ZeroDivisionError, ": the function divides an integer by zero");
  if (faults & program::kWideInteger)
    error(PyExc_OverflowError, ": an integer of the function leaves 32 bits");
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
  const auto program = to_score_program(object);
  return program ? to_score_mod(program) : ScoreMod();
}

void raise_faults(const std::string& who, const Mask& mask, nb::handle score_mod) {
  int faults = 0;
  if (const auto program = to_score_program(score_mod)) faults |= program->take_faults();
  for (const auto& part : mask.parts()) {
    if (const ScoreProgram* program = program::program_of(*part)) faults |= program->take_faults();
  }
  raise(who, faults);
}

void check_positions(const char* who, const nn::DecodeState& state, const nn::AttentionCall& call) {
  if (std::all_of(state.starts.begin(), state.starts.end(), [](int64_t dropped) { return dropped == 0; }))
    return;
  const auto& parts = call.mask.parts();
  const bool sees = call.score_mod || std::any_of(parts.begin(), parts.end(), [](const auto& part) {
                      return program::program_of(*part) != nullptr;
                    });
  MH_CHECK(!sees, ValueError, who,
           ": the state has a window and has dropped tokens, so that score_mod and mask_mod would see other "
           "positions; use a state without a window, with mask=window(…)");
}

void bind_flex(nb::module_& m) {
  nb::class_<ScoreProgram>(m, "ScoreProgram", "A traced score or mask function.")
      .def_prop_ro("is_mask", &ScoreProgram::is_mask)
      .def(
          "raise_faults", [](const ScoreProgram& p, const std::string& who) { raise(who, p.take_faults()); },
          "who"_a,
          "Raises errors since the last call: an index outside a captured tensor, a division by zero, "
          "an\ninteger beyond 32 bits.")
      .def(
          "differentiate",
          [](const ScoreProgram& p, nb::handle scores, nb::handle d_results) {
            const Tensor x = to_tensor(scores, {"differentiate", "scores"}).clone();
            const Tensor d = to_tensor(d_results, {"differentiate", "d_results"}).clone();
            MH_CHECK(x.rank() == 4 && x.shape() == d.shape() && x.dtype() == d.dtype(), ShapeError,
                     "differentiate: scores and d_results must be [B, H, Tk, Tq], got ", x.shape(), " and ",
                     d.shape());
            std::vector<double> sums;
            if (x.dtype() == Dtype::f64) {
              sums = p.differentiate<double>(x, d);
            } else {
              const std::vector<float> narrow = p.differentiate<float>(x, d);
              sums.assign(narrow.begin(), narrow.end());
            }
            return nb::make_tuple(x, d, sums);
          },
          "scores"_a, "d_results"_a,
          "(results, gradients of scores, those of captured tensors one after another) of scores [B, H, Tk, "
          "Tq].")
      .def_prop_ro("fingerprint", &ScoreProgram::fingerprint)
      .def(
          "block_classes",
          [](const ScoreProgram& p, int64_t batch, int64_t heads, int64_t queries, int64_t keys, int64_t rows,
             int64_t columns) {
            return p.block_classes({batch, heads, 0, 0, queries, keys}, rows, columns);
          },
          "batch"_a, "heads"_a, "queries"_a, "keys"_a, "rows"_a, "columns"_a,
          "0 empty, 1 full, 2 partial per block of rows x columns, int32 [B or 1, H or 1, blocks, blocks].")
      .def("__len__", [](const ScoreProgram& p) { return p.code().size(); })
      .def(
          "mask",
          [](nb::object self) { return nb::module_::import_("multihead._core").attr("program_mask")(self); },
          "program_mask() of this program.")
      .def_prop_ro("instructions", &to_instructions, "As score_program() takes them.")
      .def_prop_ro("tables", &ScoreProgram::sources, "The captured tensors; those that learn as they are.")
      .def_prop_ro("learnt", [](const ScoreProgram& p) {
        nb::list numbers;
        for (const ScoreProgram::Learnt& x : p.learnt()) numbers.append(x.table);
        return numbers;
      });
  m.def("score_program", &make_program, "code"_a, "tables"_a, "learnt"_a);
  m.def("random_numbers", &random_numbers, "key"_a, "indices"_a,
        "random() of every column of indices, int32 [1 to 4, count].");
}

}  // namespace multihead::python
