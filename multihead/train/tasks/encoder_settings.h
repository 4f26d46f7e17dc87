// Training settings of encoders: classifiers, embedders, masked language models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/models/encoder.h"
#include "multihead/train/settings.h"

namespace multihead::train {

/// Shared by them. The defaults are those of fine-tuning.
struct EncoderSettings : TrainingSettings {
  EncoderSettings();
  models::EncoderConfig model = {};  ///< that of RunRequest::init but for dropout
  int64_t batch = 32;                ///< texts (or pairs) per micro-batch
  int64_t max_length = 0;            ///< tokens that are read of a text; 0: the model's limit
};

struct ClassifierSettings : EncoderSettings {
  bool freeze = false;           ///< trains only what the folder of the encoder does not hold
  bool regression = false;       ///< labels are numbers
  bool multi_label = false;      ///< a text has any number of labels
  bool head_only = false;        ///< linear regression on the folder's own vectors, see train_head()
  double head_c = 0;             ///< of head_only, see LinearHeadOptions::c; 0: by cross-validation
  bool balanced = false;         ///< labels count for as much as each other, however many texts have them
  bool labels_as_names = false;  ///< labels that are numbers with a fraction are names
  int64_t eval_texts = 0;  ///< validation texts per evaluation, evenly spread; 0: all. The last takes all
};

std::vector<Field> fields(ClassifierSettings& settings);
models::ProblemType problem_of(const ClassifierSettings& settings);
/// Throws ValueError naming the first invalid setting.
void check(const ClassifierSettings& settings);

struct EmbedderSettings : EncoderSettings {
  double temperature = 0.05;    ///< cosines are divided by it
  bool symmetric = false;       ///< also rank queries for each document
  int64_t chunk = 64;           ///< texts whose activations are held at a time; 0: all of a batch
  std::string matryoshka = {};  ///< numbers of first columns that are vectors, too, between commas
  int64_t eval_pairs = 1000;  ///< validation pairs per evaluation, evenly spread; 0: all. The last takes all
};

std::vector<Field> fields(EmbedderSettings& settings);
/// Throws ValueError for what are no sizes.
std::vector<int64_t> matryoshka_sizes(const EmbedderSettings& settings);
void check(const EmbedderSettings& settings);

struct MaskedLmSettings : EncoderSettings {
  double mask_share = 0.15;       ///< of a window's tokens
  bool whole_words = true;        ///< hides all tokens of a word or none
  int64_t vocab_size = 4096;      ///< of a BPE tokenizer to be trained
  double validation_share = 0.1;  ///< of the text
  int64_t eval_windows = 256;     ///< of the validation text, evenly spread; 0: all. The last takes all
};

/// "tiny" (4 layers of 128), "small" (6 layers of 384, the shape of MiniLM), "base" (12 layers of 768, BERT).
/// Throws ValueError for other names.
MaskedLmSettings masked_lm_settings(const std::string& preset);
std::vector<std::string> masked_lm_presets();
std::vector<Field> fields(MaskedLmSettings& settings);
void check(const MaskedLmSettings& settings);

/// The model, resolved; where its vocabulary is not known yet, with the smallest there can be.
models::EncoderConfig least_model(const EncoderSettings& settings);
/// The shared parts of the above.
void add_encoder_fields(std::vector<Field>& list, EncoderSettings& settings);
void check_encoder(const EncoderSettings& settings, const std::vector<Field>& fields);
/// Tokens that are read of a text.
int64_t length_of(const EncoderSettings& settings);

}  // namespace multihead::train
