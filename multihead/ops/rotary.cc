#include "multihead/ops/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/elementwise/rotary.h"
#include "multihead/ops/dispatch-inl.h"
#include "multihead/ops/narrow-inl.h"
#include "multihead/ops/shape.h"

namespace multihead {
namespace {

struct Sizes {
  int64_t batch, tokens, heads, head_dim, rotated_heads, pairs;
};

// One token: y = R(±angle) x for the rotated heads. Backward is the rotation by the opposite angle.
template <class T, class Element>
void rotate_token(const Element* x, int64_t head_stride, Element* y, const float* cos, const float* sin,
                  T sign, const Sizes& sizes, RotaryLayout layout) {
  if constexpr (std::is_same_v<Element, float>) {
    if (layout == RotaryLayout::halves) {
      kernels::rotate_halves(x, y, cos, sin,
                             {sizes.rotated_heads, sizes.pairs, head_stride, sizes.head_dim, sign});
      for (int64_t head = 0; head < sizes.heads; ++head, x += head_stride, y += sizes.head_dim) {
        const int64_t rotated = head < sizes.rotated_heads ? 2 * sizes.pairs : 0;
        std::copy(x + rotated, x + sizes.head_dim, y + rotated);
      }
      return;
    }
  }
  const int64_t first = layout == RotaryLayout::halves ? 1 : 2;
  const int64_t second = layout == RotaryLayout::halves ? sizes.pairs : 1;
  for (int64_t head = 0; head < sizes.heads; ++head, x += head_stride, y += sizes.head_dim) {
    int64_t copied = 0;
    if (head < sizes.rotated_heads) {
      for (int64_t i = 0; i < sizes.pairs; ++i) {
        const T a = static_cast<T>(x[i * first]), b = static_cast<T>(x[i * first + second]);
        const T c = static_cast<T>(cos[i]), s = sign * static_cast<T>(sin[i]);
        y[i * first] = static_cast<Element>(a * c - b * s);
        y[i * first + second] = static_cast<Element>(b * c + a * s);
      }
      copied = 2 * sizes.pairs;
    }
    for (int64_t i = copied; i < sizes.head_dim; ++i) y[i] = x[i];
  }
}

// In arithmetic of type T.
template <class Element, class T>
void rotate(const Tensor& x, const Tensor& y, const RotaryTable& table, T sign, const Sizes& sizes) {
  const Element* source = x.data<Element>();
  Element* target = y.data<Element>();
  const int64_t table_batch_stride = table.cos.size(0) == 1 ? 0 : sizes.tokens * sizes.pairs;
  const float* cosines = table.cos.data<float>();
  const float* sines = table.sin.data<float>();
  parallel_ranges(sizes.batch * sizes.tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / sizes.tokens, t = row % sizes.tokens;
      const int64_t angle = b * table_batch_stride + t * sizes.pairs;
      rotate_token(source + b * x.strides()[0] + t * x.strides()[1], x.strides()[2],
                   target + row * sizes.heads * sizes.head_dim, cosines + angle, sines + angle, sign, sizes,
                   table.layout);
    }
  });
}

Tensor rotated(const Tensor& x, const RotaryTable& table, double sign, const Sizes& sizes) {
  const Tensor source = x.strides()[3] == 1 || x.size(3) == 1 ? x.detach() : x.contiguous();
  Tensor y = empty_like(x);
  if (x.dtype() == Dtype::f64) {
    rotate<double>(source, y, table, sign, sizes);
  } else {
    const auto unit = static_cast<float>(sign);
    x.dtype() == Dtype::bf16 ? rotate<BFloat16>(source, y, table, unit, sizes)
                             : rotate<float>(source, y, table, unit, sizes);
  }
  return y;
}

constexpr double kTurn = 2 * std::numbers::pi;

// Waves that fit the first training's context often enough keep their frequency.
double llama3_frequency(double frequency, const RotaryScaling& s) {
  const double waves = static_cast<double>(s.original_context) * frequency / kTurn;
  if (waves >= s.high_freq_factor) return frequency;
  if (waves <= s.low_freq_factor) return frequency / s.factor;
  const double kept = (waves - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - kept) * frequency / s.factor + kept * frequency;
}

// The (fractional) pair of dimensions that turns `rotations` times in the first training's context.
double yarn_dimension(double rotations, int64_t rotary_dim, double base, const RotaryScaling& s) {
  return static_cast<double>(rotary_dim) *
         std::log(static_cast<double>(s.original_context) / (rotations * kTurn)) / (2 * std::log(base));
}

void scale_yarn(std::vector<double>& frequencies, int64_t rotary_dim, double base, const RotaryScaling& s) {
  double low = yarn_dimension(s.beta_fast, rotary_dim, base, s);
  double high = yarn_dimension(s.beta_slow, rotary_dim, base, s);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(rotary_dim - 1));
  if (low == high) high += 0.001;
  for (size_t k = 0; k < frequencies.size(); ++k) {
    const double divided = std::clamp((static_cast<double>(k) - low) / (high - low), 0.0, 1.0);
    frequencies[k] *= divided / s.factor + (1 - divided);
  }
}

}  // namespace

