#include "multihead/train/tasks/encoder_settings.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "multihead/core/error.h"

namespace multihead::train {

EncoderSettings::EncoderSettings() { set_fine_tuning(*this); }

namespace {

// The model's fields with these flags.
void add_named(std::vector<Field>& list, models::EncoderConfig& config,
               std::initializer_list<std::string_view> flags) {
  const std::vector<Field> all = model_fields(config);
  for (const std::string_view flag : flags) list.push_back(*std::ranges::find(all, flag, &Field::name));
}

}  // namespace

void add_encoder_fields(std::vector<Field>& list, EncoderSettings& s) {
  list.push_back({"batch", "texts or pairs per micro-batch", &s.batch, 1});
  list.push_back(
      {"max-length", "truncate texts to this many tokens (0: the model's limit)", &s.max_length, 0});
  note_with_init(list, "max-length", concat(kReadTokens, ", or the model's limit if that is less"));
  add_named(list, s.model, {"dropout", "attention-dropout"});
}

models::EncoderConfig least_model(const EncoderSettings& settings) {
  models::EncoderConfig config = settings.model;
  if (config.vocab_size == 0) config.vocab_size = 1;
  return models::resolved(config);
}

void check_encoder(const EncoderSettings& s, const std::vector<Field>& fields) {
  least_model(s);
  check_training(s, fields, s.model.embed_dim);
  MH_CHECK(s.batch <= (int64_t{1} << 31) / length_of(s), ValueError, "train: a --batch of ", s.batch,
           " texts of ", length_of(s), " tokens is more than 2^31 tokens");
}

int64_t length_of(const EncoderSettings& s) {
  return s.max_length > 0 ? std::min(s.max_length, s.model.context) : s.model.context;
}

std::vector<Field> fields(ClassifierSettings& s) {
  std::vector<Field> list;
  add_encoder_fields(list, s);
  list.push_back({"freeze", "train only the new head", &s.freeze});
  list.push_back({"head-only",
                  "fit a linear head to the folder's own vectors, to convergence, in place of steps",
                  &s.head_only, 0, true});
  list.push_back(
      {"head-c",
       "head-only: C of the logistic (ridge) regression, as in scikit-learn (0: the best of six in "
       "five-fold cross-validation)",
       &s.head_c, 0, true});
  list.push_back({"regression", "labels are numbers", &s.regression});
  list.push_back({"multi-label", "a text may have several labels: a,b or a JSON list", &s.multi_label});
  list.push_back({"balanced", "rare labels count for more: each for as much as the others", &s.balanced});
  list.push_back({"labels-as-names", "labels such as 1.5 are names of classes", &s.labels_as_names, 0, true});
  list.push_back({"eval-texts", "validation texts per evaluation (0: all)", &s.eval_texts, 0});
  add_training_fields(list, s);
  add_report_fields(list, s);
  return list;
}

models::ProblemType problem_of(const ClassifierSettings& settings) {
  using enum models::ProblemType;
  return settings.regression ? regression : settings.multi_label ? multi_label : single_label;
}

void check(const ClassifierSettings& settings) {
  ClassifierSettings s = settings;
  check_encoder(s, fields(s));
  MH_CHECK(!s.regression || !s.multi_label, ValueError,
           "train: give --regression or --multi-label, not both");
  MH_CHECK(problem_of(s) == models::ProblemType::single_label || s.label_smoothing == 0, ValueError,
           "train: --label-smoothing is for texts with one label each, got ", s.label_smoothing);
  MH_CHECK(!s.balanced || (problem_of(s) == models::ProblemType::single_label && s.label_smoothing == 0),
           ValueError, "train: --balanced is for texts with one label each, without --label-smoothing");
  MH_CHECK(!s.regression || !s.labels_as_names, ValueError,
           "train: give --regression or --labels-as-names, not both");
  MH_CHECK(s.head_c >= 0 && std::isfinite(s.head_c), ValueError,
           "train: --head-c must be positive and finite, or 0 to be chosen, got ", s.head_c);
  MH_CHECK(s.head_only || s.head_c == 0, ValueError, "train: --head-c has an effect only with --head-only");
  MH_CHECK(!s.head_only || !s.freeze, ValueError, "train: give --head-only or --freeze, not both");
  MH_CHECK(!s.head_only || s.lora.rank == 0, ValueError,
           "train: --head-only trains no adapters (--lora-rank)");
}

std::vector<std::string> masked_lm_presets() { return {"tiny", "small", "base"}; }

MaskedLmSettings masked_lm_settings(const std::string& preset) {
  MaskedLmSettings s;
  models::EncoderConfig& m = s.model;
  set_new(s, preset == "tiny" ? 3000 : preset == "small" ? 30000 : 100000);
  s.lr = 1e-3, s.warmup_steps = 100;
  m.context = 128, m.dropout_p = m.attention_dropout_p = 0.1;
  if (preset == "tiny") {
    m.num_layers = 4, m.num_heads = 4, m.embed_dim = 128, m.dropout_p = m.attention_dropout_p = 0;
  } else if (preset == "small") {
    m.num_layers = 6, m.num_heads = 12, m.embed_dim = 384, s.vocab_size = 16384, s.lr = 5e-4;
    m.context = 512, s.max_length = 128;
  } else {
    MH_CHECK(preset == "base", ValueError, "train: unknown preset ", quote(preset),
             "; choose tiny, small or base");
    m.num_layers = 12, m.num_heads = 12, m.embed_dim = 768, s.vocab_size = 30522, s.lr = 2e-4;
    m.context = 512, s.warmup_steps = 1000;
  }
  m.head = models::EncoderHead::masked_lm, m.pooler = false;
  return s;
}

std::vector<Field> fields(MaskedLmSettings& s) {
  std::vector<Field> list;
  add_named(list, s.model, {"layers", "heads", "width", "ff", "context"});
  add_encoder_fields(list, s);
  list.push_back({"mask-share", "fraction of tokens to mask", &s.mask_share});
  list.push_back({"whole-words", "mask whole words", &s.whole_words});
  list.push_back({"vocab-size", "BPE vocabulary size", &s.vocab_size, 1});
  list.push_back({"validation-share", "fraction of the text held out for validation", &s.validation_share});
  list.push_back({"eval-windows", "validation windows per evaluation (0: all)", &s.eval_windows, 0});
  add_training_fields(list, s);
  add_report_fields(list, s);
  return list;
}

void check(const MaskedLmSettings& settings) {
  MaskedLmSettings s = settings;
  check_encoder(s, fields(s));
  MH_CHECK(s.mask_share > 0 && s.mask_share < 1, ValueError, "train: --mask-share must be in (0, 1), got ",
           s.mask_share);
  MH_CHECK(s.validation_share >= 0 && s.validation_share < 1, ValueError,
           "train: --validation-share must be in [0, 1), got ", s.validation_share);
}

std::vector<Field> fields(EmbedderSettings& s) {
  std::vector<Field> list;
  add_encoder_fields(list, s);
  list.push_back({"temperature", "temperature: divides the cosine similarities", &s.temperature});
  list.push_back({"symmetric", "also train documents to find their queries", &s.symmetric});
  list.push_back(
      {"chunk",
       "texts whose activations are kept at a time: smaller saves memory, costs time (0: the whole batch)",
       &s.chunk, 0});
  list.push_back({"matryoshka",
                  "also train the first columns of vectors, as many as these numbers say: 256,128,64",
                  &s.matryoshka});
  list.push_back({"eval-pairs", "validation pairs per evaluation (0: all)", &s.eval_pairs, 0});
  add_training_fields(list, s);
  add_report_fields(list, s);
  return list;
}

std::vector<int64_t> matryoshka_sizes(const EmbedderSettings& settings) {
  std::vector<int64_t> sizes;
  const std::string& list = settings.matryoshka;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    sizes.push_back(parse_integer("--matryoshka", list.substr(begin, end - begin)));
    MH_CHECK(sizes.back() > 0, ValueError, "train: --matryoshka: a size must be positive, got ",
             sizes.back());
    begin = end + 1;
  }
  return sizes;
}

void check(const EmbedderSettings& settings) {
  EmbedderSettings s = settings;
  check_encoder(s, fields(s));
  MH_CHECK(s.batch > 1, ValueError,
           "train: --batch must be at least 2: the other documents of a batch are a query's negatives");
  MH_CHECK(s.temperature > 0 && s.temperature < 1e6, ValueError,
           "train: --temperature must be positive, got ", s.temperature);
  matryoshka_sizes(s);
  MH_CHECK(s.label_smoothing == 0, ValueError, "train: an embedder does not support --label-smoothing, got ",
           s.label_smoothing);
}

}  // namespace multihead::train
