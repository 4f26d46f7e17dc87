// Beam search for encoder-decoder models.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "multihead/generate/sampling.h"
#include "multihead/models/packed_seq2seq.h"

namespace multihead {

struct BeamOptions {
  int64_t beam_size = 4;       ///< 1: greedy
  int64_t num_hypotheses = 1;  ///< results per sentence, best first; at most beam_size · patience
  /// A sentence is done when beam_size · patience hypotheses are finished (Kasai et al. 2022) and no open one
  /// can overtake them.
  double patience = 1;
  double length_penalty = 1;  ///< divides scores by length^length_penalty; 0: plain sums
  /// > 1 penalises tokens already present, the decoder's start token among them; with one beam and in samples on their
  /// logits
  double repetition_penalty = 1;
  int64_t no_repeat_ngram = 0;  ///< n: no n-gram occurs twice, the start token counted; 0: off
  int64_t min_length = 0;       ///< minimum tokens before the end
  int64_t max_length = 256;     ///< maximum tokens, not counting the end; max_positions - 1 at most
  std::vector<std::vector<int32_t>> suppress = {};  ///< forbidden sequences
  std::vector<std::vector<int32_t>> prefixes =
      {};  ///< per sentence (or empty): tokens the target starts with
  /// Instead of the best hypotheses: the num_hypotheses most probable next tokens after the prefix, in order,
  /// each with its best hypothesis.
  bool alternatives = false;
  /// Samples num_hypotheses hypotheses instead of searching (beam_size 1).
  bool sample = false;
  SamplingOptions sampling = {};
  uint64_t seed = 0;
  /// Renormalises a step's scores to log-probabilities after the rules above.
  bool renormalize = false;
  /// Ends a sentence as soon as beam_size · patience hypotheses have ended, whatever may still overtake them
  /// (early_stopping of transformers).
  bool stop_early = false;
  /// The first token of every target, before its prefix, which costs nothing (forced_bos_token_id of
  /// transformers).
  std::optional<int32_t> first_token = {};
  /// The end forced by max_length costs nothing (forced_eos_token_id of transformers).
  bool free_forced_end = false;
  /// Called before every token, on any thread; once true, unfinished sentences get no hypotheses.
  std::function<bool()> should_stop = {};
};

struct Hypothesis {
  std::vector<int32_t> tokens;  ///< without decoder_start_id and eos_id, with the prefix
  double score = 0;             ///< log-probability / length^length_penalty, counting the end
  double log_probability = 0;
};

/// A sentence's hypotheses are bitwise identical in any batch and on any number of threads.
///
/// Threads   groups of sentences are searched in parallel; few sentences parallelise the products of a step
/// Memory    keys and values of every expanded token: 2 · decoder_layers · embed_dim floats each
/// Returns   per sentence, num_hypotheses hypotheses, best first (alternatives: most probable token first);
///           fewer if the options leave no more
/// Throws    ValueError (options; an empty source, or one longer than max_positions; tokens outside the
///           vocabulary)
std::vector<std::vector<Hypothesis>> beam_search(const models::PackedSeq2Seq& model,
                                                 const std::vector<std::vector<int32_t>>& sources,
                                                 const BeamOptions& options = {});

/// Packs the model first, in f32, which reads and writes its weights once: for repeated calls or int8
/// weights, keep a PackedSeq2Seq.
inline std::vector<std::vector<Hypothesis>> beam_search(const models::Seq2Seq& model,
                                                        const std::vector<std::vector<int32_t>>& sources,
                                                        const BeamOptions& options = {}) {
  return beam_search(models::PackedSeq2Seq(model), sources, options);
}

}  // namespace multihead