void check(const RotaryScaling& s) {
  using Kind = RotaryScaling::Kind;
  MH_CHECK(s.kind != Kind::none || s.factor == 1, ValueError, "rotary scaling: factor ", s.factor,
           " needs a kind: linear, llama3 or yarn");
  if (s.kind == Kind::none) return;
  const auto finite = [](const char* name, double value, double least, bool open) {
    MH_CHECK(std::isfinite(value) && (open ? value > least : value >= least), ValueError,
             "rotary scaling: ", name, " must be ", open ? "> " : ">= ", least, " and finite, got ", value);
  };
  finite("factor", s.factor, 1, false);
  if (s.kind == Kind::linear) return;
  MH_CHECK(s.original_context > 0, ValueError, "rotary scaling: original_context must be positive, got ",
           s.original_context);
  if (s.kind == Kind::llama3) {
    finite("low_freq_factor", s.low_freq_factor, 0, true);
    finite("high_freq_factor", s.high_freq_factor, s.low_freq_factor, true);
  } else {
    finite("beta_slow", s.beta_slow, 0, true);
    finite("beta_fast", s.beta_fast, s.beta_slow, true);
    finite("attention_factor", s.attention_factor, 0, false);
  }
}

double rotary_amplitude(const RotaryScaling& s) {
  if (s.kind != RotaryScaling::Kind::yarn) return 1;
  return s.attention_factor > 0 ? s.attention_factor : 0.1 * std::log(s.factor) + 1;
}

std::vector<double> rotary_frequencies(int64_t rotary_dim, double base, const RotaryScaling& scaling) {
  using Kind = RotaryScaling::Kind;
  check(scaling);
  std::vector<double> frequencies = rotary_frequencies(rotary_dim, base);
  if (scaling.kind == Kind::linear) {
    for (double& frequency : frequencies) frequency /= scaling.factor;
  } else if (scaling.kind == Kind::llama3) {
    for (double& frequency : frequencies) frequency = llama3_frequency(frequency, scaling);
  } else if (scaling.kind == Kind::yarn) {
    MH_CHECK(base > 1, ValueError, "rotary scaling: yarn needs a base above 1, got ", base);
    scale_yarn(frequencies, rotary_dim, base, scaling);
  }
  return frequencies;
}

std::vector<double> rotary_frequencies(int64_t rotary_dim, double base) {
  MH_CHECK(rotary_dim > 0 && rotary_dim % 2 == 0 && rotary_dim <= 1 << 24, ValueError,
           "rotary: the rotated size must be positive, even and at most 2^24, got ", rotary_dim);
  MH_CHECK(base > 0 && std::isfinite(base), ValueError, "rotary: base must be positive, got ", base);
  std::vector<double> frequencies;
  for (int64_t k = 0; k < rotary_dim / 2; ++k) {
    frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(k) / static_cast<double>(rotary_dim)));
  }
  return frequencies;
}

RotaryTable rotary_table(int64_t length, const std::vector<int64_t>& starts,
                         const std::vector<double>& frequencies, RotaryLayout layout, double amplitude) {
  MH_CHECK(!frequencies.empty(), ValueError, "rotary_table: there are no frequencies");
  MH_CHECK(std::isfinite(amplitude), ValueError, "rotary_table: amplitude must be finite, got ", amplitude);
  const int64_t rows = static_cast<int64_t>(starts.size()), pairs = static_cast<int64_t>(frequencies.size());
  RotaryTable table{Tensor::empty({rows, length, pairs}), Tensor::empty({rows, length, pairs}), layout};
  float* cos = table.cos.data<float>();
  float* sin = table.sin.data<float>();
  parallel_ranges(rows * length, 32, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto position = static_cast<double>(starts[static_cast<size_t>(row / length)] + row % length);
      for (int64_t k = 0; k < pairs; ++k) {
        const double angle = position * frequencies[static_cast<size_t>(k)];
        cos[row * pairs + k] = static_cast<float>(amplitude * std::cos(angle));
        sin[row * pairs + k] = static_cast<float>(amplitude * std::sin(angle));
      }
    }
  });
  return table;
}

void detail::rotate_in_place(float* x, const float* cos, const float* sin, const HeadRotation& r) {
  rotate_token(x, r.head_dim, x, cos, sin, 1.0f, {1, 1, r.heads, r.head_dim, r.heads, r.pairs}, r.layout);
}

Tensor rotary(const Tensor& x, const RotaryTable& table, int64_t heads) {
  if (x.dtype() == Dtype::f16) return cast(rotary(detail::widened(x), table, heads), Dtype::f16);
  detail::check_real_or_bf16("rotary", "x", x);
  MH_CHECK(x.rank() == 4, ShapeError, "rotary: x must be [B, T, N, D], got ", x.shape());
  MH_CHECK(heads >= -1, ValueError, "rotary: heads must be a number of them or -1, all, got ", heads);
  const Sizes sizes = {x.size(0),         x.size(1), x.size(2), x.size(3), heads < 0 ? x.size(2) : heads,
                       table.cos.size(-1)};
  const Shape one = {1, sizes.tokens, sizes.pairs}, each = {sizes.batch, sizes.tokens, sizes.pairs};
  MH_CHECK((table.cos.shape() == one || table.cos.shape() == each) && table.sin.shape() == table.cos.shape(),
           ShapeError, "rotary: cos and sin must be ", one, " or ", each, " for x ", x.shape(), ", got ",
           table.cos.shape(), " and ", table.sin.shape());
  MH_CHECK(2 * sizes.pairs <= sizes.head_dim && sizes.rotated_heads <= sizes.heads, ShapeError,
           "rotary: ", 2 * sizes.pairs, " rotated dimensions of ", sizes.rotated_heads,
           " heads do not fit x ", x.shape());
  return record({x}, rotated(x, table, 1, sizes), [table, sizes](const Tensor& dy) -> Gradients {
    return {rotated(dy.contiguous(), table, -1, sizes)};
  });
}

}  // namespace multihead
