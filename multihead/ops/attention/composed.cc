#include "multihead/ops/attention/composed.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/ops/array/compare.h"
#include "multihead/ops/attention/call-inl.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/composed-inl.h"
#include "multihead/ops/attention/masks/check-inl.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/attention/terms-inl.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"

namespace multihead {
namespace detail {
namespace {

using Doubles = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

// The offset of the positions that terms see, by the definition of masks.
int64_t position_offset(const Mask& mask, const MaskPair& at) {
  for (const auto& part : mask.parts()) {
    if (part->diagonal() != nullptr) return part->diagonal()->offset_at(at);
  }
  return at.keys - at.queries;
}

// x [B, H, rows, k] with heads that share keys or values one below the other: [B, Hkv, rows of a group, k].
Tensor in_groups(const Tensor& x, const AttentionSizes& s) {
  const int64_t group = s.kv_heads == 0 ? 0 : s.heads / s.kv_heads;
  return reshape(x, {s.batch, s.kv_heads, group * x.size(2), x.size(3)});
}

// [..., 1]: the largest of each row, 0 where all are -inf, and where that is so.
struct RowTops {
  Tensor largest, empty;

  explicit RowTops(const Tensor& x) {
    const Doubles values = x.to_vector<double>();
    Shape rows = x.shape();
    rows[-1] = 1;
    largest = Tensor::zeros(rows, Dtype::f64), empty = Tensor::zeros(rows, Dtype::boolean);
    for (int64_t row = 0; row < rows.numel(); ++row) {
      const auto begin = values.begin() + row * x.size(-1), end = begin + x.size(-1);
      bool& none = empty.data<bool>()[row];
      none = std::all_of(begin, end, [](double v) { return v == -kInf; });
      if (!none) largest.data<double>()[row] = *std::max_element(begin, end);
    }
    largest = largest.to(x.dtype());
  }
};

Tensor constant(double value, const Tensor& like) { return Tensor::full({1}, value, like.dtype()); }

// log Σ e^x over the last axis, [..., 1]. Rows of -inf have no gradient.
Tensor log_sum_exp(const Tensor& x) {
  const RowTops tops(x);
  const Tensor total = sum(exp(sub(x, tops.largest)), -1, true);
  const Tensor lse = add(tops.largest, log(where(tops.empty, constant(1, x), total)));
  return where(tops.empty, constant(-kInf, x), lse);
}

// The score function on rows of scores [B, H, rows, Tk], which are contiguous.
struct FunctionCall {
  ScoreMod score_mod;
  std::vector<int64_t> rows, offsets;

  // f(functions, tile, where it begins in bytes) for every row.
  template <class F>
  void each_tile(const Tensor& scores, F f) const {
    const ScoreContext context{score_mod.function(), offsets.data()};
    const kernels::ScoreFunction functions = score_mod.bind(scores.dtype(), &context);
    const int64_t keys = scores.size(3), count = std::ssize(rows), heads = scores.size(1);
    for (int64_t n = 0; n < scores.size(0) * heads * count; ++n) {
      const int64_t at = n * keys * static_cast<int64_t>(size_of(scores.dtype()));
      const int64_t b = n / (heads * count), h = n / count % heads;
      f(functions, {static_cast<char*>(scores.raw()) + at, 1, b, h, rows[n % count], 1, 0, keys}, at);
    }
  }

