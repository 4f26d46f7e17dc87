#include "multihead/train/tasks/language_model_run.h"

#include <algorithm>
#include <functional>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/memory/memory.h"
#include "multihead/core/text/enumeration-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/generate/defaults.h"
#include "multihead/io/file_set.h"
#include "multihead/ops/attention/ring/context_scope.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/loss.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/train/data/rows.h"
#include "multihead/train/parallel/context_parallel.h"

namespace multihead::train {
namespace {

void check_length(int64_t size, const char* unit, const std::string& name,
                  const LanguageModelSettings& settings) {
  MH_CHECK(size > settings.model.context, FormatError, name, ": it has ", size, " ", unit,
           ", expected more than one context of ", settings.model.context,
           "; give more text or a smaller --context");
}

text::TextSplit split_of(const std::string& text, const LanguageModelSettings& settings) {
  if (settings.validation_share == 0) return {{text}, {}};
  return text::split_corpus(text,
                            {.validation = settings.validation_share, .blocks = settings.validation_blocks});
}

text::Tokenizer train_tokenizer(const std::string& text, const LanguageModelSettings& settings) {
  if (settings.tokenizer == TokenizerChoice::characters) return text::Tokenizer::train_characters(text);
  return text::Tokenizer::train_bpe(split_of(text, settings).train, {.vocab_size = settings.vocab_size});
}

// Says which special tokens a text spells, which encode() reads as plain characters.
std::vector<std::string> spelled_special(std::string_view text, const std::string& name,
                                         const text::Tokenizer& tokenizer) {
  constexpr size_t kLooksAt = size_t{1} << 24;  // bytes: there can be hundreds of special tokens
  const std::string_view begin = text.substr(0, kLooksAt);
  Enumeration found;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id) || begin.find(tokenizer.token(id)) == begin.npos) continue;
    found.add(quote(tokenizer.token(id)));
  }
  if (found.empty()) return {};
  return {concat(name, " spells special tokens, which are read as plain characters: ", found,
                 "; train conversations as such ({\"messages\": …} in JSON Lines), or encode the text with "
                 "tokenizer encode --special")};
}

LanguageModelSettings with_vocabulary(LanguageModelSettings settings, int64_t vocab_size) {
  settings.model.vocab_size = std::max(settings.model.vocab_size, vocab_size);
  settings.model = models::resolved(settings.model);
  return settings;
}

}  // namespace

LanguageModelData prepare_language_model_data(const std::string& text, const std::string& name,
                                              const LanguageModelSettings& settings,
                                              const text::Tokenizer* tokenizer,
                                              const std::string& validation_text) {
  check_length(static_cast<int64_t>(text.size()), "bytes", name, settings);
  const text::TextSplit split = validation_text.empty()
                                    ? split_of(text, settings)
                                    : text::TextSplit{.train = {text}, .validation = {validation_text}};
  LanguageModelData data{tokenizer != nullptr ? *tokenizer : train_tokenizer(text, settings),
                         std::span<const int32_t>(),
                         std::span<const int32_t>(),
                         {checksum(text), validation_text.empty() ? 0 : checksum(validation_text)}};
  size_t training = 0;
  try {
    data.tokens = text::encode_all(data.tokenizer, split.train);
    training = data.tokens.size();
    const std::vector<int32_t> validation = text::encode_all(data.tokenizer, split.validation);
    data.tokens.insert(data.tokens.end(), validation.begin(), validation.end());
  } catch (const ValueError& error) {  // a character that the given tokenizer does not know
    throw FormatError(concat(name, ": ", error.what()));
  }
  const std::span<const int32_t> all(data.tokens);
  data.training = all.first(training);
  data.validation = all.subspan(training);
  check_length(data.training.size(), "training tokens", name, settings);
  data.warnings = spelled_special(text, name, data.tokenizer);
  return data;
}

