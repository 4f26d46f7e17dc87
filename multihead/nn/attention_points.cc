// attention() with its scores and pattern open to Points.
#include <limits>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/nn/points-inl.h"
#include "multihead/ops/attention/check-inl.h"
#include "multihead/ops/attention/composed-inl.h"
#include "multihead/ops/elementwise.h"
#include "multihead/ops/shape.h"

namespace multihead::nn::detail {
namespace {

using multihead::detail::arithmetic_dtype;
using multihead::detail::check_attention;
using multihead::detail::Composition;

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

// The scores after their edits. Under a tape an edit is shown a finite number for excluded pairs, which stay
// excluded.
Tensor edited_scores(const Composition& call, const PointAxes& axes) {
  const Tensor scores = call.scores();
  if (Tape::current() == nullptr) return point("scores", scores, axes);
  const auto constant = [&](double x) { return Tensor::full({1}, x, scores.dtype()); };
  const Tensor edited = point("scores", where(call.allowed(), scores, constant(kExcluded)), axes);
  const std::vector<double> after = edited.to_vector<double>();
  for (size_t i = 0; i < after.size(); ++i) {
    MH_CHECK(call.allowed().data<bool>()[i] || !(after[i] > kExcluded * 1e-10), ValueError,
             "Points: under a tape an edit of scores must leave excluded pairs below ", kExcluded * 1e-10,
             " (it is shown ", kExcluded, " there), got ", after[i],
             "; to allow or weigh pairs, change the mask or edit the pattern");
  }
  return where(call.allowed(), edited, constant(-std::numeric_limits<double>::infinity()));
}

// attend() by plain ops, for the edits of its scores and pattern.
template <class Run>
Tensor attend_edited(const Tensor& query, const Tensor& key, const Tensor& value,
                     const AttentionOptions& options, const ScoreMod& score_mod, const Run& run) {
  MH_CHECK(options.capture == nullptr && options.lse == nullptr, ValueError,
           "Points: attention whose scores or pattern are edited has no capture and no lse; keep the points "
           "\"scores\" or \"pattern\"");
  PointAxes axes = {.rows = 2, .heads = 1};
  axes.row_count = query.size(1);
  axes.only_rows = rows_asked({"scores", "pattern"}, axes.row_count);
  const bool whole = axes.only_rows.empty();
  AttentionOptions own = options;
  Rng rng(0);
  if (!whole && options.rng != nullptr) {  // the same dropout as that of the other rows
    rng = *options.rng;
    own.rng = &rng;
  }
  const Tensor rows = whole ? query : take(query, 1, axes.only_rows);
  const Composition call("attention", check_attention("attention", query, key, value, Layout::bthd),
                         {transpose(rows, 1, 2), transpose(key, 1, 2), transpose(value, 1, 2)}, own,
                         score_mod, arithmetic_dtype(query.dtype()), axes.only_rows);
  Composition::Softmax softmax = call.softmax(edited_scores(call, axes));
  softmax.probabilities = point("pattern", softmax.probabilities, axes);
  const Tensor z = transpose(cast(call.output(softmax), query.dtype()), 1, 2);
  return whole ? z : put(run(options), 1, axes.only_rows, z);
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
  return attend_edited(query, key, value, options, score_mod, run);
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
