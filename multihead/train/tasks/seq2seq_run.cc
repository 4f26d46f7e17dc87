#include "multihead/train/tasks/seq2seq_run.h"

#include <algorithm>
#include <filesystem>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/generate/defaults.h"
#include "multihead/io/file_set.h"
#include "multihead/models/files/adapter.h"
#include "multihead/train/data/rows.h"

namespace multihead::train {
namespace {

constexpr const char* kPad = "<pad>";
constexpr const char* kEos = "</s>";
constexpr const char* kUnk = "<unk>";

std::vector<std::string_view> views(const std::vector<std::string>& lines) {
  return {lines.begin(), lines.end()};
}

// With a template that ends every sentence, as Marian's: whoever reads tokenizer.json needs to know of the end.
text::Tokenizer ending_sentences(const text::Tokenizer& tokenizer) {
  const auto word = [](const char* kind, const char* id, int64_t type) {
    return Json::object({{kind, Json::object({{"id", id}, {"type_id", type}})}});
  };
  const Json first = word("Sequence", "A", 0), second = word("Sequence", "B", 1),
             end = word("SpecialToken", kEos, 0), last = word("SpecialToken", kEos, 1);
  const Json token = Json::object({{"id", kEos},
                                   {"ids", Json(std::vector<Json>{Json(*tokenizer.eos_id())})},
                                   {"tokens", Json(std::vector<Json>{Json(kEos)})}});
  Json json = Json::parse(tokenizer.to_json());
  json["post_processor"] = Json::object({{"type", "TemplateProcessing"},
                                         {"single", Json(std::vector<Json>{first, end})},
                                         {"pair", Json(std::vector<Json>{first, end, second, last})},
                                         {"special_tokens", Json::object({{kEos, token}})}});
  return text::Tokenizer::from_contents(json.dump(2), tokenizer.config_json());
}

text::Tokenizer train_tokenizer(const std::vector<std::string_view>& lines, const Seq2SeqSettings& s) {
  const text::SpecialTokens special = {.eos = kEos, .pad = kPad, .unk = kUnk};
  if (s.tokenizer == TokenizerChoice::characters) {
    return ending_sentences(text::Tokenizer::train_characters(lines, {.special = special}));
  }
  return ending_sentences(
      text::Tokenizer::train_bpe(lines, {.vocab_size = s.vocab_size, .special = special}));
}

PairTokenizers train_tokenizers(const text::ParallelText& text, const Seq2SeqSettings& s) {
  std::vector<std::string_view> source = views(text.source);
  const std::vector<std::string_view> target = views(text.target);
  if (s.shared_vocabulary) {
    source.insert(source.end(), target.begin(), target.end());
    const text::Tokenizer both = train_tokenizer(source, s);
    return {both, both, true};
  }
  return {train_tokenizer(source, s), train_tokenizer(target, s), false};
}

int32_t id_of(const text::Tokenizer& tokenizer, std::optional<int32_t> role, const char* token) {
  if (role) return *role;
  const std::optional<int32_t> id = tokenizer.id(token);
  MH_CHECK(id.has_value(), ValueError, "tokenizer: it has no token ", token, ", which sentence pairs need");
  return *id;
}

PairTokens special_tokens(const PairTokenizers& tokenizers) {
  const auto of = [](const text::Tokenizer& t) {
    return PairTokens{id_of(t, t.pad_id(), kPad), id_of(t, t.eos_id(), kEos)};
  };
  const PairTokens source = of(tokenizers.source), target = of(tokenizers.target);
  MH_CHECK(source.pad == target.pad && source.eos == target.eos, ValueError,
           "tokenizers: padding and end must have the same ids on both sides, got ", source.pad, ", ",
           source.eos, " and ", target.pad, ", ", target.eos);
  return target;
}

// Whether the model is that of a folder, which says what its special tokens are; a new one takes the tokenizers'.
bool is_known(const models::Seq2SeqConfig& model) { return model.source_vocab_size > 0; }

models::Seq2SeqConfig model_config(const Seq2SeqSettings& settings, const Seq2SeqData& data) {
  models::Seq2SeqConfig c = settings.model;
  if (!is_known(c)) {
    c.share_embeddings = data.tokenizers.shared;
    c.pad_id = c.decoder_start_id = data.special.pad;
    c.eos_id = data.special.eos;
  }
  c.source_vocab_size = std::max(c.source_vocab_size, int64_t{data.tokenizers.source.vocab_size()});
  c.target_vocab_size = std::max(c.target_vocab_size, int64_t{data.tokenizers.target.vocab_size()});
  return models::resolved(c);
}

int64_t drop_long(std::vector<TokenPair>& pairs, int64_t limit) {
  return static_cast<int64_t>(
      std::erase_if(pairs, [&](const TokenPair& pair) { return pair.longest() > limit; }));
}

// `most` of them, evenly spread, so that no book speaks for all; 0: all.
std::vector<TokenPair> spread(const std::vector<TokenPair>& pairs, int64_t most) {
  std::vector<TokenPair> some;
  for (const int64_t row : spread_rows(std::ssize(pairs), most)) {
    some.push_back(pairs[static_cast<size_t>(row)]);
  }
  return some;
}

Json pair_id(const Seq2SeqData& data) {
  Json id = data_id("pairs", data.sums);
  id["source_tokenizer"] = checksum_text(data.tokenizers.source.fingerprint());
  id["target_tokenizer"] = checksum_text(data.tokenizers.target.fingerprint());
  return id;
}

}  // namespace

std::map<std::string, std::string> pair_tokenizer_files(const PairTokenizers& tokenizers) {
  std::map<std::string, std::string> files = {{"tokenizer.json", tokenizers.target.to_json()},
                                              {"tokenizer_config.json", tokenizers.target.config_json()}};
  if (!tokenizers.shared) files[kSourceTokenizerFile] = tokenizers.source.to_json();
  return files;
}

PairTokenizers load_pair_tokenizers(const std::string& model) {
  const std::string folder = models::tokenizer_folder(model);
  const auto path = [&](const char* file) { return std::filesystem::path(folder) / file; };
  if (!std::filesystem::exists(path("tokenizer.json")) && std::filesystem::exists(path("source.spm"))) {
    return {text::Tokenizer::load(path("source.spm")), text::Tokenizer::load(path("target.spm")), false};
  }
  const text::Tokenizer target = text::Tokenizer::load(folder);
  const std::filesystem::path source = std::filesystem::path(folder) / kSourceTokenizerFile;
  if (!std::filesystem::exists(source)) return {target, target, true};
  return {text::Tokenizer::load(source), target, false};
}

LoadedTranslator load_translator(const std::string& folder) {
  LoadedTranslator loaded{models::load_seq2seq(folder), load_pair_tokenizers(folder)};
  const auto& [source, target, shared] = loaded.tokenizers;
  const models::Seq2SeqConfig& c = loaded.model.config();
  models::check_vocabulary(folder, "source's tokenizer", source.vocab_size(), c.source_vocab_size);
  models::check_vocabulary(folder, "target's tokenizer", target.vocab_size(), c.target_vocab_size);
  return loaded;
}

Seq2SeqData prepare_seq2seq_data(const text::ParallelText& training, const text::ParallelText& validation,
                                 const Seq2SeqSettings& settings, const PairTokenizers* tokenizers) {
  MH_CHECK(!training.source.empty(), ValueError, "train: no sentence pairs to train on");
  Seq2SeqData data{tokenizers != nullptr ? *tokenizers : train_tokenizers(training, settings), {}, {}, {}, 0};
  const models::Seq2SeqConfig& m = settings.model;
  data.special =
      is_known(m) ? PairTokens{.pad = static_cast<int32_t>(m.pad_id), .eos = static_cast<int32_t>(m.eos_id)}
                  : special_tokens(data.tokenizers);
  data.training = encode_pairs(training, data.tokenizers.source, data.tokenizers.target, data.special);
  data.validation = encode_pairs(validation, data.tokenizers.source, data.tokenizers.target, data.special);
  data.left_out = drop_long(data.training, settings.max_tokens);
  data.validation_left_out = drop_long(data.validation, settings.max_tokens);
  MH_CHECK(!data.training.empty(), ValueError, "train: all ", data.left_out,
           " sentence pairs are longer than --max-tokens ", settings.max_tokens);
  MH_CHECK(validation.source.empty() || !data.validation.empty(), ValueError, "train: all ",
           data.validation_left_out, " validation pairs are longer than --max-tokens ", settings.max_tokens,
           ", so that there is nothing to evaluate");
  data.sums = sums_of_columns({training.source, training.target}, {validation.source, validation.target});
  data.shared = text::shared_rows({training.source, training.target}, {validation.source, validation.target});
  return data;
}

PairLoss evaluate(const models::Seq2Seq& model, const std::vector<TokenPair>& pairs, int64_t batch_tokens,
                  const Sharing& sharing) {
  PairLoss total;
  if (pairs.empty()) return total;
  const NoTape silent;
  const PairBatches batches(pairs, {.batch_tokens = batch_tokens, .bucket = 1});
  const auto measure = [&](int64_t i, std::span<double> numbers) {
    const PairBatch batch = make_pair_batch(pairs, batches.rows(i), model.config());
    numbers[1] = static_cast<double>(batch.tokens);
    numbers[0] = model.loss(batch.source, batch.input, batch.labels).item() * numbers[1];
  };
  const std::vector<double> numbers = measure_batches(sharing, batches.batches_per_epoch(), 2, measure);
  for (size_t i = 0; i < numbers.size(); i += 2) {
    total.nats += numbers[i], total.tokens += static_cast<int64_t>(numbers[i + 1]);
  }
  return total;
}

Seq2SeqTask::Seq2SeqTask(const Seq2SeqSettings& settings, const Seq2SeqData& data)
    : ModelTask(
          settings,
          [&](const Seq2SeqSettings& s, std::vector<std::string>&) {
            Rng rng(static_cast<uint64_t>(s.seed));
            return models::Seq2Seq(model_config(s, data), rng);
          },
          pair_id(data), settings.eval_pairs > 0 ? settings.eval_pairs : std::ssize(data.validation)),
      data_(data),
      batches_(data.training, {.batch_tokens = settings.batch_tokens,
                               .bucket = settings.bucket,
                               .seed = static_cast<uint64_t>(settings.seed)}) {}

Seq2SeqTask Seq2SeqTask::make(const Run& run, const Data& data) {
  Seq2SeqTask task(run.settings, data);
  const std::string from = run.tokenizer.empty() ? run.init : "";
  if (run.leads()) task.defaults_ = saved_defaults(from, task.model_.config());
  return task;
}

Task::Loss Seq2SeqTask::loss(int64_t index) {
  const PairBatch batch = make_pair_batch(data_.training, batches_.rows(index), model_.config());
  Rng rng = dropout_rng(settings_, index);
  return {model_.loss(batch.source, batch.input, batch.labels, &rng, settings_.label_smoothing),
          batch.tokens};
}

double Seq2SeqTask::targets(int64_t index) const {
  int64_t count = 0;
  for (const int64_t row : batches_.rows(index)) {
    count += std::ssize(data_.training[static_cast<size_t>(row)].target);
  }
  return static_cast<double>(count);
}

std::optional<PairLoss> Seq2SeqTask::score(int64_t most, const Sharing& sharing) const {
  if (data_.validation.empty()) return std::nullopt;
  return train::evaluate(model_, spread(data_.validation, most), most > 0 ? settings_.batch_tokens : 4096,
                         sharing);
}

void Seq2SeqTask::save(io::CheckpointContents& contents) {
  contents.tensors["model.safetensors"] = models::seq2seq_tensors(model_);
  contents.files["config.json"] = models::config_to_json(model_.config()).dump(2) + "\n";
  contents.files.merge(pair_tokenizer_files(data_.tokenizers));
  if (!defaults_.empty()) contents.files[io::kGenerationFile] = defaults_;
}

void average_checkpoints(models::Seq2Seq& model, const std::vector<std::string>& paths) {
  MH_CHECK(!paths.empty(), ValueError, "average: no checkpoints");
  const std::vector<Tensor> parameters = nn::parameters(model);
  std::vector<std::vector<double>> sums(parameters.size());
  models::Seq2Seq part = nn::clone(model);
  for (const std::string& path : paths) {
    models::load_weights(part, path + "/model.safetensors");
    const std::vector<Tensor> values = nn::parameters(part);
    for (size_t i = 0; i < values.size(); ++i) {
      const std::vector<double> x = values[i].to_vector<double>();
      sums[i].resize(x.size(), 0);
      for (size_t k = 0; k < x.size(); ++k) sums[i][k] += x[k] / static_cast<double>(paths.size());
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& target = parameters[i];
    target.copy_from(Tensor::of<double>(target.shape(), sums[i]));
  }
}

namespace {

// The leader's, read or trained, on every rank.
PairTokenizers tokenizers_of(const Seq2SeqRun& run, const RunFolder* folder,
                             const text::ParallelText& training) {
  std::optional<PairTokenizers> own;
  if (folder != nullptr) {
    const std::string source = tokenizer_source(run, *folder);
    own = source.empty() ? train_tokenizers(training, run.settings) : load_pair_tokenizers(source);
    check_named_tokenizer(run, *folder, [](const std::string& from) {
      const PairTokenizers both = load_pair_tokenizers(from);
      return std::vector{both.source.fingerprint(), both.target.fingerprint()};
    });
  }
  if (run.group == nullptr) return *own;
  return {share_tokenizer(run.group, own ? &own->source : nullptr),
          share_tokenizer(run.group, own ? &own->target : nullptr),
          !run.group->broadcast_text(0, own && own->shared ? "shared" : "").empty()};
}

}  // namespace

Seq2SeqData Seq2SeqTask::prepare(const Run& run, const RunFolder* folder, const Texts& texts) {
  const PairTokenizers tokenizers = tokenizers_of(run, folder, texts.training);
  return prepare_seq2seq_data(texts.training, texts.validation, run.settings, &tokenizers);
}

std::vector<std::string> Seq2SeqTask::warnings() const {
  std::vector<std::string> all;
  if (!data_.shared.empty()) all.push_back(data_.shared);
  const auto tell = [&](int64_t left_out, int64_t taken, const char* pairs) {
    if (left_out == 0) return;
    all.push_back(concat(left_out, " of ", taken + left_out, pairs, " are longer than ", settings_.max_tokens,
                         " tokens and are skipped (--max-tokens)"));
  };
  tell(data_.left_out, std::ssize(data_.training), " pairs");
  tell(data_.validation_left_out, std::ssize(data_.validation), " validation pairs");
  return all;
}

std::vector<std::string> Seq2SeqTask::notes() const {
  if (keeps_best()) return {};
  return {concat("the model will be the mean of the last ", settings_.average,
                 " checkpoints, or the best one if its loss is less (--average)")};
}

void Seq2SeqTask::describe(Seq2SeqSummary& summary) const {
  summary.pairs = std::ssize(data_.training);
  summary.left_out = data_.left_out;
}

bool Seq2SeqTask::finish(const Run& run) {
  if (keeps_best()) return false;
  if (run.leads()) {
    const Seq2SeqSettings& s = run.settings;
    const int64_t every = s.save_every > 0 ? s.save_every : s.eval_every;
    std::vector<std::string> paths;
    const std::vector<io::CheckpointInfo> all = io::list_checkpoints(run.folder);
    for (auto info = all.rbegin(); info != all.rend(); ++info) {
      // A best one between those of the plan is none of them.
      const bool counts = paths.empty() || (every > 0 && info->step % every == 0);
      if (counts && std::ssize(paths) < s.average) paths.insert(paths.begin(), info->path);
    }
    average_checkpoints(model_, paths);
  }
  if (run.group != nullptr) broadcast_weights(*run.group, nn::named_parameters(model_));
  return true;
}

const Kind& Seq2SeqTask::kind() {
  static const Kind kind = {
      .name = "seq2seq",
      .about = "train a translator on sentence pairs",
      .examples = {{"multihead train seq2seq --data train.tsv --valid valid.tsv --out model",
                    "source TAB target on every line"},
                   {"multihead train seq2seq --data train.tsv --valid valid.tsv --out model --resume",
                    "continue an interrupted run"},
                   {"multihead train seq2seq --data t.tsv --valid v.tsv --out m --preset small --average 4",
                    "a larger model, averaging its last four checkpoints"},
                   {"multihead translate model --text \"a red ball\"", "use it"}},
      .tag = "translation",
      .unit = "token",
      .data = "training pairs: source and target, as TSV, CSV or JSON Lines, UTF-8",
      .valid = "validation pairs; without them there is no evaluation",
      .has_columns = true,
      .tokenizer = "use the tokenizers of this folder (or tokenizer.json)",
      .presets = seq2seq_presets(),
      .make = TaskRun<Seq2SeqTask>::make};
  return kind;
}

void start_from(Seq2SeqSettings& settings, const std::string& init) {
  settings.model = models::load_seq2seq(init).config();
  set_fine_tuning(settings);
  settings.average = 1;
  settings.max_tokens = std::min(settings.max_tokens, settings.model.max_positions);
}

Seq2SeqSummary train_seq2seq(const Seq2SeqRun& run) { return train_task<Seq2SeqTask>(run); }

Json to_json(const PairLoss& loss) {
  return Json::object({{"loss", number_or_null(loss.loss())}, {"tokens", loss.tokens}});
}

}  // namespace multihead::train
