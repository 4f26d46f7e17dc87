#include "multihead/ops/attention/bind-inl.h"

#include <cmath>

#include "multihead/core/error.h"

namespace multihead::detail {
namespace {

// True if every element is 0 or 1 and both occur: a mask that lost its way. Stops at the first other number,
// so real biases cost nothing.
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

// A term of the scores of queries of `dtype` in the type of the arithmetic. With 16-bit queries it may have
// their type, too, whose numbers f32 holds exactly.
Tensor in_term_dtype(const std::string& who, const char* name, const Tensor& x, Dtype dtype) {
  const Dtype arithmetic = arithmetic_dtype(dtype);
  if (x.dtype() == dtype && dtype != arithmetic) return x.to(arithmetic);
  MH_CHECK(x.dtype() == arithmetic, DtypeError, who, ": ", name, " must be ", arithmetic,
           dtype == arithmetic ? "" : concat(" or ", dtype), ", got ", x.dtype(),
           x.dtype() == Dtype::boolean ? "; a bool tensor is a mask: keep(tensor)" : "");
  return x;
}

}  // namespace

Dtype arithmetic_dtype(Dtype dtype) {
  return dtype == Dtype::bf16 || dtype == Dtype::f16 ? Dtype::f32 : dtype;
}

uint64_t dropout_key(const RandomStream& stream) {
  const auto words = stream.block(0);
  return uint64_t{words[1]} << 32 | words[0];
}

BoundAttention::BoundAttention(std::string who, const AttentionSizes& sizes, const AttentionOptions& options,
                               const ScoreMod& score_mod, Dtype dtype)
    : who_(std::move(who)), sizes_(sizes), mask_(who_, sizes, options.mask), score_mod_(score_mod) {
  bind_numbers(options);
  mask_.apply(problem_);
  bind_terms(options, dtype);
  if (score_mod) check_index_sizes(who_, sizes, mask_.offsets());
  bind_dropout(options);
}

void BoundAttention::bind_numbers(const AttentionOptions& options) {
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(sizes_.head_dim)));
  MH_CHECK(std::isfinite(scale), ValueError, who_, ": scale must be finite, got ", scale);
  MH_CHECK(std::isfinite(options.softcap) && options.softcap >= 0, ValueError, who_,
           ": softcap must be >= 0 and finite (0 = none), got ", options.softcap);
  MH_CHECK(options.dropout_p >= 0 && options.dropout_p <= 1, ValueError, who_,
           ": dropout_p must be in [0, 1], got ", options.dropout_p);
  problem_.scale = scale;
  problem_.empty_row = options.empty_row;
}

// Last, when nothing can throw any more: it moves the generator.
void BoundAttention::bind_dropout(const AttentionOptions& options) {
  if (options.rng == nullptr || options.dropout_p == 0) return;
  problem_.dropout_p = double{options.dropout_p};
  problem_.dropout_key = dropout_key(options.rng->next());
}

int64_t BoundAttention::relative_center(const AttentionOptions& options, const char* name,
                                        int64_t span) const {
  MH_CHECK(options.relative_center < span, ValueError, who_, ": relative_center must be in [0, ", span,
           "), the span of ", name, ", got ", options.relative_center);
  return options.relative_center < 0 ? (span - 1) / 2 : options.relative_center;
}