  // The gradients of the scores and of what was captured.
  Gradients backward(const Tensor& scores, const Tensor& d) const {
    using kernels::ScoreFunction;
    using kernels::ScoreTile;
    Gradients all = {d.clone()};
    auto* const dx = static_cast<char*>(all[0].raw());
    if (!score_mod.captured().empty()) {
      const Tensor sums = Tensor::zeros({score_mod.bind(d.dtype(), nullptr).captured}, d.dtype());
      each_tile(scores, [&](const ScoreFunction& f, const ScoreTile& tile, int64_t at) {
        f.backward(f.context, tile, dx + at, sums.raw());
      });
      for (const Tensor& x : captured_gradients(score_mod, sums)) all.push_back(x);
      return all;
    }
    const Tensor slopes = empty_like(scores);
    each_tile(scores.clone(), [&](const ScoreFunction& f, const ScoreTile& tile, int64_t at) {
      f.apply_with_derivative(f.context, tile, static_cast<char*>(slopes.raw()) + at);
    });
    all[0] = where(all[0].to(Dtype::boolean), mul(all[0], slopes), constant(0, slopes));
    return all;
  }
};

}  // namespace

Composition::Composition(std::string who, const AttentionSizes& sizes,
                         const std::array<Tensor, 3>& query_key_value, const AttentionOptions& options,
                         const ScoreMod& score_mod, Dtype dtype, std::vector<int64_t> rows)
    : options_(options),
      score_mod_(score_mod),
      bound_(std::move(who), sizes, options, score_mod, query_key_value[0].dtype()),
      dtype_(dtype),
      query_(wide(query_key_value[0])),
      key_(wide(query_key_value[1])),
      value_(wide(query_key_value[2])),
      rows_(std::move(rows)) {
  MH_CHECK(ContextScope::current() == nullptr, ValueError, bound_.who(), ": not in a ContextScope");
  if (rows_.empty()) {
    rows_.resize(static_cast<size_t>(sizes.queries));
    std::iota(rows_.begin(), rows_.end(), 0);
  }
  for (int64_t b = 0; b < sizes.batch; ++b) {
    offsets_.push_back(position_offset(options.mask, {b, 0, 0, 0, sizes.queries, sizes.keys}));
  }
  allowed_ = find_allowed();
}

template <class F>
void Composition::each_row(F f) const {
  int64_t n = 0;
  for (int64_t b = 0; b < sizes().batch; ++b) {
    for (int64_t h = 0; h < sizes().heads; ++h) {
      for (const int64_t i : rows_) f(n++, b, h, i);
    }
  }
}

Tensor Composition::wide(const Tensor& x) const { return cast(x, dtype_); }

Tensor Composition::own_rows(const Tensor& x) const {
  if (x.rank() < 2 || x.size(-2) == 1 || std::ssize(rows_) == sizes().queries) return x;
  std::vector<Tensor> rows;
  for (const int64_t i : rows_) rows.push_back(slice(x, -2, i, i + 1));
  return concat(rows, -2);
}

Tensor Composition::find_allowed() const {
  const AttentionSizes& s = sizes();
  const Tensor allowed = Tensor::empty({s.batch, s.heads, std::ssize(rows_), s.keys}, Dtype::boolean);
  const auto& parts = options_.mask.parts();
  each_row([&](int64_t n, int64_t b, int64_t h, int64_t i) {
    for (int64_t j = 0; j < s.keys; ++j) {
      const MaskPair at{b, h, i, j, s.queries, s.keys};
      allowed.data<bool>()[n * s.keys + j] =
          std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return part->allows(at); }) &&
          (!options_.bias.defined() || broadcast_at(options_.bias, b, h, i, j) != -kInf);
    }
  });
  return allowed;
}

Tensor Composition::distances() const {
  Doubles all;
  for (int64_t b = 0; b < sizes().batch; ++b) {
    for (const int64_t i : rows_) {
      for (int64_t j = 0; j < sizes().keys; ++j)
        all.push_back(std::abs(static_cast<double>(distance(b, i, j))));
    }
  }
  return wide(Tensor::of<double>({sizes().batch, 1, std::ssize(rows_), sizes().keys}, all));
}

std::vector<int64_t> Composition::places(int64_t span, int64_t center) const {
  std::vector<int64_t> places;
  each_row([&](int64_t n, int64_t b, int64_t, int64_t i) {
    for (int64_t j = 0; j < sizes().keys; ++j) {
      places.push_back(n * span + std::clamp<int64_t>(distance(b, i, j) + center, 0, span - 1));
    }
  });
  return places;
}

