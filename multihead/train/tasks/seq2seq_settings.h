// Training settings of encoder-decoder models, with presets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/models/seq2seq.h"
#include "multihead/train/settings.h"

namespace multihead::train {

struct Seq2SeqSettings : TrainingSettings {
  models::Seq2SeqConfig model = {};  ///< sizes of vocabularies and special tokens come from the tokenizers

  TokenizerChoice tokenizer = TokenizerChoice::bpe;
  int64_t vocab_size = 4000;      ///< of each BPE tokenizer to be trained
  bool shared_vocabulary = true;  ///< one tokenizer for both sides; model.share_embeddings follows
  int64_t max_tokens = 128;       ///< training pairs with a longer side are skipped
  int64_t batch_tokens = 2048;    ///< per micro-batch: rows · tokens of the longer side
  int64_t bucket = 4;             ///< lengths are rounded up to a multiple of it when pairs are grouped
  int64_t eval_pairs = 512;       ///< of the validation pairs, per evaluation; 0: all. The last takes all
  int64_t average = 1;            ///< of the last checkpoints, unless the best has a lower loss; 1: the best
};

/// "tiny" (2+2 layers of 128), "small" (4+4 layers of 256), "base" (6+6 layers of 512, as Vaswani et al.
/// 2017). Throws ValueError for other names.
Seq2SeqSettings seq2seq_settings(const std::string& preset);
std::vector<std::string> seq2seq_presets();

/// The model, resolved; where its vocabularies are not known yet, with the smallest there can be.
models::Seq2SeqConfig least_model(const Seq2SeqSettings& settings);
/// References into `settings`, which must outlive them.
std::vector<Field> fields(Seq2SeqSettings& settings);
/// Throws ValueError naming the first invalid setting.
void check(const Seq2SeqSettings& settings);

}  // namespace multihead::train