void BoundAttention::bind_relative(const AttentionOptions& options, Dtype dtype) {
  const int64_t heads = sizes_.heads;
  if (options.relative_bias.defined()) {
    const Tensor x = in_term_dtype(who_, "relative_bias", options.relative_bias, dtype);
    MH_CHECK(x.rank() == 2 && (x.size(0) == 1 || x.size(0) == heads) && x.size(1) > 0, ShapeError, who_,
             ": relative_bias must be [H=", heads, ", span] or [1, span], got ", x.shape());
    relative_center_ = relative_center(options, "relative_bias", x.size(1));
    tensors_[kRelativeBias] =
        x.as_strided({heads, x.size(1)}, {x.size(0) == 1 ? 0 : x.strides()[0], x.strides()[1]}).contiguous();
  }
  if (options.relative_key.defined()) {
    const Tensor x = in_term_dtype(who_, "relative_key", options.relative_key, dtype);
    const bool fits = x.rank() == 3 && (x.size(0) == 1 || x.size(0) == heads) && x.size(1) > 0 &&
                      x.size(2) == sizes_.head_dim;
    MH_CHECK(fits, ShapeError, who_, ": relative_key must be [H=", heads, ", span, D=", sizes_.head_dim,
             "] or [1, span, D], got ", x.shape());
    relative_key_center_ = relative_center(options, "relative_key", x.size(1));
    tensors_[kRelativeKey] = x.size(2) == 1 || x.strides()[2] == 1 ? x.detach() : x.contiguous();
  }
}

void BoundAttention::bind_terms(const AttentionOptions& options, Dtype dtype) {
  if (options.bias.defined()) {
    const Tensor bias = in_term_dtype(who_, "bias", options.bias, dtype);
    broadcast_strides(who_, "bias", bias, sizes_);
    const bool trained = options.bias.requires_grad();
    MH_CHECK(options.allow_binary_bias || trained || !is_binary(bias), ValueError, who_,
             ": bias holds only zeros and ones, which would be added to the scores; a mask is keep(bias), "
             "converted to bool; else set allow_binary_bias");
    tensors_[kBias] = bias.contiguous();
  }
  if (options.alibi_slopes.defined()) {
    const Tensor x = in_term_dtype(who_, "alibi_slopes", options.alibi_slopes, dtype);
    const bool fits =
        (x.rank() == 1 || (x.rank() == 2 && x.size(0) == sizes_.batch)) && x.size(-1) == sizes_.heads;
    MH_CHECK(fits, ShapeError, who_, ": alibi_slopes must be [H=", sizes_.heads, "] or [B=", sizes_.batch,
             ", H=", sizes_.heads, "], got ", x.shape());
    tensors_[kAlibiSlopes] = x.contiguous();
  }
  bind_relative(options, dtype);
  if (options.sinks.defined()) {
    const Tensor x = in_term_dtype(who_, "sinks", options.sinks, dtype);
    MH_CHECK(x.rank() == 1 && x.size(0) == sizes_.heads, ShapeError, who_,
             ": sinks must be [H=", sizes_.heads, "], got ", x.shape());
    tensors_[kSinks] = x.contiguous();
  }
  for (size_t term = 0; term < kTermCount; ++term) {
    const Tensor& x = options.*kTerms[term];
    if (x.defined()) shapes_[term] = x.shape();
  }
  score_context_.function = score_mod_.function();
  score_context_.offset = mask_.offsets()[0];
  score_context_.offsets = mask_.offsets().size() > 1 ? mask_.offsets().data() : nullptr;
  fill_terms(double{options.softcap}, arithmetic_dtype(dtype));
}

void BoundAttention::fill_terms(double softcap, Dtype dtype) {
  if (score_mod_) terms_.score_function = score_mod_.bind(dtype, &score_context_);
  terms_.softcap = softcap;
  if (const Tensor& x = tensors_[kBias]; x.defined()) {
    terms_.bias = x.raw();
    terms_.bias_strides = broadcast_strides(who_, "bias", x, sizes_);
  }
  if (const Tensor& x = tensors_[kRelativeBias]; x.defined()) {
    terms_.relative_bias = x.raw();
    terms_.relative_stride = terms_.relative_span = x.size(1);
    terms_.relative_center = relative_center_;
  }
  if (const Tensor& x = tensors_[kRelativeKey]; x.defined()) {
    terms_.relative_key = {x.raw(), x.size(0) == 1 ? 0 : x.strides()[0], x.strides()[1], x.size(1),
                           relative_key_center_};
  }
  if (const Tensor& x = tensors_[kAlibiSlopes]; x.defined()) {
    terms_.alibi_slopes = x.raw();
    terms_.alibi_batch_stride = x.rank() == 2 ? x.size(1) : 0;
  }
}

}  // namespace multihead::detail
