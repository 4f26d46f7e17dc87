#include "multihead/ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/attention/call-inl.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/inspect/capture-inl.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/attention/ring/ring.h"
#include "multihead/ops/attention/thresholds-inl.h"
#include "multihead/ops/narrow-inl.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the op's own internals

// Views of the query, key or value heads inside packed rows [B, T, W].
Tensor packed_view(const Tensor& x, int64_t first_head, int64_t heads, int64_t head_dim) {
  const Shape& s = x.strides();
  return x.detach().as_strided({x.size(0), x.size(1), heads, head_dim}, {s[0], s[1], head_dim, 1},
                               first_head * head_dim);
}

AttentionSizes check_packed(const Tensor& qkv, const PackedHeads& heads, int64_t kv_heads) {
  constexpr const char* who = "attention_packed";
  MH_CHECK(qkv.defined(), ValueError, who, ": qkv must be a defined tensor");
  MH_CHECK(is_floating(qkv.dtype()), DtypeError, who, ": qkv must be f32, f64, bf16 or f16, got ",
           qkv.dtype());
  MH_CHECK(heads.num_heads > 0 && kv_heads > 0, ValueError, who,
           ": num_heads and num_kv_heads must be > 0, got ", heads.num_heads, " and ", kv_heads);
  check_attention_heads(who, heads.num_heads, kv_heads);
  const int64_t parts = heads.num_heads + 2 * kv_heads;
  MH_CHECK(qkv.rank() == 3 && qkv.size(2) > 0 && qkv.size(2) % parts == 0, ShapeError, who,
           ": qkv must be [B, T, (H + 2·Hkv)·D] with H + 2·Hkv = ", parts, ", got ", qkv.shape());
  AttentionSizes s;
  s.batch = qkv.size(0), s.heads = heads.num_heads, s.kv_heads = kv_heads;
  s.queries = s.keys = qkv.size(1);
  s.head_dim = s.value_dim = qkv.size(2) / parts;
  return s;
}

std::vector<int64_t> check_offsets(const char* name, const Tensor& offsets, int64_t rows) {
  constexpr const char* who = "attention_ragged";
  MH_CHECK(offsets.defined() && (offsets.dtype() == Dtype::i64 || offsets.dtype() == Dtype::i32), DtypeError,
           who, ": ", name, " must be i64 or i32");
  MH_CHECK(offsets.rank() == 1 && offsets.numel() >= 1, ShapeError, who, ": ", name, " must be [S + 1], got ",
           offsets.shape());
  std::vector<int64_t> values = offsets.to_vector<int64_t>();
  MH_CHECK(values.front() == 0 && values.back() == rows, ValueError, who, ": ", name, " must run from 0 to ",
           rows, " (the packed rows), got ", values.front(), " to ", values.back());
  for (size_t i = 1; i < values.size(); ++i) {
    MH_CHECK(values[i] >= values[i - 1], ValueError, who, ": ", name, " must not decrease, got ",
             values[i - 1], " then ", values[i], " at ", i);
  }
  return values;
}

AttentionSizes check_ragged(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& cu_q,
                            const Tensor& cu_k) {
  constexpr const char* who = "attention_ragged";
  MH_CHECK(query.rank() == 3, ShapeError, who, ": query must be [N, H, D], got ", query.shape());
  AttentionSizes s;
  s.ragged = true;
  s.heads = query.size(1), s.head_dim = query.size(2);
  MH_CHECK(s.head_dim > 0, ShapeError, who, ": head_dim must be > 0, got query ", query.shape());
  MH_CHECK(key.rank() == 3 && key.size(2) == s.head_dim, ShapeError, who,
           ": key must be [M, Hkv, D=", s.head_dim, "] to match query ", query.shape(), ", got ",
           key.shape());
  s.kv_heads = key.size(1);
  MH_CHECK(value.rank() == 3 && value.size(0) == key.size(0) && value.size(1) == s.kv_heads, ShapeError, who,
           ": value must be [M=", key.size(0), ", Hkv=", s.kv_heads, ", Dv] to match key ", key.shape(),
           ", got ", value.shape());
  s.value_dim = value.size(2);
  check_attention_heads(who, s.heads, s.kv_heads);
  const std::vector<int64_t> q = check_offsets("cu_seqlens_q", cu_q, query.size(0));
  const std::vector<int64_t> k = check_offsets("cu_seqlens_k", cu_k, key.size(0));
  MH_CHECK(q.size() == k.size(), ShapeError, who,
           ": cu_seqlens_q and cu_seqlens_k must have one length, got ", cu_q.shape(), " and ", cu_k.shape());
  s.batch = static_cast<int64_t>(q.size()) - 1;
  for (size_t i = 0; i + 1 < q.size(); ++i) {
    s.sequences.push_back({q[i], q[i + 1] - q[i], k[i], k[i + 1] - k[i]});
    s.queries = std::max(s.queries, q[i + 1] - q[i]);
    s.keys = std::max(s.keys, k[i + 1] - k[i]);
  }
  return s;
}