namespace {

// y[i] = x[places[i]].
Tensor gathered(const std::vector<int64_t>& places, const Tensor& x, const Shape& shape) {
  const Tensor y = Tensor::empty(shape, x.dtype());
  with_data(
      [&](auto* to, auto* elements) {
        for (size_t i = 0; i < places.size(); ++i) to[i] = elements[places[i]];
      },
      y, x.contiguous());
  return y;
}

// y[places[i]] += x[i].
Tensor scattered(const std::vector<int64_t>& places, const Tensor& x, const Shape& shape) {
  const Tensor y = Tensor::zeros(shape, x.dtype());
  with_data(
      [&](auto* to, auto* elements) {
        for (size_t i = 0; i < places.size(); ++i) to[places[i]] += elements[i];
      },
      y, x.contiguous());
  return y;
}

}  // namespace

Tensor Composition::at_distance(const Tensor& table, int64_t center) const {
  const AttentionSizes& s = sizes();
  const Tensor x = expand(table, {s.batch, s.heads, std::ssize(rows_), table.size(-1)});
  std::vector<int64_t> from = places(table.size(-1), center);
  const Tensor y = gathered(from, x, {s.batch, s.heads, std::ssize(rows_), s.keys});
  return record({x}, y, [from = std::move(from), shape = x.shape()](const Tensor& d) -> Gradients {
    return {scattered(from, d, shape)};
  });
}

Tensor Composition::by_distance(const Tensor& x, int64_t span, int64_t center) const {
  const AttentionSizes& s = sizes();
  std::vector<int64_t> to = places(span, center);
  const Tensor y = scattered(to, x, {s.batch, s.heads, std::ssize(rows_), span});
  return record({x}, y, [to = std::move(to), shape = x.shape()](const Tensor& d) -> Gradients {
    return {gathered(to, d, shape)};
  });
}

Tensor Composition::apply_function(const Tensor& scores) const {
  const FunctionCall call{score_mod_, rows_, offsets_};
  const Tensor x = scores.contiguous();
  Tensor y = x.clone();
  call.each_tile(y, [](const kernels::ScoreFunction& f, const kernels::ScoreTile& tile, int64_t) {
    f.apply(f.context, tile);
  });
  std::vector<std::shared_ptr<GradientSlot>> slots = {scores.gradient_slot()};
  bool recording = is_recording({scores});
  for (const Tensor& captured : score_mod_.captured()) {
    slots.push_back(captured.gradient_slot());
    recording = recording || is_recording({captured});
  }
  const auto backward = [call, x = x.detach()](const std::vector<Tensor>& d) {
    return call.backward(x, d[0]);
  };
  if (recording) Tape::current()->add(std::move(slots), {&y, 1}, backward);
  return y;
}

Tensor Composition::products(const Tensor& query, const Tensor& key) const {
  return wide(multihead::scale(matmul(query, transpose(key, -2, -1)), bound_.problem().scale));
}

Tensor Composition::scores() const {
  Tensor scores = products(in_groups(query_, sizes()), key_);
  scores = reshape(scores, allowed_.shape());
  for (const AttentionTerm& term : attention_terms()) {
    if (term.compose != nullptr && term.is_set(options_, score_mod_)) scores = term.compose(scores, *this);
  }
  return where(allowed_, scores, Tensor::full({1}, -kInf, dtype_));
}

void Composition::check_no_empty_row(const Tensor& empty) const {
  if (options_.empty_row != EmptyRow::error) return;
  const int64_t* lengths = bound_.problem().query_lengths;
  each_row([&](int64_t n, int64_t b, int64_t h, int64_t i) {
    MH_CHECK(!empty.data<bool>()[n] || (lengths != nullptr && i >= lengths[b]), ValueError, bound_.who(),
             ": query ", i, " of head ", h, " in sample ", b, " has no key to attend to (empty_row = error)");
  });
}

