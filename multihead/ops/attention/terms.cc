#include "multihead/ops/attention/terms-inl.h"

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"
#include "multihead/ops/attention/thresholds-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead::detail {
namespace {

using O = AttentionOptions;
using G = kernels::AttentionGradient;

// A tensor of the options in the type of the arithmetic. With 16-bit queries it may have their type, too,
// whose numbers f32 holds exactly.
Tensor in_term_dtype(const TermBinding& call, const char* name, const Tensor& x) {
  const Dtype arithmetic = arithmetic_dtype(call.dtype);
  if (x.dtype() == call.dtype && call.dtype != arithmetic) return x.to(arithmetic);
  MH_CHECK(x.dtype() == arithmetic, DtypeError, call.who, ": ", name, " must be ", arithmetic,
           call.dtype == arithmetic ? "" : concat(" or ", call.dtype), ", got ", x.dtype(),
           x.dtype() == Dtype::boolean ? "; a bool tensor is a mask: keep(tensor)" : "");
  return x;
}

std::string tensor_text(const char* name, const Tensor& x) {
  return concat("+ ", name, " ", x.shape(), x.requires_grad() ? ", trained" : "");
}

// --- relative tables

int64_t center_of(const O& options, const Tensor& table) {
  MH_CHECK(options.relative_center >= -1, ValueError,
           "attention: relative_center must be a row of the table or -1, its middle, got ",
           options.relative_center);
  return options.relative_center < 0 ? (table.size(1) - 1) / 2 : options.relative_center;
}

// [H, span, ...] of a table [H or 1, span, ...]: heads that share a row have it at a stride of 0.
Tensor table_of(const TermBinding& call, const char* name, const Tensor& table, const Shape& rest,
                const char* axis = "D") {
  const Tensor x = in_term_dtype(call, name, table);
  const int64_t heads = call.sizes.heads;
  const bool fits = x.rank() == 2 + rest.rank() && (x.size(0) == 1 || x.size(0) == heads) && x.size(1) > 0 &&
                    (rest.rank() == 0 || x.size(2) == rest[0]);
  const std::string more = rest.rank() == 0 ? "" : concat(", ", axis, "=", rest[0]);
  MH_CHECK(fits, ShapeError, call.who, ": ", name, " must be [H=", heads, ", span", more, "] or [1, span",
           rest.rank() == 0 ? "" : concat(", ", axis), "], got ", x.shape());
  MH_CHECK(call.options.relative_center < x.size(1), ValueError, call.who,
           ": relative_center must be in [0, ", x.size(1), "), the span of ", name, ", got ",
           call.options.relative_center);
  Shape shape = x.shape(), strides = x.strides();
  if (x.size(0) == 1) strides[0] = 0;
  shape[0] = heads;
  return x.detach().as_strided(shape, strides);
}

Tensor bind_relative_bias(const TermBinding& call) {
  const Tensor x = table_of(call, "relative_bias", call.options.relative_bias, {}).contiguous();
  call.to.relative_bias = x.raw();
  call.to.relative_stride = call.to.relative_span = x.size(1);
  call.to.relative_center = center_of(call.options, x);
  return x;
}

Tensor bind_relative_key(const TermBinding& call) {
  Tensor x = table_of(call, "relative_key", call.options.relative_key, {call.sizes.head_dim});
  if (x.size(2) > 1 && x.strides()[2] != 1) x = x.contiguous();
  call.to.relative_key = {x.raw(), x.strides()[0], x.strides()[1], x.size(1), center_of(call.options, x)};
  return x;
}

// With zeros behind each row, up to a multiple of 16.
Tensor bind_relative_value(const TermBinding& call) {
  constexpr int64_t kColumns = 16;
  MH_CHECK(call.options.empty_row != EmptyRow::uniform, ValueError, call.who,
           ": empty_row = uniform gives the mean of all values; not with relative_value");
  const int64_t dim = call.sizes.value_dim;
  Tensor x = table_of(call, "relative_value", call.options.relative_value, {dim}, "Dv");
  if (dim % kColumns != 0 || x.strides()[2] != 1) {
    const bool shared = x.strides()[0] == 0;
    const Shape own = {shared ? 1 : x.size(0), x.size(1), dim};
    const int64_t row = (dim + kColumns - 1) / kColumns * kColumns;
    const Tensor memory = Tensor::zeros({own[0], own[1], row}, x.dtype());
    memory.as_strided(own, {own[1] * row, row, 1}).copy_from(x.as_strided(own, x.strides()));
    x = memory.as_strided(x.shape(), {shared ? 0 : own[1] * row, row, 1});
  }
  call.to.relative_value = {x.raw(), x.strides()[0], x.strides()[1], x.size(1), center_of(call.options, x)};
  return x;
}

// --- score function

Tensor bind_function(const TermBinding& call) {
  check_index_sizes(call.who, call.sizes, call.offsets);
  call.context.function = call.score_mod.function();
  call.context.offset = call.offsets[0];
  call.context.offsets = call.offsets.size() > 1 ? call.offsets.data() : nullptr;
  call.to.score_function = call.score_mod.bind(arithmetic_dtype(call.dtype), &call.context);
  return {};
}

// --- weights that go through no softmax

Tensor bind_normalise(const TermBinding& call) {
  const O& o = call.options;
  MH_CHECK(!has_threshold(o.normalise), ValueError, call.who,
           ": normalise = sparsemax and entmax15 are for attention(), attention_packed() and "
           "attention_ragged() alone");
  const char* other = o.sinks.defined() ? "sinks" : o.capture != nullptr ? "capture" : nullptr;
  MH_CHECK(other == nullptr, ValueError, call.who, ": ", other == nullptr ? "" : other,
           " belongs to a softmax; not with another normalise");
  MH_CHECK(o.empty_row != EmptyRow::uniform, ValueError, call.who,
           ": empty_row = uniform belongs to a softmax; not with another normalise");
  call.to.normalise = o.normalise;
  return {};
}

std::string explain_normalise(const O& o) {
  const char* by = o.normalise == Normalise::sum       ? "divided by their sum"
                   : o.normalise == Normalise::abs_sum ? "divided by the sum of their absolute values"
                                                       : "as they are";
  return concat("weights instead of a softmax, ", by);
}

// --- softcap

Tensor bind_softcap(const TermBinding& call) {
  const double cap = call.options.softcap;
  const auto narrow = static_cast<float>(cap);  // as kernels of f32 take it
  MH_CHECK(std::isfinite(narrow) && cap >= 0 && (narrow > 0) == (cap > 0), ValueError, call.who,
           ": softcap must be >= 0 and finite (0 = none), got ", cap);
  call.to.softcap = cap;
  return {};
}

// --- bias

// True if every element is 0 or 1 and both occur. Stops at the first other value: real biases cost nothing.
bool is_binary(const Tensor& bias) {
  bool zero = false, one = false;
  const Tensor x = bias.contiguous();
  const auto look = [&](auto* values) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (values[i] != 0 && values[i] != 1) return false;
      (values[i] == 0 ? zero : one) = true;
    }
    return zero && one;
  };
  return x.dtype() == Dtype::f64 ? look(x.data<double>()) : look(x.data<float>());
}

