// The best target sentences of an encoder-decoder model, by beam search.
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
  /// A sentence is done when beam_size · patience hypotheses have ended (Kasai et al. 2022) and no open one
  /// can overtake them.
  double patience = 1;
  double length_penalty = 1;  ///< scores are divided by length^length_penalty; 0: plain sums
  double repetition_penalty = 1;
  int64_t no_repeat_ngram = 0;                      ///< n: no n tokens in a row twice; 0: off
  int64_t min_length = 0;                           ///< tokens before the end may come
  int64_t max_length = 256;                         ///< tokens at most, the end not counted
  std::vector<std::vector<int32_t>> suppress = {};  ///< sequences that must not come
  std::vector<std::vector<int32_t>> prefixes =
      {};  ///< per sentence (or empty): tokens the target starts with
  /// Instead of the best hypotheses: the num_hypotheses likeliest tokens behind the prefix, in this order,
  /// each with the best hypothesis that begins with it (the words a translator could have chosen there).
  bool alternatives = false;
  /// sampling: hypotheses are drawn instead of searched (beam_size 1), num_hypotheses times.
  bool sample = false;
  SamplingOptions sampling = {};
  uint64_t seed = 0;
  /// Behind the rules above, the scores of a step are made log-probabilities again.
  bool renormalize = false;
  /// The end that comes because max_length is reached costs nothing (forced_eos_token_id of transformers).
  bool free_forced_end = false;
  /// Asked before every token, by any of the threads; once true, sentences that are not done get no
  /// hypotheses.
  std::function<bool()> should_stop = {};
};

struct Hypothesis {
  std::vector<int32_t> tokens;  ///< without decoder_start_id and eos_id, with the prefix
  double score = 0;             ///< log-probability / length^length_penalty, the end counted
  double log_probability = 0;
};

/// A sentence gives the same hypotheses in any batch and on any number of threads, bit for bit.
///
/// Threads   groups of sentences are searched side by side; few sentences share the products of a step
/// Memory    keys and values of every token that was tried: 2 · decoder_layers · embed_dim floats each
/// Returns   per sentence, num_hypotheses hypotheses, best first (alternatives: likeliest token first); fewer
///           if the options leave no more
/// Throws    ValueError (options; an empty source, or one longer than max_positions; tokens outside the
///           vocabulary)
std::vector<std::vector<Hypothesis>> beam_search(const models::PackedSeq2Seq& model,
                                                 const std::vector<std::vector<int32_t>>& sources,
                                                 const BeamOptions& options = {});

/// Packs the model first, in f32, at the cost of reading and writing its weights once: for more than one
/// call, or int8 weights, keep a PackedSeq2Seq.
inline std::vector<std::vector<Hypothesis>> beam_search(const models::Seq2Seq& model,
                                                        const std::vector<std::vector<int32_t>>& sources,
                                                        const BeamOptions& options = {}) {
  return beam_search(models::PackedSeq2Seq(model), sources, options);
}

}  // namespace multihead