// Operands of a backward: `tensors` are the gradients of the op's inputs, the others views of them.
struct BackwardOperands {
  Tensor d_out;
  std::vector<Tensor> tensors;
  Tensor d_query, d_key, d_value;
};

// The tensors that a call has written for its caller: output, log-sum-exps and captures, as far as wanted.
std::vector<Tensor*> results_of(Tensor& output, const AttentionOptions& options) {
  std::vector<Tensor*> results = {&output};
  if (options.lse) results.push_back(options.lse);
  for (const auto member : kCaptured) {
    if (options.capture && (options.capture->*member).defined())
      results.push_back(&(options.capture->*member));
  }
  return results;
}

// Their gradients in the places of a call's results; zeros for an output that had no use.
class ResultGradients {
 public:
  ResultGradients(const Tensor& output, const AttentionOptions& options)
      : shape_(output.shape()), dtype_(arithmetic_dtype(output.dtype())), has_lse_(options.lse != nullptr) {
    if (!options.capture) return;
    capture_ = *options.capture;
    for (size_t i = 0; i < has_.size(); ++i) {
      has_[i] = (capture_.*kCaptured[i]).defined();
      capture_.*kCaptured[i] = Tensor();
    }
  }

  OutputGradients sort(const std::vector<Tensor>& gradients) const {
    auto next = gradients.begin();
    OutputGradients to{*next++};
    if (!to.out.defined()) to.out = Tensor::zeros(shape_, dtype_);
    if (has_lse_) to.lse = *next++;
    to.capture = capture_;
    for (size_t i = 0; i < has_.size(); ++i) {
      if (has_[i]) to.capture.*kCaptured[i] = *next++;
    }
    return to;
  }

 private:
  Shape shape_;
  Dtype dtype_;
  bool has_lse_;
  AttentionCapture capture_;  // what was asked for, and the top keys
  std::array<bool, std::size(kCaptured)> has_ = {};
};

// Records `output`, and what the options receive, as results of `inputs`, the tensors of the options and what
// the score function captured. make(call, dy) gives memory for the gradients of the inputs, and dy with the
// axes of call.out.
template <class F>
Tensor record_call(const AttentionCall& call, const AttentionOptions& options,
                   std::initializer_list<Tensor> inputs, Tensor output, F make) {
  if (Tape::current() == nullptr) return output;
  const std::vector<Tensor>& captured = call.bound->score_mod().captured();
  const auto each = [&](auto&& f) {
    for (const Tensor& x : inputs) f(x);
    for (const auto term : kLearnedOptions) f(options.*term);
    for (const Tensor& x : captured) f(x);
  };
  bool recording = false;
  each([&](const Tensor& x) { recording = recording || x.requires_grad(); });
  if (!recording) return output;
  std::vector<std::shared_ptr<GradientSlot>> slots;
  slots.reserve(inputs.size() + kLearnedCount + captured.size());
  each([&](const Tensor& x) { slots.push_back(x.defined() ? x.gradient_slot() : nullptr); });
  WantedGradients wanted;
  for (const auto term : kLearnedOptions) wanted.terms[learned_index(term)] = (options.*term).requires_grad();
  wanted.captured = !captured.empty();
  const size_t count = slots.size();
  const std::vector<Tensor*> results = results_of(output, options);
  std::vector<Tensor> outputs;
  for (const Tensor* x : results) outputs.push_back(*x);
  Tape::current()->add(std::move(slots), outputs,
                       [call, wanted, make, count, sorted = ResultGradients(output, options)](
                           const std::vector<Tensor>& d_outputs) -> Gradients {
                         OutputGradients from = sorted.sort(d_outputs);
                         BackwardOperands x = make(call, from.out);
                         from.out = x.d_out;
                         TermGradients more =
                             attention_gradients(call, from, x.d_query, x.d_key, x.d_value, wanted);
                         Gradients all = std::move(x.tensors);
                         all.reserve(count);
                         std::move(more.terms.begin(), more.terms.end(), std::back_inserter(all));
                         std::move(more.captured.begin(), more.captured.end(), std::back_inserter(all));
                         return all;
                       });
  for (size_t i = 0; i < results.size(); ++i) *results[i] = outputs[i];
  return output;
}

// Gradients of query, key and value are laid out as those are.
Tensor record_call(const AttentionCall& call, const AttentionOptions& options, const Tensor& query,
                   const Tensor& key, const Tensor& value) {
  const std::array<bool, 3> wanted = {query.requires_grad(), key.requires_grad(), value.requires_grad()};
  return record_call(call, options, {query, key, value}, call.out.detach(),
                     [wanted](const AttentionCall& c, const Tensor& dy) -> BackwardOperands {
                       const auto memory = [&](bool needed, const Tensor& x) {
                         return needed ? empty_gradient(x) : Tensor();
                       };
                       const Tensor dq = memory(wanted[0], c.query), dk = memory(wanted[1], c.key),
                                    dv = memory(wanted[2], c.value);
                       return {dy, {dq, dk, dv}, dq, dk, dv};
                     });
}

