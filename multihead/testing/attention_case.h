// Random attention problems with every option, and their results in f64, by the naive f32 loop and by the
// kernels. For tests and benchmarks of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "multihead/kernels/attention/reference-inl.h"

namespace multihead::testing {

enum class Layout { bhtd, bthd };
enum class Keep { none, full, per_key, per_sample };  // shape [1,H,Tq,Tk], [B,1,1,Tk], [B,1,Tq,Tk]
enum class Bias { none, full, per_head, key_only };   // shape [B,H,Tq,Tk], [1,H,Tq,Tk], [B,1,1,Tk]

struct CaseOptions {
  int64_t batch = 2, heads = 2, kv_heads = 2, queries = 5, keys = 7, head_dim = 8, value_dim = 8;
  double scale = 0;  // 0: 1/sqrt(head_dim)
  Layout layout = Layout::bhtd;
  bool causal = false;
  int64_t diagonal = std::numeric_limits<int64_t>::min();  // default: Tk - Tq
  bool diagonals = false;                                  // one per sample
  int64_t window_left = -1, window_right = -1;
  bool key_lengths = false, query_lengths = false, intervals = false, ragged = false;
  Keep keep = Keep::none;
  bool mask_function = false;
  Bias bias = Bias::none;
  bool relative_bias = false, alibi = false, score_function = false;
  int64_t relative_key = 0;          // span of the table; 0: none
  bool relative_key_shared = false;  // one table for all heads
  double softcap = 0, dropout = 0;
  double logits = 1;  // standard deviation of the scores
  bool lse_gradient = false;
  kernels::EmptyRow empty_row = kernels::EmptyRow::zero;
  uint32_t seed = 1;
};

/// s + 0.1 sin(s) + 0.01 (key - query) + 0.1 head
template <class T>
struct WavyScore {
  static void apply(const void*, const kernels::ScoreTile& t) { run(t, nullptr); }
  static void apply_with_derivative(const void*, const kernels::ScoreTile& t, void* d) {
    run(t, static_cast<T*>(d));
  }
  static void run(const kernels::ScoreTile& t, T* derivative) {
    for (int64_t k = 0; k < t.key_count; ++k) {
      for (int64_t q = 0; q < t.query_count; ++q) {
        T& s = static_cast<T*>(t.scores)[k * t.stride + q];
        if (derivative) derivative[k * t.stride + q] = 1 + T(0.1) * std::cos(s);
        s += T(0.1) * std::sin(s) + T(0.01) * static_cast<T>(t.key_begin + k - t.query_begin - q) +
             T(0.1) * static_cast<T>(t.head);
      }
    }
  }
};

/// Blocks of 32 keys where (query / 16 + key / 32 + head) % 3 != 0.
struct StripeMask {
  static bool keep(int64_t h, int64_t q, int64_t k) { return (q / 16 + k / 32 + h) % 3 != 0; }
  static void fill(const void*, const kernels::KeepTile& t) {
    for (int64_t k = 0; k < t.key_count; ++k) {
      for (int64_t q = 0; q < t.query_count; ++q) {
        t.keep[k * t.stride + q] = keep(t.head, t.query_begin + q, t.key_begin + k);
      }
    }
  }
  static kernels::BlockClass classify(const void*, const kernels::KeepTile& t) {
    if (t.query_begin / 16 != (t.query_begin + t.query_count - 1) / 16) return kernels::BlockClass::partial;
    if (t.key_begin / 32 != (t.key_begin + t.key_count - 1) / 32) return kernels::BlockClass::partial;
    return keep(t.head, t.query_begin, t.key_begin) ? kernels::BlockClass::full : kernels::BlockClass::empty;
  }
};

template <class T>
struct AttentionResult {
  std::vector<T> out, lse, d_query, d_key, d_value, d_bias, d_relative_bias, d_alibi_slopes, d_relative_key;
};

/// From element n on.
template <class T>
kernels::Operand from_element(const kernels::Operand& x, int64_t n) {
  return {static_cast<const T*>(x.data) + n, x.strides};
}

class AttentionCase {
 public:
  explicit AttentionCase(const CaseOptions& o) : options(o), random_(o.seed) {
    make_problem();
    make_tensors();
  }
  AttentionCase(const AttentionCase&) = delete;
  AttentionCase& operator=(const AttentionCase&) = delete;

