// BLEU and chrF, with sacrebleu's figures.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace multihead::text {

/// Corpus BLEU in [0, 100]: brevity penalty · geometric mean of the precisions of 1- to 4-grams of words.
struct BleuScore {
  double score = 0;
  std::array<double, 4> precisions = {};  ///< in percent
  std::array<int64_t, 4> correct = {}, total = {};
  double brevity_penalty = 0;
  int64_t hypothesis_words = 0, reference_words = 0;
};

/// One reference per hypothesis, tokenizer 13a, cased, exponential smoothing of zero counts: sacrebleu's
/// defaults.
///
/// Throws    ValueError unless both have the same, positive number of sentences
/// Source    Papineni et al. 2002; Post 2018
BleuScore bleu(std::span<const std::string> hypotheses, std::span<const std::string> references);

/// Corpus chrF2 in [0, 100]: F-score (recall counts twice as much) of 1- to 6-grams of characters without
/// spaces.
///
/// Throws    ValueError unless both have the same, positive number of sentences
/// Source    Popović 2015
double chrf(std::span<const std::string> hypotheses, std::span<const std::string> references);

/// Signatures in sacrebleu's notation, with our version.
std::string bleu_signature();
std::string chrf_signature();

/// Tokenizes as mteval-v13a.
std::vector<std::string> tokenize_13a(std::string_view line);

}  // namespace multihead::text