LanguageModelData read_dialogue_data(const std::string& path, const std::string& valid,
                                     const LanguageModelSettings& settings,
                                     const text::Tokenizer& tokenizer) {
  LanguageModelData data{
      tokenizer,
      std::span<const int32_t>(),
      std::span<const int32_t>(),
      {checksum(text::read_text(path)), valid.empty() ? 0 : checksum(text::read_text(valid))}};
  const auto read = [&](const std::string& file) {
    Dialogues found = read_dialogues(file, tokenizer, settings.model.context);
    if (found.cut > 0) {
      data.warnings.push_back(concat(file, ": ", found.cut, " rows are longer than ", settings.model.context,
                                     " tokens and are cut (--context)"));
    }
    if (found.skipped > 0) {
      data.warnings.push_back(concat(file, ": ", found.skipped, " rows have no answer within ",
                                     settings.model.context, " tokens and are skipped (--context)"));
    }
    return std::move(found.all);
  };
  data.dialogues = read(path);
  if (!valid.empty()) {
    data.dialogue_validation = read(valid);
    return data;
  }
  const auto held_out =
      static_cast<int64_t>(settings.validation_share * static_cast<double>(std::ssize(data.dialogues)));
  if (held_out == 0) return data;
  const std::vector<int64_t> rows = spread_rows(std::ssize(data.dialogues), held_out);
  std::vector<Dialogue> kept;
  for (int64_t row = 0, next = 0; row < std::ssize(data.dialogues); ++row) {
    const bool is_held = next < held_out && rows[static_cast<size_t>(next)] == row;
    if (is_held) ++next;
    (is_held ? data.dialogue_validation : kept)
        .push_back(std::move(data.dialogues[static_cast<size_t>(row)]));
  }
  data.dialogues = std::move(kept);
  return data;
}

LanguageModelData map_language_model_data(const std::string& path, const LanguageModelSettings& settings,
                                          const text::Tokenizer& tokenizer, int rank, int ranks) {
  text::TokenFiles files = text::TokenFiles::open(path);
  files.check_tokenizer(tokenizer.fingerprint());
  files.files().size() == 1 ? files.verify() : files.verify(rank, ranks);
  const text::TokenView all = files.tokens();
  const auto held_out = static_cast<int64_t>(static_cast<double>(all.size()) * settings.validation_share);
  const int64_t training = all.size() - held_out;
  check_length(training, "training tokens", path, settings);
  const uint64_t sum = files.checksum();
  return {tokenizer, all.sub(0, training), all.sub(training, held_out), {sum}, {}, std::move(files)};
}

LanguageModelTask::LanguageModelTask(const LanguageModelSettings& settings, const LanguageModelData& data)
    : ModelTask(
          with_vocabulary(settings, data.tokenizer.vocab_size()),
          [](const LanguageModelSettings& s, std::vector<std::string>&) {
            Rng rng(static_cast<uint64_t>(s.seed));
            models::LanguageModelConfig config = s.model;
            if (s.positions > 0) config.context = s.positions;
            return models::LanguageModel(config, rng);
          },
          data_id("text", data.sums, data.tokenizer), settings.eval_windows),
      data_(data) {
  if (data.dialogues.empty()) {
    order_.emplace(data.training.size(), settings.model.context, static_cast<uint64_t>(settings.seed));
  } else {
    MH_CHECK(settings.context_shards == 1, ValueError,
             "train: conversations are not cut over --context-shards");
  }
}

// The logits before the targets; sequences do not see each other.
Tensor LanguageModelTask::dialogue_logits(const DialogueBatch& batch, Rng* rng) const {
  return model_.logits(embedding(model_.features(batch.rows, rng), batch.places));
}

std::vector<int64_t> LanguageModelTask::dialogue_rows(int64_t index) const {
  return batch_rows(index, settings_.batch, std::ssize(data_.dialogues),
                    static_cast<uint64_t>(settings_.seed));
}

Task::Loss LanguageModelTask::loss(int64_t index) {
  if (!data_.dialogues.empty()) {
    const DialogueBatch batch = dialogue_batch(data_.dialogues, dialogue_rows(index));
    Rng rng = dropout_rng(settings_, index);
    return {cross_entropy(dialogue_logits(batch, &rng), batch.targets,
                          {.label_smoothing = settings_.label_smoothing}),
            batch.rows.tokens.numel()};
  }
  std::vector<int64_t> begins;
  for (int64_t row = 0; row < settings_.batch; ++row) {
    begins.push_back(order_->begin(index * settings_.batch + row));
  }
  WindowBatch batch = gather_windows(data_.training, begins, settings_.model.context);
  if (const ContextScope* part = ContextScope::current()) {
    batch = {part->take(batch.tokens, 1), part->take(batch.targets, 1)};
  }
  Rng rng = dropout_rng(settings_, index);
  return {model_.loss(batch.tokens, batch.targets, {.rng = &rng}, settings_.label_smoothing),
          batch.tokens.numel(),
          static_cast<double>(batch.tokens.size(1)) / static_cast<double>(settings_.model.context)};
}

double LanguageModelTask::targets(int64_t index) const {
  if (data_.dialogues.empty()) return static_cast<double>(settings_.batch * settings_.model.context);
  int64_t count = 0;
  for (const int64_t row : dialogue_rows(index)) count += data_.dialogues[static_cast<size_t>(row)].targets();
  return static_cast<double>(count);
}

