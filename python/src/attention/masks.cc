// Masks, and how each was made: what pickle and deepcopy make again.
#include "multihead/ops/attention/masks/mask.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <variant>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/nn/positions.h"
#include "multihead/ops/attention/inspect/profiles.h"
#include "python/src/attention/attention.h"
#include "python/src/bindings.h"
#include "python/src/names.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

using MaskArgument = std::variant<int64_t, std::string, Tensor, std::shared_ptr<ScoreProgram>>;

// maker(arguments) of this module gives a mask of which this is one part. No Python objects: masks go where
// their last tape goes, with the interpreter's lock or without.
struct Recipe {
  std::shared_ptr<const MaskPart> part;
  const char* maker;
  std::vector<MaskArgument> arguments;
  size_t index;

  void operator()(const MaskPart*) {}  // as a deleter: the part dies with it
};

Mask remembered(const Mask& mask, const char* maker, const std::vector<MaskArgument>& arguments) {
  Mask result;
  for (size_t i = 0; i < mask.parts().size(); ++i) {
    const auto& part = mask.parts()[i];
    result &= Mask(std::shared_ptr<const MaskPart>(part.get(), Recipe{part, maker, arguments, i}));
  }
  return result;
}

nb::tuple to_recipe(const std::shared_ptr<const MaskPart>& part) {
  const auto* recipe = std::get_deleter<Recipe>(part);
  if (recipe == nullptr) {
    throw nb::type_error(concat("Mask: ", part->to_string(), " cannot be copied or pickled").c_str());
  }
  nb::list arguments;
  for (const MaskArgument& argument : recipe->arguments) {
    std::visit([&](const auto& x) { arguments.append(nb::cast(x)); }, argument);
  }
  return nb::make_tuple(recipe->maker, nb::tuple(arguments), recipe->index);
}

// A diagonal by its name, an offset, or one offset per sample.
struct Aligned {
  Diagonal diagonal;
  MaskArgument argument;
};

Aligned to_aligned(nb::handle align) {
  if (PyUnicode_Check(align.ptr())) {
    const auto name = nb::cast<std::string>(align);
    return {to_enum<Align>(name, "align", {{"end", Align::end}, {"start", Align::start}}), name};
  }
  if (PyLong_Check(align.ptr())) {
    const int64_t offset = to_integer(align, {"mask", "align"});
    return {Diagonal(offset), offset};
  }
  Tensor offsets = to_tensor(align, {"mask", "align"});
  if (PyList_Check(align.ptr()) && offsets.numel() == 0)
    offsets = offsets.to(Dtype::i64);  // NumPy's are real
  return {Diagonal(offsets), offsets};
}

Mask documents_mask(nb::handle query_ids, nb::handle key_ids) {
  const Tensor q = to_tensor(query_ids, {"documents", "query_ids"});
  if (key_ids.is_none()) return remembered(documents(q), "documents", {q});
  const Tensor k = to_tensor(key_ids, {"documents", "key_ids"});
  return remembered(documents(q, k), "documents", {q, k});
}

Mask prefix_mask(nb::handle length, nb::handle align) {
  const Aligned to = to_aligned(align);
  if (PyLong_Check(length.ptr())) {
    const int64_t n = to_integer(length, {"prefix", "length"});
    return remembered(prefix(n, to.diagonal), "prefix", {n, to.argument});
  }
  const Tensor n = to_tensor(length, {"prefix", "length"});
  return remembered(prefix(n, to.diagonal), "prefix", {n, to.argument});
}

void bind_class(nb::module_& m) {
  nb::class_<Mask>(m, "Mask", "A set of allowed (query, key) pairs; parts are combined with &.")
      .def(nb::init<>())
      .def("__and__", [](const Mask& a, const Mask& b) { return a & b; })
      .def("__repr__", &Mask::to_string)
      .def("__bool__",
           [](const Mask&) -> bool {
             throw nb::type_error("Mask: has no truth value; compose masks with &, not with 'and'");
           })
      .def("__reduce__", [](const Mask& mask) {
        nb::list recipes;
        for (const auto& part : mask.parts()) recipes.append(to_recipe(part));
        return nb::make_tuple(nb::module_::import_("multihead._copies").attr("mask_of"),
                              nb::make_tuple(recipes));
      });
  m.def(
      "mask_of",
      [](nb::sequence recipes) {
        const nb::module_ core = nb::module_::import_("multihead._core");
        Mask result;
        for (nb::handle item : recipes) {
          const auto recipe = nb::cast<nb::tuple>(item);
          const nb::object made = core.attr(recipe[0])(*nb::cast<nb::tuple>(recipe[1]));
          const auto& parts = nb::cast<const Mask&>(made).parts();
          const auto index = nb::cast<size_t>(recipe[2]);
          MH_CHECK(index < parts.size(), ValueError, "mask_of: no part ", index);
          result &= Mask(parts[index]);
        }
        return result;
      },
      "recipes"_a, "The Mask of (function of this module, its arguments, number of the part) for each part.");
  m.def(
      "program_mask",
      [](const std::shared_ptr<ScoreProgram>& program, nb::handle align) {
        MH_CHECK(program != nullptr && program->is_mask(), ValueError,
                 "mask_mod: the function gives a number, not a condition");
        const Aligned to = to_aligned(align);
        return remembered(program::to_mask(program, to.diagonal), "program_mask", {program, to.argument});
      },
      "program"_a, "align"_a = "end",
      "The Mask of pairs for which the function is true. align: of the positions, as in causal().");
}