Tensor bind_bias(const TermBinding& call) {
  const Tensor bias = in_term_dtype(call, "bias", call.options.bias);
  broadcast_strides(call.who, "bias", bias, call.sizes);
  const bool trained = call.options.bias.requires_grad();
  MH_CHECK(call.options.allow_binary_bias || trained || !is_binary(bias), ValueError, call.who,
           ": bias holds only zeros and ones, which would be added to the scores; a mask is keep(bias), "
           "converted to bool; else set allow_binary_bias");
  const Tensor x = bias.contiguous();
  call.to.bias = x.raw();
  call.to.bias_strides = broadcast_strides(call.who, "bias", x, call.sizes);
  return x;
}

// --- slopes

Tensor bind_alibi(const TermBinding& call) {
  const Tensor x = in_term_dtype(call, "alibi_slopes", call.options.alibi_slopes).contiguous();
  const AttentionSizes& s = call.sizes;
  const bool fits = (x.rank() == 1 || (x.rank() == 2 && x.size(0) == s.batch)) && x.size(-1) == s.heads;
  MH_CHECK(fits, ShapeError, call.who, ": alibi_slopes must be [H=", s.heads, "] or [B=", s.batch,
           ", H=", s.heads, "], got ", x.shape());
  call.to.alibi_slopes = x.raw();
  call.to.alibi_batch_stride = x.rank() == 2 ? x.size(1) : 0;
  return x;
}