std::unique_ptr<Task> LanguageModelTask::twin(std::vector<nn::NamedTensor>& parameters) const {
  auto twin = std::make_unique<LanguageModelTask>(*this);
  nn::replace_parameters(twin->model_, [](const Tensor& parameter) { return parameter.detach(); });
  parameters = trained_parameters(twin->model_);
  return twin;
}

std::optional<TextLoss> LanguageModelTask::score_dialogues(int64_t most, const Sharing& sharing) const {
  const std::vector<Dialogue>& all = data_.dialogue_validation;
  if (all.empty()) return std::nullopt;
  const NoTape silent;
  const std::vector<int64_t> rows = spread_rows(std::ssize(all), most);
  const std::vector<double> numbers = measure_rows(
      sharing, rows, settings_.batch, 2, [&](const std::vector<int64_t>& some, std::span<double> out) {
        const DialogueBatch batch = dialogue_batch(all, some);
        out[0] = cross_entropy(dialogue_logits(batch, nullptr), batch.targets, {.reduction = Reduction::sum})
                     .item();
        out[1] = static_cast<double>(batch.targets.numel());
      });
  TextLoss total;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    total.nats += numbers[i], total.tokens += static_cast<int64_t>(numbers[i + 1]);
  }
  for (const int64_t row : rows) {
    const std::string text = data_.tokenizer.decode(all[static_cast<size_t>(row)].learned());
    total.bytes += std::ssize(text);
    total.characters += count_utf8(text);
  }
  return total;
}

std::optional<TextLoss> LanguageModelTask::score(int64_t most, const Sharing& sharing) const {
  if (!data_.dialogues.empty()) return score_dialogues(most, sharing);
  if (data_.validation.size() < 2) return std::nullopt;
  return train::evaluate(
      model_, data_.validation,
      {.context = settings_.model.context, .batch = settings_.batch, .windows = most, .sharing = sharing},
      most == 0 ? &data_.tokenizer : nullptr);
}

void LanguageModelTask::save(io::CheckpointContents& contents) {
  contents.tensors["model.safetensors"] = models::language_model_tensors(model_);
  contents.files["config.json"] = models::config_to_json(model_.config()).dump(2) + "\n";
  contents.files["tokenizer.json"] = data_.tokenizer.to_json();
  contents.files["tokenizer_config.json"] = data_.tokenizer.config_json();
  if (!defaults_.empty()) contents.files[io::kGenerationFile] = defaults_;
}

LanguageModelTask::Texts LanguageModelTask::read(const Run& run) {
  if (run.settings.context_shards > 1)
    check_context(run.settings.model.context, run.settings.context_shards, run.ranks());
  const bool has_dialogues = holds_dialogues(run.data),
             has_tokens = !has_dialogues && text::TokenFiles::is_one(run.data);
  if (!run.valid.empty()) {
    MH_CHECK(!has_tokens, FormatError, run.data,
             ": of tokens the end is held out (--validation-share), got a file, ", run.valid);
    MH_CHECK(holds_dialogues(run.valid) == has_dialogues, FormatError, run.valid, ": ", run.data,
             has_dialogues ? " is" : " is not", " JSON Lines, and both must be");
  }
  if (has_dialogues) {
    MH_CHECK(!run.init.empty() || !run.tokenizer.empty(), ValueError, "train: ", run.data,
             ": conversations need the tokenizer of --init or --tokenizer-file");
    return {};
  }
  if (has_tokens) return {};
  Texts texts = {text::read_corpus(run.data), run.valid.empty() ? "" : text::read_corpus(run.valid)};
  check_length(std::ssize(texts.training), "bytes", run.data, run.settings);
  return texts;
}

// Every rank reads the text; the tokenizer is the leader's.
LanguageModelData LanguageModelTask::prepare(const Run& run, const RunFolder* folder, const Texts& texts) {
  const std::string& text = texts.training;
  const text::Tokenizer tokenizer = tokenizer_of(run, folder, [&] {
    MH_CHECK(!text.empty(), ValueError, "train: ", run.data,
             " holds tokens; give the tokenizer that made them with --tokenizer-file");
    return train_tokenizer(text, run.settings);
  });
  if (holds_dialogues(run.data)) return read_dialogue_data(run.data, run.valid, run.settings, tokenizer);
  if (!text.empty()) {
    return prepare_language_model_data(text, run.data, run.settings, &tokenizer, texts.validation);
  }
  return map_language_model_data(run.data, run.settings, tokenizer, run.rank(), run.ranks());
}

