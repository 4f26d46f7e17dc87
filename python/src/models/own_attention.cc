// Attention written in Python, in the layers of our models. The Python object owns the weights; the model reaches
// them by visit().
#include "multihead/nn/own_attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "multihead/core/error.h"
#include "python/src/attention/attention.h"
#include "python/src/bindings.h"
#include "python/src/gil.h"
#include "python/src/modules.h"
#include "python/src/shared_object.h"
#include "python/src/tensor/copies.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// A call as Python sees it, which may keep it for longer than it lasts.
struct PyCall {
  nn::OwnAttentionCall* call;
  nn::OwnAttentionCall& get() const {
    MH_CHECK(call != nullptr, ValueError, "an own attention: the call has ended");
    return *call;
  }
};

// The keywords of attention() that a call brings.
nb::dict keywords_of_call(const AttentionOptions& o) {
  nb::dict words;
  if (!o.mask.is_empty()) words["mask"] = o.mask;
  std::apply(
      [&](const auto&... option) {
        const auto add = [&](const auto& named) {
          const auto& value = o.*named.second;
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Tensor>) {
            if (value.defined()) words[named.first] = value;
          } else {
            if (value != AttentionOptions().*named.second) words[named.first] = value;
          }
        };
        (add(option), ...);
      },
      multihead::detail::kScoreOptions);
  if (o.scale) words["scale"] = *o.scale;
  if (o.rng != nullptr && o.dropout_p > 0) {
    words["dropout_p"] = o.dropout_p;
    words["rng"] = nb::cast(o.rng, nb::rv_policy::reference);
  }
  return words;
}

class PythonAttention : public nn::OwnAttention {
 public:
  explicit PythonAttention(nb::object module) : module_(shared(std::move(module))) {
    for (const auto& [name, tensor] : named()) {
      if (tensor.requires_grad()) names_.push_back(name);
    }
  }

  Tensor operator()(const Tensor& x, nn::OwnAttentionCall& call) const override {
    const Locked locked;
    nb::object seen = nb::cast(PyCall{&call});
    const auto end = [&] { nb::cast<PyCall&>(seen).call = nullptr; };
    try {
      const Tensor out = to_tensor((*module_)(x, seen), {"an own attention", "its result"});
      end();
      return out;
    } catch (...) {
      end();
      throw;
    }
  }

  void visit(nn::Visitor& visitor) override {
    const Locked locked;
    nb::dict replaced;
    for (auto& [name, tensor] : named()) {
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) continue;
      const Tensor before = tensor;
      visitor(name, tensor);
      if (!tensor.is_same(before)) replaced[identity_of(before)] = tensor;
    }
    if (replaced.size() > 0) module_->attr("_rebind")(replaced);
  }

  std::shared_ptr<OwnAttention> clone() const override {
    const Locked locked;
    auto twin = std::make_shared<PythonAttention>(module_->attr("_twin")());
    twin->names_ = names_;  // frozen ones, too
    return twin;
  }

  std::vector<nn::OwnCacheSpec> caches() const override {
    const Locked locked;
    std::vector<nn::OwnCacheSpec> specs;
    for (auto [name, sizes] : nb::cast<nb::dict>(module_->attr("caches")())) {
      const auto given = nb::cast<std::vector<int64_t>>(sizes);
      MH_CHECK(given.size() == 2 || given.size() == 3, ValueError,
               "an own attention: caches() must give (heads, dim) or, of one that does not grow, (heads, "
               "rows, dim)");
      specs.push_back(
          {nb::cast<std::string>(name), given.front(), given.back(), given.size() == 3 ? given[1] : 0});
    }
    return specs;
  }

 private:
  std::vector<std::pair<std::string, Tensor>> named() const {
    std::vector<std::pair<std::string, Tensor>> all;
    for (nb::handle pair : module_->attr("_tensors")()) {
      all.emplace_back(nb::cast<std::string>(pair[0]), nb::cast<Tensor>(pair[1]));
    }
    return all;
  }

  std::shared_ptr<nb::object> module_;
  std::vector<std::string> names_;
};

void bind_sizes(nb::module_& m) {
  using O = nn::MultiHeadAttentionOptions;
  nb::class_<O>(m, "AttentionSizes", "What a model asks of the attention of a layer.")
      .def_ro("embed_dim", &O::embed_dim)
      .def_ro("num_heads", &O::num_heads)
      .def_prop_ro("num_kv_heads",
                   [](const O& o) { return o.num_kv_heads > 0 ? o.num_kv_heads : o.num_heads; })
      .def_prop_ro("head_dim",
                   [](const O& o) { return o.head_dim > 0 ? o.head_dim : o.embed_dim / o.num_heads; })
      .def_ro("bias", &O::query_bias)
      .def_ro("out_bias", &O::out_bias);
}

void bind_own_call(nb::module_& m) {
  nb::class_<PyCall>(
      m, "OwnAttentionCall",
      "What an own attention knows of a call: options, the keywords for multihead.attention (mask, "
      "dropout ...); rotary, a\nRotaryTable or None; positions, i64 [B or 1, T]; counts, the new tokens "
      "of each row, None if all are; is_cached.")
      .def_prop_ro("options", [](const PyCall& c) { return keywords_of_call(c.get().options()); })
      .def_prop_ro(
          "rotary", [](const PyCall& c) { return c.get().rotary(); }, nb::rv_policy::copy,
          nb::for_getter(nb::sig("def rotary(self) -> RotaryTable | None")))
      .def_prop_ro("positions", [](const PyCall& c) { return c.get().positions(); })
      .def_prop_ro("counts", [](const PyCall& c) { return optional_tensor(c.get().counts()); })
      .def_prop_ro("is_cached", [](const PyCall& c) { return c.get().is_cached(); })
      .def(
          "grown",
          [](const PyCall& c, const std::string& name, const Tensor& x) { return c.get().grown(name, x); },
          "name"_a, "x"_a,
          "x [B, heads, T, dim] joined to the former tokens' under this name; x itself without a cache.")
      .def(
          "carried",
          [](const PyCall& c, const std::string& name) { return optional_tensor(c.get().carried(name)); },
          "name"_a, "What carry() kept last, 0 at first; None without a cache.")
      .def(
          "carry", [](const PyCall& c, const std::string& name, const Tensor& x) { c.get().carry(name, x); },
          "name"_a, "x"_a, "Keeps a tensor that caches() names with three sizes for the next call.");
}

}  // namespace

void bind_own_attention(nb::module_& m) {
  bind_sizes(m);
  bind_own_call(m);
  m.def(
      "register_attention",
      [](const std::string& name, nb::object make) {
        nn::register_attention(
            name,
            [held = shared(std::move(make))](const nn::MultiHeadAttentionOptions& options,
                                             Rng& rng) -> std::shared_ptr<nn::OwnAttention> {
              const Locked locked;
              return std::make_shared<PythonAttention>(
                  (*held)(options, nb::cast(&rng, nb::rv_policy::reference)));
            });
      },
      "name"_a, "make"_a, "Registers make(sizes, rng), which makes the attention of a layer.");
}

}  // namespace multihead::python
