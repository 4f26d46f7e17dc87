// Attention for PyTorch's autograd: forward and backward as two calls, tensors shared by DLPack.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>

#include "multihead/autograd/tape.h"
#include "multihead/ops/attention/call-inl.h"
#include "multihead/ops/attention/program/match-inl.h"
#include "python/src/attention/attention.h"
#include "python/src/attention/torch_exchange.h"
#include "python/src/bindings.h"
#include "python/src/host_threads.h"
#include "python/src/interrupt.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

// Saved by a forward for its backward. PyTorch keeps query, key, value and the output itself.
struct TorchCall {
  detail::AttentionCall call;
  ScoreMod score_mod;
  int threads;
};

struct TorchKeywords {
  nb::handle keep, bias, mask, score_mod;
  bool causal = false;
  std::optional<double> scale;
  double dropout_p = 0;
  uint64_t seed = 0;
  double softcap = 0;
};

AttentionOptions to_options(const char* who, const TorchKeywords& k, Rng& rng) {
  AttentionOptions options;
  options.mask = to_mask(k.mask);
  if (k.causal) options.mask &= causal(Align::start);
  if (!k.keep.is_none()) options.mask &= keep(to_tensor(k.keep, {who, "attn_mask", true, true}));
  options.bias = to_tensor_or_none(k.bias, {who, "attn_mask", true, true});
  options.allow_binary_bias = true;
  options.scale = k.scale;
  options.softcap = k.softcap;
  if (k.dropout_p > 0) {
    options.dropout_p = k.dropout_p;
    options.rng = &rng;
  }
  return options;
}

struct ScoreOperands {
  const Tensor &query, &key;
};

// Programs that the library has built in become options, which run fused.
ScoreMod fused_or_mod(std::shared_ptr<const ScoreProgram> program, const ScoreOperands& x,
                      AttentionOptions& options) {
  if (!program) return {};
  if (x.query.rank() == 4 && x.key.rank() == 4) {
    const program::ScoreSizes sizes{x.query.size(1), x.query.size(2), x.key.size(2),
                                    detail::arithmetic_dtype(x.query.dtype())};
    if (program::match_score(*program, sizes, options)) return {};
  }
  return to_score_mod(program);
}

// (out, lse or None, call or None); lse in natural logarithms.
nb::tuple torch_forward(nb::handle query, nb::handle key, nb::handle value, nb::handle keep, nb::handle bias,
                        bool causal, std::optional<double> scale, double dropout_p, uint64_t seed,
                        bool needs_grad, int threads, bool return_lse, nb::handle mask, nb::handle score_mod,
                        const char* who, double softcap) {
  const Tensor q = borrow_from_torch(query, {who, "query", true, true});
  const Tensor k = borrow_from_torch(key, {who, "key", true, true});
  const Tensor v = borrow_from_torch(value, {who, "value", true, true});
  Rng rng(seed);
  AttentionOptions options =
      to_options(who, {keep, bias, mask, score_mod, causal, scale, dropout_p, seed, softcap}, rng);
  Tensor lse;
  if (return_lse) options.lse = &lse;
  const ScoreMod mod = fused_or_mod(to_score_program(score_mod), {q, k}, options);
  auto result = interruptible([&] {
    const OpenMpScope openmp(threads);
    auto call = std::make_unique<TorchCall>(
        TorchCall{detail::prepare_attention(who, q, k, v, options, mod), mod, threads});
    detail::compute_attention(call->call, options);
    return call;
  });
  nb::object out = give_to_torch(result->call.out);
  if (!needs_grad) return nb::make_tuple(out, give_to_torch(lse), nb::none());
  result->call.query = result->call.key = result->call.value = result->call.out = {};
  nb::object kept = nb::cast(result.release(), nb::rv_policy::take_ownership);
  return nb::make_tuple(out, give_to_torch(lse), kept);
}

// Gradients of query, key, value, bias, None where not wanted, and a list of those of captured tensors.
// `d_lse` may be None.
nb::tuple torch_backward(const TorchCall& saved, nb::handle d_out, nb::handle d_lse, nb::handle query,
                         nb::handle key, nb::handle value, nb::handle out, bool want_query, bool want_key,
                         bool want_value, bool want_bias, bool want_captured) {
  const auto borrowed = [](nb::handle x, const char* name) {
    return borrow_from_torch(x, {"attention backward", name, true, true});
  };
  const Tensor dy = borrowed(d_out, "grad_output"), q = borrowed(query, "query"), k = borrowed(key, "key"),
               v = borrowed(value, "value"), y = borrowed(out, "output");
  const Tensor d_sum = d_lse.is_none() ? Tensor() : borrowed(d_lse, "grad_lse");
  detail::AttentionCall call = saved.call;
  Tensor dq, dk, dv;
  constexpr size_t kBias = detail::learned_index(&AttentionOptions::bias);
  detail::WantedGradients wanted{.captured = want_captured};
  wanted.terms[kBias] = want_bias;
  detail::TermGradients terms;
  interruptible([&] {
    const OpenMpScope openmp(saved.threads);
    call.query = detail::with_dense_rows(q), call.key = detail::with_dense_rows(k);
    call.value = detail::with_dense_rows(v), call.out = detail::with_dense_rows(y);
    const auto gradient = [&](bool wanted, const Tensor& x) {
      return wanted ? detail::empty_gradient(x) : Tensor();
    };
    dq = gradient(want_query, call.query), dk = gradient(want_key, call.key),
    dv = gradient(want_value, call.value);
    const NoTape silent;
    terms = detail::attention_gradients(call, {dy, d_sum}, dq, dk, dv, wanted);
    return 0;
  });
  nb::list captured;
  for (const Tensor& x : terms.captured) captured.append(give_to_torch(x));
  return nb::make_tuple(give_to_torch(dq), give_to_torch(dk), give_to_torch(dv),
                        give_to_torch(terms.terms[kBias]), captured);
}

}  // namespace

void bind_torch(nb::module_& m) {
  nb::class_<TorchCall>(m, "TorchCall", "State saved by a forward for its backward.");
  m.def("torch_forward", &torch_forward, "query"_a, "key"_a, "value"_a, "keep"_a = nb::none(),
        "bias"_a = nb::none(), "causal"_a = false, "scale"_a = nb::none(), "dropout_p"_a = 0.0, "seed"_a = 0,
        "needs_grad"_a = false, "threads"_a = 1, "return_lse"_a = false, "mask"_a = nb::none(),
        "score_mod"_a = nb::none(), "who"_a = "scaled_dot_product_attention", "softcap"_a = 0.0);
  m.def("use_exchange_of", &find_torch_exchange, "tensor_type"_a);
  m.def("use_openmp_of", &find_openmp, "library"_a);
  m.def("torch_backward", &torch_backward, "call"_a, "d_out"_a, "d_lse"_a.none(), "query"_a, "key"_a,
        "value"_a, "out"_a, "want_query"_a, "want_key"_a, "want_value"_a, "want_bias"_a,
        "want_captured"_a = false);
}

}  // namespace multihead::python
