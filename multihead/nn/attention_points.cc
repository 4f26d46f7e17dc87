// attention() with its scores and pattern open to Points.
#include <algorithm>
#include <cmath>
#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/dropout.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/linear.h"
#include "multihead/ops/shape.h"
#include "multihead/ops/softmax.h"

namespace multihead::nn::detail {
namespace {

// Stands for -inf where a tape records: an edit's backward multiplies what it was shown by gradients of 0.
constexpr double kExcluded = -1e30;

// Weights or scores of a part, from a call that changes nothing.
template <class Run>
Tensor captured(AttentionOptions options, CaptureStage stage, const PointPart& part, Run&& run) {
  AttentionCapture capture;
  capture.stage = stage, capture.heads = part.heads, capture.query_rows = part.rows;
  options.capture = &capture, options.rng = nullptr, options.lse = nullptr;
  run(options);
  return capture.weights;
}

template <class Run>
void keep_weights(const AttentionOptions& options, Run&& run) {
  keep_made("scores",
            [&](const PointPart& part) { return captured(options, CaptureStage::scores, part, run); });
  keep_made("pattern",
            [&](const PointPart& part) { return captured(options, CaptureStage::probabilities, part, run); });
}

// scale · query · keyᵀ of heads [B, T, H, D], keys shared among heads in groups: [B, H, T, Tk].
Tensor products(const Tensor& query, const Tensor& key, double factor) {
  const int64_t b = query.size(0), t = query.size(1), h = query.size(2), d = query.size(3);
  const int64_t kv = key.size(2), keys = key.size(1);
  const Tensor q = reshape(transpose(query, 1, 2), {b, kv, h / kv * t, d});
  return reshape(scale(matmul(q, permute(key, {0, 2, 3, 1})), factor), {b, h, t, keys});
}

// pattern [B, H, T, Tk] · value [B, Tk, Hkv, D] as [B, T, H, D].
Tensor mixed(const Tensor& pattern, const Tensor& value) {
  const int64_t b = pattern.size(0), h = pattern.size(1), t = pattern.size(2), keys = pattern.size(3);
  const int64_t kv = value.size(2);
  const Tensor z = matmul(reshape(pattern, {b, kv, h / kv * t, keys}), transpose(value, 1, 2));
  return transpose(reshape(z, {b, h, t, value.size(3)}), 1, 2);
}

void check_open(const AttentionOptions& options, const ScoreMod& score_mod, bool recording) {
  MH_CHECK(!options.sinks.defined(), ValueError,
           "Points: scores and patterns of attention with sinks cannot be edited; edit z");
  const auto learned = [](const Tensor& term) { return term.defined() && term.requires_grad(); };
  const bool lost = options.softcap != 0 || score_mod || options.relative_key.defined() ||
                    learned(options.bias) || learned(options.alibi_slopes) || learned(options.relative_bias);
  MH_CHECK(!recording || !lost, ValueError,
           "Points: scores and patterns with a softcap, relative_key, score_mod or learned bias cannot be "
           "edited under a tape, since their gradient would be lost; edit z");
}

// The scores after their edits under a tape. Excluded pairs stay excluded.
Tensor edited_scores(const Tensor& scores, const Tensor& given, const PointAxes& axes) {
  const Tensor allowed = Tensor::empty(given.shape(), Dtype::boolean);
  const std::vector<double> values = given.to_vector<double>();
  bool* const flags = allowed.data<bool>();
  std::transform(values.begin(), values.end(), flags, [](double x) { return !std::isinf(x) || x > 0; });
  const auto constant = [&](double x) { return Tensor::full({1}, x, given.dtype()); };
  const Tensor edited = point("scores", where(allowed, scores, constant(kExcluded)), axes);
  const std::vector<double> after = edited.to_vector<double>();
  for (size_t i = 0; i < after.size(); ++i) {
    MH_CHECK(flags[i] || !(after[i] > kExcluded * 1e-10), ValueError,
             "Points: under a tape an edit of scores must leave excluded pairs below ", kExcluded * 1e-10,
             " (it is shown ", kExcluded, " there), got ", after[i],
             "; to allow or weigh pairs, change the mask or edit the pattern");
  }
  return where(allowed, edited, constant(-std::numeric_limits<double>::infinity()));
}

}  // namespace

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options,
              const ScoreMod& score_mod) {
  const auto run = [&](const AttentionOptions& o) { return attention(query, key, value, o, score_mod); };
  if (!looking()) return run(options);
  if (!is_edited("scores") && !is_edited("pattern")) {
    keep_weights(options, run);
    return run(options);
  }
  const bool recording = is_recording({query, key});
  check_open(options, score_mod, recording);
  PointAxes axes = {.rows = 2, .heads = 1};
  axes.row_count = query.size(1);
  axes.only_rows = rows_asked({"scores", "pattern"}, axes.row_count);
  const Tensor given = [&] {
    const NoTape silent;
    return captured(options, CaptureStage::scores, {.rows = axes.only_rows}, run);
  }();
  Tensor scores = given;
  if (recording) {
    // The terms beside the product are constants: masks and biases.
    const Tensor q = axes.only_rows.empty() ? query : take(query, 1, axes.only_rows);
    const double factor = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
    const Tensor product = products(q, key, factor);
    scores = add(product, sub(given, product.detach()));
  }
  scores = Tape::current() ? edited_scores(scores, given, axes) : point("scores", scores, axes);
  const Tensor pattern = point("pattern", softmax(scores), axes);
  const Tensor z = mixed(cast(dropout(pattern, options.dropout_p, options.rng), value.dtype()), value);
  return axes.only_rows.empty() ? z : put(run(options), 1, axes.only_rows, z);
}

Tensor attend_ragged(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& cu_seqlens,
                     const AttentionOptions& options, const ScoreMod& score_mod) {
  const auto run = [&](const AttentionOptions& o) {
    return attention_ragged(query, key, value, cu_seqlens, cu_seqlens, o, score_mod);
  };
  if (looking()) {
    MH_CHECK(!is_edited("scores") && !is_edited("pattern"), ValueError,
             "Points: scores and patterns of an encoder's packed sequences cannot be edited; edit z, or "
             "exclude pairs by a mask");
    keep_weights(options, run);
  }
  return run(options);
}

}  // namespace multihead::nn::detail
