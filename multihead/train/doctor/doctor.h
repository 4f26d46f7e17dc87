// Model checks for common Transformer bugs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "multihead/models/encoder.h"
#include "multihead/models/language_model.h"
#include "multihead/models/seq2seq.h"

namespace multihead::train {

struct CheckResult {
  std::string name;
  bool passed = false;
  std::string detail;  ///< the deciding figure
  double seconds = 0;
};

struct DoctorOptions {
  int64_t length = 24;  ///< tokens per sequence (at most the context)
  uint64_t seed = 1;
  /// Called after each check.
  std::function<void(const CheckResult&)> on_result = {};
};

/// Runs, on copies of the model:
///   finite              logits and loss are finite
///   causality           a token does not affect earlier logits, bit for bit
///   padding             a row gives the same bits alone, in a batch and with padding
///   cache               token by token and in chunks = all at once, bit for bit
///   threads             gradients have the same bits on 1, 2 and 3 threads
///   gradient            backward agrees with central differences in f64, for every tensor
///   overfit             a few steps of AdamW overfit one small batch
/// The last three train: with packed weights they are left out.
std::vector<CheckResult> check_language_model(const models::LanguageModel& model,
                                              const DoctorOptions& options = {});

/// The same for encoder-decoder models:
///   finite              logits and loss are finite
///   causality           a target token does not affect earlier logits, bit for bit
///   source              every source token affects the logits, padding does not, bit for bit
///   cache               token by token = all at once, bit for bit
///   search              the steps of beam search have the model's logits
///   threads             gradients have the same bits on 1, 2 and 3 threads
///   overfit             a few steps of AdamW overfit one small batch
std::vector<CheckResult> check_translator(const models::Seq2Seq& model, const DoctorOptions& options = {});

/// The same for encoders:
///   finite              features are finite
///   context             every token affects all features of its sequence and none of another
///   batch invariance    a sequence has the same bits alone, in any batch and order
///   threads             gradients have the same bits on 1, 2 and 3 threads (not with packed weights)
std::vector<CheckResult> check_encoder(const models::Encoder& model, const DoctorOptions& options = {});

}  // namespace multihead::train