double activation_bytes(const LanguageModelSettings& settings, const LanguageModelData& data, int64_t rows) {
  const models::LanguageModelConfig c = least_model(settings);
  // Conversations: as long as the longest of them.
  std::vector<int64_t> lengths;
  for (const Dialogue& one : data.dialogues) lengths.push_back(std::ssize(one.ids));
  std::ranges::sort(lengths, std::greater());
  double tokens = static_cast<double>(rows) * static_cast<double>(c.context);
  if (!lengths.empty()) {
    tokens = 0;
    for (int64_t i = 0; i < rows; ++i)
      tokens += static_cast<double>(lengths[static_cast<size_t>(i % std::ssize(lengths))]);
  }
  // A layer keeps two norms, queries, keys and values, attention, two residuals; gate, up and their product.
  const double of_layer = 9 * static_cast<double>(c.embed_dim) + 3 * static_cast<double>(c.ffn_dim);
  const double of_token = static_cast<double>(c.num_layers) * of_layer + 4 * static_cast<double>(c.embed_dim);
  // Conversations have logits of their targets, at most all tokens, with a gradient.
  const double of_words = lengths.empty() ? 0 : 2 * static_cast<double>(c.vocab_size);
  return 4 * tokens * (of_token * (settings.precision == Precision::bf16 ? 0.5 : 1) + of_words);
}

LanguageModelTask LanguageModelTask::make(const Run& run, const Data& data) {
  LanguageModelSettings s = with_vocabulary(run.settings, data.tokenizer.vocab_size());
  const int64_t weights = models::matrix_weights(s.model);
  // Adapters are added to a copy of the weights.
  const double fixed =
      s.lora.rank > 0 ? 8 * static_cast<double>(weights) : training_memory(s, weights, run.ranks()).total();
  const double of_row = activation_bytes(s, data, 1), free = static_cast<double>(available_memory()) - fixed;
  const auto most = static_cast<int64_t>(std::clamp(free / of_row, 0.0, 1e9));
  check_memory(fixed + activation_bytes(s, data, s.batch),
               concat("train: a --batch of ", s.batch, " sequences of up to ", s.model.context, " tokens"),
               most > 0 ? concat("the largest that fits is --batch ", most, "; --accumulate ",
                                 (s.batch + most - 1) / most, " makes up for it")
                        : "choose a smaller --context, --precision bf16 or --lora-rank");
  LanguageModelTask task(run.settings, data);
  // Ids of another tokenizer than init's would mean other tokens.
  const std::string from = run.tokenizer.empty() ? run.init : "";
  if (run.leads())
    task.defaults_ = saved_defaults(from, models::config_to_json(task.model_.config()), data.tokenizer);
  return task;
}

models::LanguageModel LanguageModelTask::load_init(const std::string& init) {
  return models::load_language_model(init, nn::WeightDtype::f32);
}

const Kind& LanguageModelTask::kind() {
  static const Kind kind = {
      .name = "lm",
      .about = "train a language model on a text file",
      .examples =
          {{"multihead train lm --data austen.txt --out model --preset tiny",
            "the demo: a few minutes on two cores"},
           {"multihead train lm --data austen.txt --out model --resume", "continue an interrupted run"},
           {"mpirun -n 4 multihead train lm --data austen.txt --out model",
            "on four processes or machines; same weights as on one"},
           {"mpirun -n 4 multihead train lm --data t.txt --out m --context 65536 --context-shards 4",
            "each process holds a quarter of every sequence"},
           {"multihead train lm --data mine.txt --out tuned --init model", "fine-tune a model"},
           {"multihead train lm --data chats.jsonl --out tuned --init model --lora-rank 16",
            "conversations, {\"messages\": […]} on every line, of which the answers are learned"},
           {"multihead train lm --data t.txt --out m --layers 6 --heads 8 --width 256 --tokenizer char",
            "custom sizes, character-level tokens"},
           {"multihead generate model --prompt \"It was\"", "use it"}},
      .tag = "text-generation",
      .unit = "token",
      .data =
          "training text, UTF-8; conversations (.jsonl); or tokens, or a list of token files (tokenizer "
          "encode, list)",
      .valid = "validation data of the same kind, in place of --validation-share",
      .tokenizer = "use this tokenizer.json (or its folder)",
      .presets = language_model_presets(),
      .make = TaskRun<LanguageModelTask>::make};
  return kind;
}

void start_from(LanguageModelSettings& settings, const std::string& init) {
  settings.model = LanguageModelTask::load_init(init).config();
  set_fine_tuning(settings);
  settings.positions = settings.model.context;
  settings.model.context = std::min(settings.positions, 2 * kReadTokens);
  settings.batch = kTunedBatch;
}

LanguageModelSummary train_language_model(const LanguageModelRun& run) {
  return train_task<LanguageModelTask>(run);
}

}  // namespace multihead::train