  CaseOptions options;
  kernels::AttentionProblem problem;
  kernels::Strides3 query_strides, key_strides, value_strides, out_strides, lse_strides;
  kernels::Strides4 bias_strides;
  std::vector<float> query, key, value, d_out, bias, relative_bias, alibi_slopes, relative_key, d_lse;

  template <class T>
  kernels::ScoreTerms terms() {
    kernels::ScoreTerms t;
    t.softcap = options.softcap;
    if (options.score_function) {
      t.score_function = {nullptr, WavyScore<T>::apply, WavyScore<T>::apply_with_derivative};
    }
    t.bias = pointer<T>(bias);
    t.bias_strides = bias_strides;
    t.relative_bias = pointer<T>(relative_bias);
    t.relative_span = kSpan, t.relative_stride = kSpan, t.relative_center = kSpan / 2;
    t.alibi_slopes = pointer<T>(alibi_slopes);
    const int64_t span = options.relative_key, row = options.head_dim + 3;  // a gap after each row
    t.relative_key = {pointer<T>(relative_key), options.relative_key_shared ? 0 : span * row, row, span,
                      span * 2 / 3};
    return t;
  }
  template <class T>
  kernels::AttentionInput input() {
    return {{pointer<T>(query), query_strides},
            {pointer<T>(key), key_strides},
            {pointer<T>(value), value_strides}};
  }
  /// Operands and results in other memory.
  template <class T>
  kernels::AttentionInput input(const std::vector<T>& q, const std::vector<T>& k,
                                const std::vector<T>& v) const {
    return {{q.data(), query_strides}, {k.data(), key_strides}, {v.data(), value_strides}};
  }
  template <class T, class Accum>
  kernels::AttentionOutput output(std::vector<T>& out, std::vector<Accum>& lse) const {
    return {{out.data(), out_strides}, {lse.data(), lse_strides}};
  }

  /// Outputs poisoned with NaN.
  template <class T>
  AttentionResult<T> poisoned() const {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    AttentionResult<T> r;
    r.out.assign(d_out.size(), nan);
    r.lse.assign(static_cast<size_t>(problem.heads * query_rows_), nan);
    r.d_query.assign(query.size(), nan), r.d_key.assign(key.size(), nan), r.d_value.assign(value.size(), nan);
    r.d_bias.assign(bias.size(), nan), r.d_relative_bias.assign(relative_bias.size(), nan);
    r.d_alibi_slopes.assign(alibi_slopes.size(), nan);
    r.d_relative_key.assign(static_cast<size_t>(options.heads * options.relative_key * options.head_dim),
                            nan);
    return r;
  }
  template <class T>
  kernels::AttentionOutput output(AttentionResult<T>& r) const {
    return output(r.out, r.lse);
  }
  template <class T>
  kernels::AttentionGradient gradient(AttentionResult<T>& r) {
    kernels::AttentionGradient g;
    g.out = {r.out.data(), out_strides}, g.lse = {r.lse.data(), lse_strides};
    g.d_out = {pointer<T>(d_out), out_strides};
    g.d_lse = pointer<T>(d_lse);
    g.d_query = {r.d_query.data(), query_strides}, g.d_key = {r.d_key.data(), key_strides};
    g.d_value = {r.d_value.data(), value_strides};
    g.d_bias = r.d_bias.empty() ? nullptr : r.d_bias.data();
    g.d_relative_bias = r.d_relative_bias.empty() ? nullptr : r.d_relative_bias.data();
    g.d_alibi_slopes = r.d_alibi_slopes.empty() ? nullptr : r.d_alibi_slopes.data();
    g.d_relative_key = r.d_relative_key.empty() ? nullptr : r.d_relative_key.data();
    return g;
  }

