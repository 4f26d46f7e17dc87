// Points: looking into a model and changing it while it runs.
#include "multihead/nn/points.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/set.h>

#include <memory>
#include <string>
#include <thread>

#include "multihead/core/error.h"
#include "python/src/attention/attention.h"
#include "python/src/bindings.h"
#include "python/src/gil.h"
#include "python/src/modules.h"
#include "python/src/shared_object.h"

namespace multihead::python {
namespace {

// Points that act between __enter__ and __exit__ on the thread that entered.
class PyPoints {
 public:
  nn::Points points;

  PyPoints* enter() {
    MH_CHECK(scope_ == nullptr, ValueError, "Points: active already; make new Points for a nested block");
    scope_ = std::make_unique<nn::PointScope>(points);
    thread_ = std::this_thread::get_id();
    return this;
  }
  void exit(bool check) {
    if (scope_ == nullptr) return;
    MH_CHECK(thread_ == std::this_thread::get_id(), ValueError,
             "Points: blocks must end on the thread on which they began");
    scope_.reset();
    if (check) points.check();
  }
  // As with a Tape: it would change another thread.
  ~PyPoints() {
    if (scope_ && thread_ != std::this_thread::get_id()) static_cast<void>(scope_.release());
  }

 private:
  std::unique_ptr<nn::PointScope> scope_;
  std::thread::id thread_;
};

nn::PointPart part_of(nb::handle heads, nb::handle rows) {
  nn::PointPart part;
  if (!heads.is_none()) part.heads = to_integers(heads, {"Points", "heads"});
  if (!rows.is_none()) part.rows = to_integers(rows, {"Points", "rows"});
  return part;
}

nn::Points::Edit edit_by(const nb::object& function) {
  MH_CHECK(PyCallable_Check(function.ptr()) != 0, ValueError, "Points: edit must be a function (x, name)");
  return [held = shared(function)](const std::string& name, const Tensor& x) {
    const Locked locked;
    const nb::object result = (*held)(x, name);
    return result.is_none() ? Tensor() : to_tensor(result, {"Points", "the result of an edit"});
  };
}

}  // namespace

void bind_points(nb::module_& m) {
  nb::class_<PyPoints> c(
      m, "Points",
      "What to keep, replace or cut off at which named points of a model; acts in a with block.\n\nNames are "
      "those of the parameters: layers.0.resid_pre, .resid_mid, .resid_post, .attn_out, .mlp_out, "
      ".mlp_pre,\n.mlp_post, .norm1.scale, .norm1.normalized, .self_attn.q, .k, .v, .rot_q, .rot_k, .scores, "
      ".pattern, .z, .result;\nembed, pos_embed, final_norm.scale, final_norm.normalized. They may be shell "
      "patterns ('layers.*.self_attn.z')\nand TransformerLens's names ('blocks.0.attn.hook_z').");
  c.def(nb::init<>());
  c.def("__enter__", &PyPoints::enter, nb::rv_policy::reference);
  c.def(
      "__exit__", [](PyPoints& self, nb::handle type, nb::handle, nb::handle) { self.exit(type.is_none()); },
      "type"_a.none(), "value"_a.none(), "traceback"_a.none());
  c.def(
      "keep",
      [](nb::object self, const std::string& pattern, nb::handle heads, nb::handle rows) {
        nb::cast<PyPoints&>(self).points.keep(pattern, part_of(heads, rows));
        return self;
      },
      "pattern"_a, nb::kw_only(), "heads"_a = nb::none(), "rows"_a = nb::none(),
      "Keeps the tensors at the points, or those heads and rows (tokens; queries of scores and patterns) of "
      "them.");
  c.def(
      "keep_gradient",
      [](nb::object self, const std::string& pattern) {
        nb::cast<PyPoints&>(self).points.keep_gradient(pattern);
        return self;
      },
      "pattern"_a, "Keeps the gradients with respect to the tensors there, when a Tape runs backward.");
  c.def(
      "edit",
      [](nb::object self, const std::string& pattern, const nb::object& function, nb::handle heads,
         nb::handle rows) {
        nb::cast<PyPoints&>(self).points.edit(pattern, edit_by(function), part_of(heads, rows));
        return self;
      },
      "pattern"_a, "function"_a, nb::kw_only(), "heads"_a = nb::none(), "rows"_a = nb::none(),
      "Replaces the tensors at the points by function(x, name); None leaves them.");
  c.def(
      "exclude",
      [](nb::object self, const std::string& pattern, nb::handle mask) {
        nb::cast<PyPoints&>(self).points.exclude(pattern, to_mask(mask));
        return self;
      },
      "pattern"_a, "mask"_a, "One more mask for the attentions of that name ('layers.3.self_attn').");
  c.def(
      "check", [](const PyPoints& self) { self.points.check(); },
      "Raises ValueError for a pattern that met no point; the end of the with block does it, too.");
  c.def_prop_ro(
      "kept", [](const PyPoints& self) { return to_dict(self.points.kept()); }, "Tensors by name.");
  c.def_prop_ro(
      "gradients", [](const PyPoints& self) { return to_dict(self.points.gradients()); },
      "Gradients by name.");
  c.def_prop_ro(
      "seen", [](const PyPoints& self) { return self.points.seen(); }, "The names of all points passed.");
  c.def_static(
      "name_of", [](const std::string& name) { return nn::Points::name_of(name); }, "name"_a,
      "Our name for one of TransformerLens's.");
}

}  // namespace multihead::python
