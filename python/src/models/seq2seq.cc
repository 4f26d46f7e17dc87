// Encoder-decoder models: Hugging Face's Marian layout, beam search, translation.

#include "multihead/core/error.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/translate.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/train/tasks/seq2seq_run.h"
#include "python/src/bindings.h"
#include "python/src/interrupt.h"
#include "python/src/models/folders.h"
#include "python/src/modules.h"
#include "python/src/names.h"
#include "python/src/path.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {
namespace {

using models::Seq2Seq;
using models::Seq2SeqConfig;

void bind_seq2seq_config(nb::module_& m) {
  nb::class_<Seq2SeqConfig> c(
      m, "Seq2SeqConfig",
      "The configuration of an encoder-decoder model: sizes, positions ('sinusoidal', 'learned'), norm "
      "('layer', 'rms'),\nactivation, biases, shared embeddings, dropout. Fields are keyword arguments.");
  bind_config_fields(c, "Seq2SeqConfig");
}

models::TokenBatch to_batch(const char* who, nb::handle tokens, nb::handle lengths) {
  models::TokenBatch batch{to_tensor(tokens, {who, "tokens"}), {}};
  if (!lengths.is_none()) batch.lengths = to_integers(lengths, {who, "lengths"});
  return batch;
}

struct BeamKeywords {
  BeamOptions options;
  std::string weight_dtype;
};

// Defines c.name(first, *, the keywords of BeamOptions) as f(self, first, BeamKeywords).
// `defaults(self)`: the options that hold where a keyword is None.
// `extra`: keywords besides, one std::string each.
template <class... Strings, class Class, class Defaults, class F, class... Extra>
void def_search(nb::class_<Class>& c, const char* name, const char* first, Defaults defaults, F f,
                const char* doc, const Extra&... extra) {
  using Tokens = std::vector<std::vector<int32_t>>;
  using Integer = std::optional<int64_t>;
  using Number = std::optional<double>;
  using Flag = std::optional<bool>;
  c.def(
      name,
      [f, defaults](const Class& self, nb::handle x, Integer beam_size, int64_t num_hypotheses,
                    double patience, Number length_penalty, Number repetition_penalty,
                    Integer no_repeat_ngram, Integer min_length, Integer max_length,
                    const std::optional<Tokens>& suppress, Tokens prefixes, bool alternatives, Flag sample,
                    Number temperature, Integer top_k, Number top_p, Number min_p, uint64_t seed,
                    Flag stop_early, std::optional<int32_t> first_token, const std::string& weight_dtype,
                    const Strings&... strings) {
        const BeamOptions own = defaults(self);
        const bool samples = sample.value_or(own.sample);
        MH_CHECK(samples || !(temperature || top_k || top_p || min_p || seed != 0), ValueError,
                 "beam search: temperature, top_k, top_p, min_p and seed need sample=True");
        MH_CHECK(!samples || (beam_size.value_or(1) == 1 && patience == 1), ValueError,
                 "beam search: beam_size and patience have no effect with sample=True");
        const SamplingOptions sampling{temperature.value_or(own.sampling.temperature),
                                       top_k.value_or(own.sampling.top_k), top_p.value_or(own.sampling.top_p),
                                       min_p.value_or(own.sampling.min_p), 1.0};
        return f(
            self, x,
            BeamKeywords{{beam_size.value_or(own.beam_size), num_hypotheses, patience,
                          length_penalty.value_or(own.length_penalty),
                          repetition_penalty.value_or(own.repetition_penalty),
                          no_repeat_ngram.value_or(own.no_repeat_ngram), min_length.value_or(own.min_length),
                          max_length.value_or(own.max_length), suppress.value_or(own.suppress),
                          std::move(prefixes), alternatives, sample.value_or(own.sample), sampling, seed,
                          own.renormalize, stop_early.value_or(own.stop_early),
                          first_token ? first_token : own.first_token, own.free_forced_end},
                         weight_dtype},
            strings...);
      },
      nb::arg(first), nb::kw_only(), "beam_size"_a = nb::none(), "num_hypotheses"_a = 1, "patience"_a = 1.0,
      "length_penalty"_a = nb::none(), "repetition_penalty"_a = nb::none(), "no_repeat_ngram"_a = nb::none(),
      "min_length"_a = nb::none(), "max_length"_a = nb::none(), "suppress"_a = nb::none(),
      "prefixes"_a = Tokens(), "alternatives"_a = false, "sample"_a = nb::none(),
      "temperature"_a = nb::none(), "top_k"_a = nb::none(), "top_p"_a = nb::none(), "min_p"_a = nb::none(),
      "seed"_a = 0, "stop_early"_a = nb::none(), "first_token"_a = nb::none(), "weight_dtype"_a = "f32",
      extra..., doc);
}

std::vector<std::vector<int32_t>> to_sources(nb::handle sources) {
  std::vector<std::vector<int32_t>> rows;
  for (nb::handle row : sources) {
    std::vector<int32_t>& tokens = rows.emplace_back();
    for (const int64_t t : to_integers(row, {"beam_search", "sources"})) {
      MH_CHECK(t >= 0 && t <= INT32_MAX, ValueError, "beam_search: token ", t, " is outside the vocabulary");
      tokens.push_back(static_cast<int32_t>(t));
    }
  }
  return rows;
}

models::PackedSeq2Seq packed(const Seq2Seq& model, const BeamKeywords& words) {
  const models::WeightDtype dtype = kernels::parse_weight_dtype(words.weight_dtype);
  return unlocked([&] { return models::PackedSeq2Seq(model, dtype); });
}

// Per source, [(tokens, score)], best first.
nb::list beam_search_call(const Seq2Seq& seq2seq, nb::handle sources, const BeamKeywords& words) {
  const std::vector<std::vector<int32_t>> rows = to_sources(sources);
  const models::PackedSeq2Seq model = packed(seq2seq, words);
  Interrupt interrupt;
  BeamOptions options = words.options;
  options.should_stop = [&] { return interrupt.came(); };
  const auto found = unlocked([&] { return beam_search(model, rows, options); });
  interrupt.raise_if_any();
  nb::list result;
  for (const auto& hypotheses : found) {
    nb::list best;
    for (const Hypothesis& h : hypotheses) best.append(nb::make_tuple(nb::cast(h.tokens), h.score));
    result.append(best);
  }
  return result;
}

struct Translator : train::LoadedTranslator {
  BeamOptions defaults;  // of the folder's generation_config.json
};

Translator load_translator(const Path& folder) {
  Translator loaded{train::load_translator(folder), {}};
  apply(models::load_generation_config(folder), loaded.model.config(), loaded.defaults);
  return loaded;
}

nb::object translate_call(const Translator& t, nb::handle texts, const BeamKeywords& words,
                          const std::string& source_lang, const std::string& target_lang) {
  const bool single = PyUnicode_Check(texts.ptr());
  std::vector<std::string> lines;
  if (single) {
    lines.push_back(nb::cast<std::string>(texts));
  } else {
    for (nb::handle text : texts) {
      if (!PyUnicode_Check(text.ptr()))
        throw nb::type_error("translate: texts must be a str or a list of str");
      lines.push_back(nb::cast<std::string>(text));
    }
  }
  const models::PackedSeq2Seq model = packed(t.model, words);
  Interrupt interrupt;
  TranslateOptions options{
      .beam = words.options, .source_language = source_lang, .target_language = target_lang};
  options.beam.should_stop = [&] { return interrupt.came(); };
  const auto found =
      unlocked([&] { return translate(model, t.tokenizers.source, t.tokenizers.target, lines, options); });
  interrupt.raise_if_any();
  nb::list result;
  for (const auto& translations : found) {
    nb::list best;
    for (const Translation& x : translations) best.append(to_str(x.text));
    result.append(words.options.num_hypotheses == 1 && nb::len(best) == 1 ? nb::object(best[0])
                                                                          : nb::object(best));
  }
  return single ? nb::object(result[0]) : nb::object(result);
}

void bind_translator(nb::module_& m) {
  nb::class_<Translator> c(m, "Translator", "An encoder-decoder model with its tokenizers.");
  c.def_static(
      "load", [](const Path& folder) { return unlocked([&] { return load_translator(folder); }); },
      "folder"_a,
      "Loads a folder of Marian, BART, mBART or T5: config.json, model.safetensors, tokenizers and\n"
      "generation_config.json.");
  c.def_prop_ro(
      "model", [](Translator& t) -> Seq2Seq& { return t.model; }, nb::rv_policy::reference_internal);
  c.def_prop_ro("source_tokenizer", [](const Translator& t) { return t.tokenizers.source; });
  c.def_prop_ro("target_tokenizer", [](const Translator& t) { return t.tokenizers.target; });
  def_search<std::string, std::string>(
      c, "translate", "texts", [](const Translator& t) { return t.defaults; }, translate_call,
      "The translation of one str, or of each in a list; lists of them, best first, if num_hypotheses > "
      "1.\nWhat is None is as the folder's generation_config.json says, else as for Seq2Seq.beam_search.\n"
      "weight_dtype 'int8' quantises weights and their inputs: faster, nearly the same "
      "translations.\nsample samples num_hypotheses translations (beam_size 1) with temperature, top_k, "
      "top_p, min_p and seed. source_lang and\ntarget_lang: the tokens of languages (\"eng_Latn\"), for "
      "models of many (NLLB, M2M100, mBART).",
      "source_lang"_a = "", "target_lang"_a = "");
}

// Decoding step by step: what beam_search does for a loop of one's own.
void bind_steps(nb::class_<Seq2Seq>& c) {
  c.def(
      "encode",
      [](const Seq2Seq& model, nb::handle source, nb::handle lengths, Rng* rng) {
        const auto from = to_batch("encode", source, lengths);
        return unlocked([&] { return model.encode(from, rng); });
      },
      "source"_a, nb::kw_only(), "source_lengths"_a = nb::none(), "rng"_a = nb::none(),
      "The encoder's output [B, Ts, embed_dim].");
  c.def(
      "start",
      [](const Seq2Seq& model, nb::handle source, nb::handle lengths, int64_t capacity, nb::handle dtype) {
        const auto from = to_batch("start", source, lengths);
        std::optional<Dtype> type;
        if (!dtype.is_none()) type = to_dtype(dtype);
        return unlocked([&] { return model.start(from, capacity, type); });
      },
      "source"_a, nb::kw_only(), "source_lengths"_a = nb::none(), "capacity"_a, "dtype"_a = nb::none(),
      "A DecodeState for `capacity` target tokens per row; encodes and projects the source once.");
  c.def(
      "step",
      [](const Seq2Seq& model, nb::handle tokens, nn::DecodeState& state, nb::handle counts) {
        const Tensor t = to_tensor(tokens, {"step", "tokens"});
        models::Seq2SeqStep call;
        if (!counts.is_none()) call.counts = to_integers(counts, {"step", "counts"});
        return unlocked([&] { return model.step(t, state, call); });
      },
      "tokens"_a, "state"_a, nb::kw_only(), "counts"_a = nb::none(),
      "Logits [B, T, V] of the next target tokens [B, T] (decoder_start_id first), which are appended to "
      "the\nstate: counts[b] of row b, all by default.");
}

void bind_parts_of_model(nb::class_<Seq2Seq>& c) {
  bind_part(c, "source_embedding", &Seq2Seq::source_embedding);
  bind_part(c, "target_embedding", &Seq2Seq::target_embedding);
  bind_part(c, "source_positions", &Seq2Seq::source_positions);
  bind_part(c, "target_positions", &Seq2Seq::target_positions);
  bind_part(c, "encoder_bias", &Seq2Seq::encoder_bias);
  bind_part(c, "decoder_bias", &Seq2Seq::decoder_bias);
  bind_part(c, "source_norm", &Seq2Seq::source_norm);
  bind_part(c, "target_norm", &Seq2Seq::target_norm);
  bind_part(c, "transformer", &Seq2Seq::transformer);
  bind_weight(c, "output_weight", &Seq2Seq::output_weight);
  bind_weight(c, "output_bias", &Seq2Seq::output_bias);
}

void bind_model(nb::module_& m) {
  nb::class_<Seq2Seq> c(
      m, "Seq2Seq", "An encoder-decoder Transformer: source [B, Ts], target [B, Tt] -> logits [B, Tt, V].");
  bind_config(c, &Seq2Seq::config);
  c.def(
      "__call__",
      [](const Seq2Seq& model, nb::handle source, nb::handle target, nb::handle lengths, Rng* rng) {
        const auto from = to_batch("Seq2Seq", source, lengths), to = to_batch("Seq2Seq", target, nb::none());
        return unlocked([&] { return model(from, to, rng); });
      },
      "source"_a, "target"_a, nb::kw_only(), "source_lengths"_a = nb::none(), "rng"_a = nb::none(),
      "Logits; `target` is the decoder's input, decoder_start_id first. Source padding is never attended "
      "to.");
  c.def(
      "loss",
      [](const Seq2Seq& model, nb::handle source, nb::handle target, nb::handle labels, nb::handle lengths,
         Rng* rng, double label_smoothing) {
        const auto from = to_batch("loss", source, lengths), to = to_batch("loss", target, nb::none());
        const Tensor y = to_tensor(labels, {"loss", "labels"});
        return unlocked([&] { return model.loss(from, to, y, rng, label_smoothing); });
      },
      "source"_a, "target"_a, "labels"_a, nb::kw_only(), "source_lengths"_a = nb::none(),
      "rng"_a = nb::none(), "label_smoothing"_a = 0.0,
      "Mean cross-entropy in nats of `labels` [B, Tt]; labels -100 are ignored.");
  def_search(
      c, "beam_search", "sources", [](const Seq2Seq&) { return BeamOptions(); },
      [](const Seq2Seq& model, nb::handle sources, const BeamKeywords& words) {
        return beam_search_call(model, sources, words);
      },
      "Per source (a list of token ids, the end token included), [(tokens, score), ...], best first. "
      "None stands for\nbeam_size 4, max_length 256, both penalties 1 and otherwise for off. suppress: "
      "forbidden\ntoken sequences; prefixes: per source, the first tokens of the target; "
      "first_token: of every target, at no\ncost (forced_bos_token_id); stop_early: early_stopping of "
      "transformers. sample samples num_hypotheses\ninstead of searching (beam_size 1), with temperature, "
      "top_k, top_p, min_p and seed.");
  bind_save(c, &save_with_defaults,
            "Writes config.json, model.safetensors and generation_config.json as a Hugging Face family "
            "(Marian, BART, "
            "mBART, T5)\nif one can express the model.");
  c.def_static(
      "load", [](const Path& folder) { return unlocked([&] { return models::load_seq2seq(folder); }); },
      "folder"_a);
  m.def(
      "is_seq2seq_folder",
      [](const Path& folder) { return unlocked([&] { return models::is_seq2seq_folder(folder); }); },
      "folder"_a, "Whether config.json is a Seq2Seq's.");
  bind_steps(c);
  bind_parts_of_model(c);
  bind_adapter(c);
  bind_module(c, "Seq2Seq");
}

}  // namespace

void bind_seq2seq(nb::module_& m) {
  bind_seq2seq_config(m);
  bind_model(m);
  bind_translator(m);
}

}  // namespace multihead::python
