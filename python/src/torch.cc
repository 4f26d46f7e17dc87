// Attention for PyTorch's autograd: forward and backward as two calls, tensors shared by DLPack.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>

#include "multihead/autograd/tape.h"
#include "multihead/ops/attention_call.h"
#include "multihead/ops/attention_check.h"
#include "python/src/attention.h"
#include "python/src/bindings.h"
#include "python/src/host_threads.h"
#include "python/src/score_program_match.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// What the backward needs of a forward.
struct TorchCall {
  detail::AttentionCall call;
  ScoreMod score_mod;
  int threads;
};

struct TorchKeywords {
  nb::handle keep, bias, mask, score_mod;
  bool causal = false;
  std::optional<float> scale;
  double dropout_p = 0;
  uint64_t seed = 0;
};

AttentionOptions to_options(const char* who, const TorchKeywords& k, Rng& rng) {
  AttentionOptions options;
  options.mask = to_mask(k.mask);
  if (k.causal) options.mask &= causal(Align::start);
  if (!k.keep.is_none()) options.mask &= keep(to_tensor(k.keep, {who, "attn_mask", true}));
  options.bias = to_tensor_or_none(k.bias, {who, "attn_mask", true});
  options.allow_binary_bias = true;
  options.scale = k.scale;
  if (k.dropout_p > 0) {
    options.dropout_p = static_cast<float>(k.dropout_p);
    options.rng = &rng;
  }
  return options;
}

detail::AttentionCall prepare(const char* who, const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionOptions& options, const ScoreMod& mod) {
  using detail::kBhtd;
  const detail::AttentionSizes s = detail::check_attention(who, q, k, v, Layout::bhtd);
  detail::AttentionCall call{
      std::make_shared<detail::BoundAttention>(who, s, options, mod, detail::arithmetic_dtype(q.dtype())),
      kBhtd,
      detail::operand(q, kBhtd),
      detail::operand(k, kBhtd),
      detail::operand(v, kBhtd),
      {},
      {},
      {}};
  call.out = detail::operand(
      detail::empty_ordered_like(q, {s.batch, s.heads, s.queries, s.value_dim}, q.dtype()), kBhtd);
  return call;
}

struct ScoreOperands {
  const Tensor &query, &key;
};

// What is built in runs built in.
ScoreMod fused_or_mod(std::shared_ptr<const ScoreProgram> program, const ScoreOperands& x,
                      AttentionOptions& options) {
  if (!program) return {};
  if (x.query.rank() == 4 && x.key.rank() == 4) {
    const ScoreSizes sizes{x.query.size(1), x.query.size(2), x.key.size(2),
                           detail::arithmetic_dtype(x.query.dtype())};
    if (match_score(*program, sizes, options)) return {};
  }
  return to_score_mod(std::move(program));
}

// (out, lse or None, call or None); lse in natural logarithms.
nb::tuple torch_forward(nb::handle query, nb::handle key, nb::handle value, nb::handle keep, nb::handle bias,
                        bool causal, std::optional<float> scale, double dropout_p, uint64_t seed,
                        bool needs_grad, bool return_lse, nb::handle mask, nb::handle score_mod,
                        const std::string& who, int threads) {
  const Tensor q = to_tensor(query, {who.c_str(), "query", true});
  const Tensor k = to_tensor(key, {who.c_str(), "key", true});
  const Tensor v = to_tensor(value, {who.c_str(), "value", true});
  Rng rng(seed);
  AttentionOptions options =
      to_options(who.c_str(), {keep, bias, mask, score_mod, causal, scale, dropout_p, seed}, rng);
  Tensor lse;
  if (return_lse) options.lse = &lse;
  const ScoreMod mod = fused_or_mod(to_score_program(score_mod), {q, k}, options);
  auto result = unlocked([&] {
    const OpenMpScope openmp(threads);
    auto call =
        std::make_unique<TorchCall>(TorchCall{prepare(who.c_str(), q, k, v, options, mod), mod, threads});
    detail::compute_attention(call->call, options);
    return call;
  });
  nb::object out = to_dlpack(result->call.out.tensor);
  nb::object lse_out = return_lse ? to_dlpack(lse) : nb::none();
  nb::object kept = needs_grad ? nb::cast(result.release(), nb::rv_policy::take_ownership) : nb::none();
  return nb::make_tuple(out, lse_out, kept);
}

// Gradients of query, key, value, bias as DLPack capsules, None where not wanted.
nb::tuple torch_backward(const TorchCall& saved, nb::handle d_out, bool want_query, bool want_key,
                         bool want_value, bool want_bias) {
  const Tensor dy = to_tensor(d_out, {"attention backward", "grad_output", true});
  const detail::AttentionCall& call = saved.call;
  detail::Operand dq, dk, dv;
  detail::TermGradients terms;
  unlocked([&] {
    const OpenMpScope openmp(saved.threads);
    const Dtype dtype = detail::arithmetic_dtype(call.query.tensor.dtype());
    const auto gradient = [&](bool wanted, const detail::Operand& x) -> detail::Operand {
      if (!wanted) return {};
      return detail::operand(detail::empty_ordered_like(x.tensor, x.tensor.shape(), dtype), call.axes);
    };
    dq = gradient(want_query, call.query), dk = gradient(want_key, call.key),
    dv = gradient(want_value, call.value);
    const NoTape silent;
    terms =
        detail::attention_gradients(call, dy, dq, dk, dv, {want_query, want_key, want_value, want_bias}, {});
    return 0;
  });
  const auto out = [](const Tensor& x) { return x.defined() ? to_dlpack(x) : nb::none(); };
  return nb::make_tuple(out(dq.tensor), out(dk.tensor), out(dv.tensor), out(terms.bias));
}

}  // namespace

void bind_torch(nb::module_& m) {
  nb::class_<TorchCall>(m, "TorchCall", "What a backward needs of its forward.");
  m.def("torch_forward", &torch_forward, "query"_a, "key"_a, "value"_a, "keep"_a = nb::none(),
        "bias"_a = nb::none(), "causal"_a = false, "scale"_a = nb::none(), "dropout_p"_a = 0.0, "seed"_a = 0,
        "needs_grad"_a = false, "return_lse"_a = false, "mask"_a = nb::none(), "score_mod"_a = nb::none(),
        "who"_a = "scaled_dot_product_attention", "threads"_a = 1);
  m.def("use_openmp_of", &find_openmp, "library"_a);
  m.def("torch_backward", &torch_backward, "call"_a, "d_out"_a, "want_query"_a, "want_key"_a, "want_value"_a,
        "want_bias"_a);
}

}  // namespace multihead::python