Tensor compose_alibi(const Tensor& scores, const Composition& call) {
  const Tensor& slopes = call.options().alibi_slopes;
  const int64_t samples = slopes.rank() == 2 ? slopes.size(0) : 1;
  const Tensor per_head = reshape(call.wide(slopes), {samples, call.sizes().heads, 1, 1});
  return sub(scores, mul(per_head, call.distances()));
}

// --- sinks

Tensor bind_sinks(const TermBinding& call) {
  const Tensor x = in_term_dtype(call, "sinks", call.options.sinks).contiguous();
  MH_CHECK(x.rank() == 1 && x.size(0) == call.sizes.heads, ShapeError, call.who,
           ": sinks must be [H=", call.sizes.heads, "], got ", x.shape());
  return x;
}

template <Tensor O::*kTensor>
bool has(const O& options, const ScoreMod&) {
  return (options.*kTensor).defined();
}

const AttentionTerm kTerms[] = {
    {has<&O::relative_key>, bind_relative_key,
     [](const O& o) { return tensor_text("scale · query · relative_key", o.relative_key); },
     [](const Tensor& scores, const Composition& call) {
       const Tensor& table = call.options().relative_key;
       const Tensor products = call.products(call.query(), call.wide(table));
       return add(scores, call.at_distance(products, center_of(call.options(), table)));
     },
     &O::relative_key, &G::d_relative_key},
    {has<&O::relative_value>, bind_relative_value,
     [](const O& o) { return tensor_text("probabilities · relative_value", o.relative_value); }, nullptr,
     &O::relative_value, &G::d_relative_value},
    {[](const O&, const ScoreMod& score_mod) { return static_cast<bool>(score_mod); }, bind_function,
     [](const O& o) {
       const bool last = o.normalise != Normalise::softmax;
       return concat(last ? "weight, of the score with all terms" : "score_mod",
                     ": a user's function, derivative by dual numbers");
     },
     [](const Tensor& scores, const Composition& call) {  // a weight: in Composition::softmax()
       return call.options().normalise == Normalise::softmax ? call.apply_function(scores) : scores;
     }},
    {[](const O& o, const ScoreMod&) { return o.softcap != 0; }, bind_softcap,
     [](const O& o) { return concat("softcap ", o.softcap, " (before biases and masks)"); },
     [](const Tensor& scores, const Composition& call) {
       const double cap = call.options().softcap;
       return scale(tanh(scale(scores, 1 / cap)), cap);
     }},
    {has<&O::bias>, bind_bias, [](const O& o) { return tensor_text("bias", o.bias); },
     [](const Tensor& scores, const Composition& call) {
       return add(scores, call.own_rows(call.wide(call.options().bias)));
     },
     &O::bias, &G::d_bias},
    {has<&O::relative_bias>, bind_relative_bias,
     [](const O& o) { return tensor_text("relative_bias", o.relative_bias); },
     [](const Tensor& scores, const Composition& call) {
       const Tensor& table = call.options().relative_bias;
       const Tensor rows = reshape(call.wide(table), {table.size(0), 1, table.size(1)});
       return add(scores, call.at_distance(rows, center_of(call.options(), table)));
     },
     &O::relative_bias, &G::d_relative_bias},
    {has<&O::alibi_slopes>, bind_alibi,
     [](const O& o) { return tensor_text("alibi_slopes", o.alibi_slopes); }, compose_alibi, &O::alibi_slopes,
     &G::d_alibi_slopes},
    {[](const O& o, const ScoreMod&) { return o.normalise != Normalise::softmax; }, bind_normalise,
     explain_normalise, nullptr},
    {has<&O::sinks>, bind_sinks,
     [](const O&) { return std::string("adds an attention sink to every softmax"); }, nullptr, &O::sinks},
};

}  // namespace

std::span<const AttentionTerm> attention_terms() { return kTerms; }

const char* other_option(const O& options, std::span<const std::string_view> taken) {
  static const O kDefaults;
  const char* other = nullptr;
  for_each_option([&](const char* name, auto member) {
    using T = std::remove_cvref_t<decltype(options.*member)>;
    bool changed = false;
    if constexpr (std::is_same_v<T, Tensor>) {
      changed = (options.*member).defined();
    } else if constexpr (std::is_same_v<T, Mask>) {
      changed = !(options.*member).is_empty();
    } else {
      changed = options.*member != kDefaults.*member;
    }
    if (other == nullptr && changed && std::find(taken.begin(), taken.end(), name) == taken.end())
      other = name;
  });
  return other;
}

}  // namespace multihead::detail
