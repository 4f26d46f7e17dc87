// multihead eval, for translators.
#pragma once

#include <cstdint>
#include <string>

#include "cli/given_flags.h"
#include "cli/verb.h"
#include "multihead/generate/beam_search.h"

namespace multihead::cli {

struct EvalPairsOptions {
  bool bleu = false, chrf = false;
  BeamOptions search;  ///< the model folder's defaults, overridden by flags
  GivenFlags given;
  std::string weight_dtype = "f32";
  int64_t pairs = 0;   ///< from the start; 0: all
  std::string output;  ///< a file for the translations; empty: none
};

/// Prints the loss on the targets of a two-column file and, if requested, BLEU and chrF2.
int eval_pairs(const CommonOptions& common, const std::string& folder, const std::string& data,
               EvalPairsOptions& options);

}  // namespace multihead::cli
