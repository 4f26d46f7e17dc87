// A complete tagger run: an encoder of a folder, a head that labels every token of a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "multihead/text/corpus/spans.h"
#include "multihead/train/tasks/encoder_parts.h"
#include "multihead/train/tasks/model_task.h"

namespace multihead::train {

struct TaggerSettings : EncoderSettings {
  int64_t eval_texts = 0;  ///< validation texts per evaluation, evenly spread; 0: all. The last takes all
};
std::vector<Field> fields(TaggerSettings& settings);
/// Throws ValueError naming the first invalid setting.
void check(const TaggerSettings& settings);

/// Texts as tokens, and what each token is: a number of TaggerData::names, or -100 for the template's.
struct TaggedTexts {
  Encodings texts;
  std::vector<std::vector<int64_t>> labels;
  std::vector<int64_t> entities = {};  ///< of each text, those that no token stands for included
};

struct TaggerData {
  text::Tokenizer tokenizer;
  std::vector<std::string> names = {};  ///< "O", "B-X", "I-X", …
  TaggedTexts training = {}, validation = {};
  DataSums sums = {};
  std::vector<std::string> notes = {}, warnings = {};
};
/// The first token of an entity X is B-X, its others are I-X, tokens outside are O; a token that reaches into an
/// entity belongs to it. The names are those of `known`, an encoder with such a head, if it knows them all. Throws
/// FormatError (entities that overlap, none at all, one of the validation data that the training data lacks).
TaggerData prepare_tagger_data(const std::vector<text::SpannedText>& training,
                               const std::vector<text::SpannedText>& validation,
                               const text::Tokenizer& tokenizer, const TaggerSettings& settings);

/// How well entities are found: one is right if its tokens and its label are. One that no token stands for, such as
/// one behind max_length, is not found.
struct EntityScore {
  double nats = 0;  ///< the losses' sum
  int64_t tokens = 0, texts = 0, entities = 0;
  double precision = 0, recall = 0, f1 = 0;
  double loss() const { return nats / static_cast<double>(tokens); }
};
Json to_json(const EntityScore& score);

struct TaggerSummary : ScoredSummary<EntityScore> {
  int64_t texts = 0;
  std::vector<std::string> labels;
  Json counts() const;
};

/// The training task of a tagger: the cross-entropy of each token's label.
class TaggerTask : public ModelTask<TaggerSettings, models::Encoder, EntityScore> {
 public:
  using Data = TaggerData;
  using Summary = TaggerSummary;
  /// `data` must outlive the task.
  TaggerTask(const TaggerSettings& settings, const TaggerData& data, const std::string& init);

  static const Kind& kind();
  static TaggerSettings preset(const std::string&) { return {}; }
  static Data read(const Run& run);
  static int64_t pass(const TaggerSettings& s, const Data& data) {
    return (std::ssize(data.training.texts) + s.batch - 1) / s.batch;
  }
  static TaggerTask make(const Run& run, const Data& data) { return {run.settings, data, run.init}; }

  Loss loss(int64_t index) override;
  double targets(int64_t index) const override;
  std::optional<EntityScore> score(int64_t most, const Sharing& sharing = {}) const override;
  void save(io::CheckpointContents& contents) override;
  void describe(TaggerSummary& summary) const;
  std::vector<std::string> notes() const { return data_.notes; }
  std::vector<std::string> warnings() const { return data_.warnings; }

 private:
  std::vector<int64_t> rows_of(int64_t index) const;

  const TaggerData& data_;
  std::string init_;
};

/// `data` and `valid` are files of texts with entities (text/corpus/spans.h).
using TaggerRun = RunOf<TaggerSettings>;
/// See train_task(). TokenClassifier::load() reads the result.
TaggerSummary train_tagger(const TaggerRun& run);

}  // namespace multihead::train