// attention_packed() by attention(), of a rank's rows or above thresholds, in the sizes that have been checked.
Tensor packed_apart(const Tensor& qkv, const AttentionSizes& s, AttentionOptions options,
                    const ScoreMod& score_mod) {
  options.layout = Layout::bthd;
  const Tensor heads = reshape(qkv, {s.batch, s.queries, s.heads + 2 * s.kv_heads, s.head_dim});
  const int64_t keys = s.heads, values = s.heads + s.kv_heads;
  const Tensor out = attention(slice(heads, 2, 0, keys), slice(heads, 2, keys, values),
                               slice(heads, 2, values, values + s.kv_heads), options, score_mod);
  return reshape(out, {s.batch, s.queries, s.heads * s.head_dim});
}

}  // namespace

Tensor attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                 const AttentionOptions& options, const ScoreMod& score_mod) {
  if (const ContextScope* scope = ContextScope::current()) {
    return ring_attention(scope->group(), scope->shards(), queries, keys, values, options, score_mod);
  }
  const Tensor query = for_product(queries), key = for_product(keys), value = for_product(values);
  if (has_threshold(options.normalise)) {
    check_attention("attention", query, key, value, options.layout);
    const auto call = [&](const AttentionOptions& pass, const ScoreMod& weight, bool columns) {
      return attention(query, key, columns ? value : slice(value.detach(), 3, 0, 0), pass, weight);
    };
    return attention_above_thresholds("attention", options, score_mod, {}, call);
  }
  AttentionCall call = prepare_attention("attention", query, key, value, options, score_mod);
  compute_attention(call, options);
  return record_call(call, options, query, key, value);
}

Tensor attention_packed(const Tensor& rows, const PackedHeads& heads, const AttentionOptions& options,
                        const ScoreMod& score_mod) {
  constexpr const char* who = "attention_packed";
  const Tensor qkv = for_product(rows);
  const int64_t h = heads.num_heads, kv = heads.num_kv_heads == 0 ? h : heads.num_kv_heads;
  MH_CHECK(options.layout == Layout::bhtd, ValueError, who, ": layout does not apply to packed rows");
  const AttentionSizes s = check_packed(qkv, heads, kv);
  if (ContextScope::current() != nullptr || has_threshold(options.normalise))
    return packed_apart(qkv, s, options, score_mod);
  const int64_t d = s.head_dim;
  const auto split = [h, kv, d](const Tensor& x) -> std::array<Tensor, 3> {
    return {packed_view(x, 0, h, d), packed_view(x, h, kv, d), packed_view(x, h + kv, kv, d)};
  };
  AttentionCall call =
      bind_call(who, s, kBthd, split(qkv.strides()[2] == 1 ? qkv : qkv.contiguous()), options, score_mod);
  const Tensor out = Tensor::empty({s.batch, s.queries, h * d}, qkv.dtype());
  call.out = packed_view(out, 0, h, d);
  compute_attention(call, options);
  const bool wanted = qkv.requires_grad();
  return record_call(call, options, {qkv}, out, [=](const AttentionCall& c, const Tensor& dy) {
    BackwardOperands x;
    x.d_out = packed_view(dy.strides()[2] == 1 ? dy : dy.contiguous(), 0, h, d);
    x.tensors.resize(1);
    if (wanted) {
      const Tensor& q = c.query;
      x.tensors[0] = Tensor::empty({q.size(0), q.size(1), (h + 2 * kv) * d}, arithmetic_dtype(q.dtype()));
      const auto [dq, dk, dv] = split(x.tensors[0]);
      x.d_query = dq, x.d_key = dk, x.d_value = dv;
    }
    return x;
  });
}

Tensor attention_ragged(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                        const AttentionOptions& options, const ScoreMod& score_mod) {
  constexpr const char* who = "attention_ragged";
  const Tensor query = for_product(queries), key = for_product(keys), value = for_product(values);
  check_attention_dtypes(who, query, key, value);
  MH_CHECK(ContextScope::current() == nullptr, ValueError, who, ": not in a ContextScope");
  MH_CHECK(options.layout == Layout::bhtd, ValueError, who, ": layout does not apply to packed rows");
  const AttentionSizes s = check_ragged(query, key, value, cu_seqlens_q, cu_seqlens_k);
  if (has_threshold(options.normalise)) {
    std::vector<int64_t> begins;
    for (const auto& sequence : s.sequences) begins.push_back(sequence.query_begin);
    const auto call = [&](const AttentionOptions& pass, const ScoreMod& weight, bool columns) {
      return attention_ragged(query, key, columns ? value : slice(value.detach(), 2, 0, 0), cu_seqlens_q,
                              cu_seqlens_k, pass, weight);
    };
    return attention_above_thresholds(who, options, score_mod, begins, call);
  }
  AttentionCall call =
      bind_call(who, s, kRagged, {with_dense_rows(query), with_dense_rows(key), with_dense_rows(value)},
                options, score_mod);
  call.out = Tensor::empty({query.size(0), s.heads, s.value_dim}, query.dtype());
  compute_attention(call, options);
  return record_call(call, options, query, key, value);
}

}  // namespace multihead