  /// By the specification in T.
  template <class T>
  AttentionResult<T> reference(bool backward) {
    AttentionResult<T> r = poisoned<T>();
    kernels::reference_attention_forward<T>(problem, terms<T>(), input<T>(), output(r));
    if (backward) kernels::reference_attention_backward<T>(problem, terms<T>(), input<T>(), gradient(r));
    return r;
  }
  /// By the f32 kernels.
  AttentionResult<float> fused(bool backward) {
    AttentionResult<float> r = poisoned<float>();
    kernels::attention_forward(problem, terms<float>(), input<float>(), output(r));
    if (backward) kernels::attention_backward(problem, terms<float>(), input<float>(), gradient(r));
    return r;
  }

 private:
  static constexpr int64_t kSpan = 33;
  std::mt19937 random_;
  int64_t query_rows_ = 0, key_rows_ = 0;  // per sample, or packed
  std::vector<int64_t> lengths_, query_lengths_, begin_, end_, diagonals_;
  std::vector<kernels::AttentionSequence> sequences_;
  std::vector<uint8_t> keep_;
  std::vector<std::vector<double>> doubles_;

  template <class T>
  const T* pointer(const std::vector<float>& x) {
    if (x.empty()) return nullptr;
    if constexpr (std::is_same_v<T, float>) {
      return x.data();
    } else {
      doubles_.emplace_back(x.begin(), x.end());
      return doubles_.back().data();
    }
  }
  int64_t integer(int64_t low, int64_t high) {  // inclusive
    return high < low ? low : std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  std::vector<float> normal(int64_t n, double std) {
    std::normal_distribution<float> d(0.0f, static_cast<float>(std));
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = d(random_);
    return x;
  }
  kernels::Strides3 strides(int64_t heads, int64_t rows, int64_t dim) const {
    const int64_t batch = problem.sequences ? 0 : heads * rows * dim;
    if (options.layout == Layout::bthd) return {batch, dim, heads * dim};
    return {batch, rows * dim, dim};
  }

  void make_problem() {
    const CaseOptions& o = options;
    auto& p = problem;
    p.batch = o.batch, p.heads = o.heads, p.kv_heads = o.kv_heads, p.queries = o.queries, p.keys = o.keys;
    p.head_dim = o.head_dim, p.value_dim = o.value_dim;
    p.scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(o.head_dim, 1)));
    p.causal = o.causal, p.window_left = o.window_left, p.window_right = o.window_right;
    p.diagonal = o.diagonal == std::numeric_limits<int64_t>::min() ? o.keys - o.queries : o.diagonal;
    p.dropout_p = o.dropout, p.dropout_key = 0x123456789ABCDEFull + o.seed, p.empty_row = o.empty_row;
    query_rows_ = o.queries * o.batch, key_rows_ = o.keys * o.batch;
    for (int64_t b = 0; b < o.batch; ++b) {
      diagonals_.push_back(p.diagonal + integer(-3, 3));
      lengths_.push_back(integer(0, o.keys));
      query_lengths_.push_back(integer(0, o.queries));
      for (int64_t i = 0; i < o.queries; ++i) {
        const int64_t x = integer(0, o.keys), y = integer(0, o.keys);
        begin_.push_back(std::min(x, y)), end_.push_back(std::max(x, y));
      }
    }
    if (o.diagonals) p.diagonals = diagonals_.data();
    if (o.key_lengths) p.key_lengths = lengths_.data();
    if (o.query_lengths) p.query_lengths = query_lengths_.data();
    if (o.intervals) p.key_begin = begin_.data(), p.key_end = end_.data(), p.interval_stride = o.queries;
    if (o.ragged) make_sequences();
    make_keep();
    if (o.mask_function) p.mask_function = {nullptr, StripeMask::fill, StripeMask::classify};
  }
  void make_sequences() {
    int64_t q = 0, k = 0;
    for (int64_t b = 0; b < options.batch; ++b) {
      sequences_.push_back({q, integer(0, options.queries), k, integer(0, options.keys)});
      q += sequences_.back().query_count, k += sequences_.back().key_count;
    }
    problem.sequences = sequences_.data();
    query_rows_ = q, key_rows_ = k;
  }
  void make_keep() {
    const CaseOptions& o = options;
    if (o.keep == Keep::none) return;
    const int64_t plane = o.queries * o.keys;
    auto& s = problem.keep_strides;
    int64_t n = 0;
    if (o.keep == Keep::full) s = {0, plane, o.keys, 1}, n = o.heads * plane;
    if (o.keep == Keep::per_key) s = {o.keys, 0, 0, 1}, n = o.batch * o.keys;
    if (o.keep == Keep::per_sample) s = {plane, 0, o.keys, 1}, n = o.batch * plane;
    // Runs of 0, of 1 and of both, so that all block classes occur.
    int mode = 2;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 64 == 0) mode = static_cast<int>(integer(0, 3));
      keep_.push_back(static_cast<uint8_t>(mode == 0 ? 0 : mode == 1 ? 1 : integer(0, 1)));
    }
    problem.keep = keep_.data();
  }
  void make_tensors() {
    const CaseOptions& o = options;
    const int64_t h = o.heads, hkv = o.kv_heads;
    query = normal(h * query_rows_ * o.head_dim, o.logits);
    key = normal(hkv * key_rows_ * o.head_dim, 1);
    value = normal(hkv * key_rows_ * o.value_dim, 1);
    d_out = normal(h * query_rows_ * o.value_dim, 1);
    const int64_t tq = o.ragged ? query_rows_ : o.queries, tk = o.ragged ? key_rows_ : o.keys;
    query_strides = strides(h, tq, o.head_dim), key_strides = strides(hkv, tk, o.head_dim);
    value_strides = strides(hkv, tk, o.value_dim), out_strides = strides(h, tq, o.value_dim);
    lse_strides = {o.ragged ? 0 : h * tq, tq, 1};
    const int64_t plane = o.queries * o.keys;
    if (o.bias == Bias::full)
      bias = normal(o.batch * h * plane, 1), bias_strides = {h * plane, plane, o.keys, 1};
    if (o.bias == Bias::per_head) bias = normal(h * plane, 1), bias_strides = {0, plane, o.keys, 1};
    if (o.bias == Bias::key_only) bias = normal(o.batch * o.keys, 1), bias_strides = {o.keys, 0, 0, 1};
    if (o.relative_bias) relative_bias = normal(h * kSpan, 1);
    if (o.relative_key) {
      relative_key = normal((o.relative_key_shared ? 1 : h) * o.relative_key * (o.head_dim + 3), 1);
      for (size_t i = 0; i < relative_key.size(); ++i) {
        if (static_cast<int64_t>(i) % (o.head_dim + 3) >= o.head_dim) relative_key[i] = std::nanf("");
      }
    }
    if (o.alibi) {
      for (int64_t i = 0; i < h; ++i) alibi_slopes.push_back(std::exp2(-static_cast<float>(i + 1)));
    }
    if (o.lse_gradient) d_lse = normal(h * query_rows_, 1);
  }
};

/// Largest and root-mean-square distance; infinite where exactly one of the two is not finite, or both
/// differ.
struct Distance {
  double max = 0, rms = 0;
};
template <class A, class B>
Distance distance(const std::vector<A>& a, const std::vector<B>& b) {
  Distance d;
  if (a.size() != b.size()) return {std::numeric_limits<double>::infinity(), 0};
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double e = std::isfinite(x - y) ? std::abs(x - y) : std::numeric_limits<double>::infinity();
    d.max = std::max(d.max, e);
    d.rms += e * e;
  }
  d.rms = std::sqrt(d.rms / static_cast<double>(std::max<size_t>(a.size(), 1)));
  return d;
}
template <class A>
double largest(const std::vector<A>& a) {
  double m = 0;
  for (A x : a) {
    if (std::isfinite(x)) m = std::max(m, std::abs(static_cast<double>(x)));
  }
  return m;
}

}  // namespace multihead::testing
