// A complete encoder-decoder run: from sentence pairs to tokenizers, a trained model and its metrics.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "multihead/text/tokenizer/tokenizer.h"
#include "multihead/train/data/pairs.h"
#include "multihead/train/tasks/model_task.h"
#include "multihead/train/tasks/seq2seq_settings.h"

namespace multihead::train {

/// The source tokenizer is saved beside tokenizer.json (the target's) if the two differ.
constexpr const char* kSourceTokenizerFile = "source_tokenizer.json";

struct PairTokenizers {
  text::Tokenizer source, target;
  bool shared = true;  ///< one tokenizer for both
};
/// Reads the tokenizers of a model folder. Throws IoError, FormatError.
PairTokenizers load_pair_tokenizers(const std::string& folder);
struct LoadedTranslator {
  models::Seq2Seq model;
  PairTokenizers tokenizers;
};
/// A model with its tokenizers. Throws FormatError also if one has ids outside the model's vocabulary.
LoadedTranslator load_translator(const std::string& folder);
/// The tokenizers' files in it, by name.
std::map<std::string, std::string> pair_tokenizer_files(const PairTokenizers& tokenizers);

/// Pairs as tokens, ready for training.
struct Seq2SeqData {
  PairTokenizers tokenizers;
  PairTokens special;
  std::vector<TokenPair> training, validation;
  int64_t left_out = 0;             ///< training pairs longer than settings.max_tokens
  int64_t validation_left_out = 0;  ///< validation pairs
  DataSums sums = {};
  std::string shared = {};  ///< a warning of pairs on both sides of the split
};

/// Trains tokenizers unless given, and encodes the pairs. Validation pairs longer than max_tokens are skipped
/// too. Throws ValueError if no training pair remains, or none of the validation pairs.
Seq2SeqData prepare_seq2seq_data(const text::ParallelText& training, const text::ParallelText& validation,
                                 const Seq2SeqSettings& settings, const PairTokenizers* tokenizers = nullptr);

/// Cross-entropy on the targets in nats per token, the end token included.
struct PairLoss {
  double nats = 0;
  int64_t tokens = 0;
  double loss() const { return nats / static_cast<double>(tokens); }
};
Json to_json(const PairLoss& loss);
PairLoss evaluate(const models::Seq2Seq& model, const std::vector<TokenPair>& pairs,
                  int64_t batch_tokens = 4096, const Sharing& sharing = {});

/// The model of a folder, to be trained on; see RunRequest::init. Throws IoError, FormatError.
void start_from(Seq2SeqSettings& settings, const std::string& init);

struct Seq2SeqSummary : ScoredSummary<PairLoss> {
  int64_t pairs = 0, left_out = 0;
  Json counts() const { return Json::object({{"pairs", pairs}, {"pairs_left_out", left_out}}); }
};

/// The training task of an encoder-decoder model. Weights are saved in Hugging Face layout.
class Seq2SeqTask : public ModelTask<Seq2SeqSettings, models::Seq2Seq, PairLoss> {
 public:
  using Data = Seq2SeqData;
  using Summary = Seq2SeqSummary;
  using Texts = Files<text::ParallelText>;
  /// `data` must outlive the task.
  Seq2SeqTask(const Seq2SeqSettings& settings, const Seq2SeqData& data);

  static const Kind& kind();
  static Seq2SeqSettings preset(const std::string& name) { return seq2seq_settings(name); }
  static Texts read(const Run& run) { return read_files(run, text::read_pairs); }
  static Data prepare(const Run& run, const RunFolder* folder, const Texts& texts);
  static int64_t pass(const Seq2SeqSettings& s, const Data& data) {
    return PairBatches(data.training, {.batch_tokens = s.batch_tokens, .bucket = s.bucket})
        .batches_per_epoch();
  }
  static Seq2SeqTask make(const Run& run, const Data& data);
  static models::Seq2Seq load_init(const std::string& init) { return models::load_seq2seq(init); }

  Loss loss(int64_t index) override;
  double targets(int64_t index) const override;
  std::optional<PairLoss> score(int64_t most, const Sharing& sharing = {}) const override;
  void save(io::CheckpointContents& contents) override;
  std::vector<std::string> warnings() const;
  std::vector<std::string> notes() const;
  void describe(Seq2SeqSummary& summary) const;
  bool finish(const Run& run);
  bool keeps_best() const { return settings_.average == 1; }

 private:
  const Seq2SeqData& data_;
  PairBatches batches_;
  std::string defaults_;  // generation_config.json, of the leader
};

/// The mean of the weights of these checkpoints, in f64. Throws FormatError if they belong to another model.
void average_checkpoints(models::Seq2Seq& model, const std::vector<std::string>& paths);

/// `data` and `valid` are tables of sources and targets (text::read_pairs); a tokenizer may be a model
/// folder with two.
using Seq2SeqRun = RunOf<Seq2SeqSettings>;
/// See train_task().
Seq2SeqSummary train_seq2seq(const Seq2SeqRun& run);

}  // namespace multihead::train
