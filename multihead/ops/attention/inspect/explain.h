// Says which rule a call of attention() follows and how it would run, without running it.
#pragma once

#include <string>
#include <vector>

#include "multihead/ops/attention/options.h"
#include "multihead/ops/attention/score_mod.h"

namespace multihead {

struct AttentionExplanation {
  // The rule.
  std::string mask;                     ///< Mask::to_string()
  std::vector<std::string> mask_notes;  ///< how each part is carried out
  std::string alignment;                ///< at which key position query i is
  std::string empty_row;                ///< what a query without keys gets
  double scale = 0;
  std::string scale_rule;           ///< "1/sqrt(head_dim)" or "given"
  std::vector<std::string> scores;  ///< what happens to a score after the scaling, in order
  double dropout_p = 0;             ///< 0 without a generator
  std::string capture;              ///< stage, heads and rows, or "none"

  // The plan.
  std::string kernel;
  std::string target;  ///< instruction set
  int threads = 1;
  int64_t query_tile = 0, key_block = 0;
  int64_t tasks = 0, key_splits = 1;
  int64_t workspace_bytes = 0;           ///< forward, beyond inputs and outputs
  int64_t backward_workspace_bytes = 0;  ///< backward, beyond gradients
  int64_t output_bytes = 0;              ///< output and log-sum-exp
  int64_t capture_bytes = 0;
  int64_t score_matrix_bytes = 0;  ///< what storing the scores would have taken
  double useful_pairs = 0;         ///< (query, key) pairs that the analytic masks allow
  double computed_pairs = 0;       ///< pairs in blocks that are not skipped
  std::vector<std::string> reasons;

  std::string to_string() const;
};

/// Sizes of a call that has no tensors yet.
struct AttentionShape {
  int64_t batch = 1, heads = 1;
  int64_t kv_heads = 0;  ///< 0: heads
  int64_t queries = 0;
  int64_t keys = 0;  ///< 0: queries
  int64_t head_dim = 0;
  int64_t value_dim = 0;  ///< 0: head_dim
  Dtype dtype = Dtype::f32;
};

/// The rule and the plan of attention(query, key, value, options, score_mod); checks as that does and leaves
/// the generator where it is. Throws what attention() throws.
AttentionExplanation explain(const Tensor& query, const Tensor& key, const Tensor& value,
                             const AttentionOptions& options = {}, const ScoreMod& score_mod = {});

/// The same from sizes, before any memory is taken.
AttentionExplanation plan(const AttentionShape& shape, const AttentionOptions& options = {},
                          const ScoreMod& score_mod = {});

}  // namespace multihead