// Weights as options.normalise has it.
Composition::Softmax Composition::weights(const Tensor& scores) const {
  const Tensor zero = constant(0, scores), one = constant(1, scores);
  const Tensor weights = where(allowed_, score_mod_ ? apply_function(scores) : scores, zero);
  Softmax to;
  to.empty = RowTops(scores).empty;
  Tensor by = where(to.empty, zero, one);
  if (options_.normalise != Normalise::none) {
    const bool absolute = options_.normalise == Normalise::abs_sum;
    by = sum(absolute ? where(less(weights, zero), multihead::scale(weights, -1), weights) : weights, -1,
             true);
  }
  to.lse = reshape(by, {sizes().batch, sizes().heads, scores.size(2)});
  to.empty = equal(by, zero);
  check_no_empty_row(to.empty);
  to.probabilities = where(to.empty, zero, div(weights, where(to.empty, one, by)));
  return to;
}

Composition::Softmax Composition::softmax(const Tensor& scores) const {
  if (options_.normalise != Normalise::softmax) return weights(scores);
  const AttentionSizes& s = sizes();
  Tensor all = scores;
  if (options_.sinks.defined()) {  // a column that is left out again
    const Tensor sinks = reshape(wide(options_.sinks), {s.heads, 1, 1});
    all = concat({scores, expand(sinks, {s.batch, s.heads, scores.size(2), 1})}, 3);
  }
  Softmax to;
  to.lse = reshape(log_sum_exp(all), {s.batch, s.heads, scores.size(2)});
  to.empty = RowTops(scores).empty;
  check_no_empty_row(to.empty);
  to.probabilities = slice(multihead::softmax(all), 3, 0, s.keys);
  if (options_.empty_row == EmptyRow::uniform) {
    to.probabilities = where(to.empty, constant(1 / static_cast<double>(s.keys), scores), to.probabilities);
  }
  return to;
}

Tensor Composition::dropout(const Tensor& probabilities) const {
  const kernels::AttentionProblem& p = bound_.problem();
  if (p.dropout_p <= 0) return probabilities;
  Doubles factors;
  each_row([&](int64_t, int64_t b, int64_t h, int64_t i) {
    for (int64_t j = 0; j < sizes().keys; ++j) {
      const bool kept = kernels::attention_dropout_keep(p.dropout_key, b, h, i, j, p.dropout_p);
      factors.push_back(kept ? 1 / (1 - p.dropout_p) : 0);
    }
  });
  return mul(probabilities, Tensor::of<double>(probabilities.shape(), factors).to(probabilities.dtype()));
}

Tensor Composition::output(const Softmax& softmax) const {
  const AttentionSizes& s = sizes();
  const Tensor weights = dropout(softmax.probabilities);
  Tensor out =
      reshape(matmul(in_groups(weights, s), value_), {s.batch, s.heads, query_.size(2), s.value_dim});
  if (const Tensor& table = options_.relative_value; table.defined()) {
    const int64_t span = table.size(1);
    const int64_t center = options_.relative_center < 0 ? (span - 1) / 2 : options_.relative_center;
    out = add(out, matmul(by_distance(weights, span, center), wide(table)));
  }
  return options_.empty_row == EmptyRow::nan ? where(softmax.empty, constant(std::nan(""), out), out) : out;
}

}  // namespace detail

Tensor attention_composed(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& options, const ScoreMod& score_mod) {
  constexpr const char* who = "attention_composed";
  MH_CHECK(options.layout == Layout::bhtd, ValueError, who, ": only layout bhtd");
  const detail::AttentionSizes sizes = detail::check_attention(who, query, key, value, options.layout);
  const detail::Composition call(who, sizes, {query, key, value}, options, score_mod, Dtype::f64);
  const Tensor scores = call.scores();
  const detail::Composition::Softmax softmax = call.softmax(scores);
  const Dtype dtype = detail::arithmetic_dtype(query.dtype());
  if (options.lse) *options.lse = cast(softmax.lse, dtype);
  if (AttentionCapture* capture = options.capture; capture != nullptr) {
    capture->weights =
        cast(capture->stage == CaptureStage::scores          ? scores
             : capture->stage == CaptureStage::probabilities ? softmax.probabilities
                                                             : call.dropout(softmax.probabilities),
             dtype);
  }
  return cast(call.output(softmax), query.dtype());
}

}  // namespace multihead