void bind_of_tensor(nb::module_& m, const char* name, Mask (*f)(const Tensor&), const char* argument,
                    const char* doc) {
  m.def(
      name,
      [f, name, argument](nb::handle x) {
        const Tensor t = to_tensor(x, {name, argument});
        return remembered(f(t), name, {t});
      },
      nb::arg(argument), doc);
}

void bind_masks_of_tensors(nb::module_& m) {
  bind_of_tensor(m, "keep", &keep, "flags",
                 "True = may attend; bool, broadcast right-aligned to [B, H, Tq, Tk].");
  bind_of_tensor(m, "drop", &drop, "flags",
                 "True = may not attend; bool, broadcast right-aligned to [B, H, Tq, Tk].");
  bind_of_tensor(m, "lengths", &lengths, "valid_lens",
                 "Keys j < valid_lens: integers [B] per sample or [B, Tq] per query.");
  bind_of_tensor(m, "query_lengths", &query_lengths, "valid_lens",
                 "Queries i < valid_lens [B]; later rows are empty.");
  bind_of_tensor(m, "from_labml_mask", &from_labml_mask, "mask",
                 "[Tq or 1, Tk, B or 1], every non-zero element may attend.");
  bind_of_tensor(m, "from_torch_mha_mask", &from_torch_mha_mask, "mask",
                 "attn_mask of torch.nn.MultiheadAttention: True may NOT attend.");
  bind_of_tensor(m, "from_torch_key_padding_mask", &from_torch_key_padding_mask, "mask",
                 "bool [B, Tk]: True is padding.");
  bind_of_tensor(m, "from_torch_sdpa_mask", &from_torch_sdpa_mask, "mask",
                 "attn_mask of scaled_dot_product_attention: True may attend.");
}

}  // namespace

Mask to_mask(nb::handle object) {
  if (!object.is_valid() || object.is_none()) return {};
  Mask* mask = nullptr;
  if (nb::try_cast(object, mask, false) && mask != nullptr) return *mask;
  throw nb::type_error(
      "attention: mask must be a Mask: keep(array) where True may attend, drop(array) where True may not, "
      "causal(), lengths(n), … joined with &");
}

void bind_masks(nb::module_& m) {
  bind_class(m);
  bind_masks_of_tensors(m);
  m.def(
      "causal",
      [](nb::handle align) {
        const Aligned to = to_aligned(align);
        return remembered(causal(to.diagonal), "causal", {to.argument});
      },
      "align"_a = "end",
      "Query i sees keys j <= i + offset. align: 'end' (the last query sees the last key), 'start', an "
      "offset, or\none offset per sample.");
  m.def(
      "window",
      [](nb::handle from, nb::handle up_to, nb::handle align) {
        const Aligned to = to_aligned(align);
        const int64_t left = to_integer(from, {"window", "left"}),
                      right = to_integer(up_to, {"window", "right"});
        return remembered(window(left, right, to.diagonal), "window", {left, right, to.argument});
      },
      "left"_a, "right"_a, "align"_a = "end",
      "Keys from left before to right after the diagonal; -1 leaves a side open.");
  m.def("prefix", &prefix_mask, "length"_a, "align"_a = "end",
        "Causal, except that everybody sees the first keys.");
  m.def("documents", &documents_mask, "query_ids"_a, "key_ids"_a = nb::none(),
        "Query and key of the same document: integer ids [T] or [B, T].");
  m.def(
      "blocks",
      [](nb::handle f, int64_t q, int64_t k) {
        const Tensor flags = to_tensor(f, {"blocks", "flags"});
        return remembered(blocks(flags, q, k), "blocks", {flags, q, k});
      },
      "flags"_a, "query_block"_a, "key_block"_a, "Block-sparse: bool flags select the allowed blocks.");
  m.def("alibi_slopes", &nn::alibi_slopes, "num_heads"_a, "Slopes [H] of attention with linear biases.");
}

}  // namespace multihead::python
