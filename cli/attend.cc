// multihead attend
#include <fmt/format.h>

#include <filesystem>

#include "cli/attention_page.h"
#include "cli/model_dir.h"
#include "multihead/core/files.h"
#include "multihead/generate/beam_search.h"
#include "multihead/models/marian.h"

namespace multihead::cli {
namespace {

using Ids = std::vector<int32_t>;

Tensor as_row(const Ids& ids) { return Tensor::of({1, static_cast<int64_t>(ids.size())}, ids); }

std::vector<std::string> texts(const text::Tokenizer& tokenizer, const Ids& ids) {
  std::vector<std::string> result;
  for (const int32_t id : ids) result.push_back(tokenizer.decode(std::span(&id, 1)));
  return result;
}

std::vector<Tensor> weights(const std::vector<AttentionCapture>& captures) {
  std::vector<Tensor> result;
  for (const AttentionCapture& capture : captures) result.push_back(capture.weights);
  return result;
}

std::vector<AttentionCapture> captures(int64_t layers) {
  return std::vector<AttentionCapture>(static_cast<size_t>(layers));
}

// What the page would hold, before anything is computed.
void check_size(int64_t layers, int64_t heads, int64_t queries, int64_t keys) {
  const double bytes = 8.0 / 3 * static_cast<double>(layers * heads) * static_cast<double>(queries) *
                       static_cast<double>(keys);
  constexpr double kMiB = 1 << 20, kLimit = 64 * kMiB;
  if (bytes <= kLimit) return;
  throw UsageError(
      fmt::format("{} layers of {} heads on {} x {} tokens would make a page of {:.0f} MiB, more than "
                  "{:.0f}; give a shorter text",
                  layers, heads, queries, keys, bytes / kMiB, kLimit / kMiB));
}

std::vector<AttentionView> look(const LoadedModel& loaded, const std::string& text) {
  const Ids ids = loaded.tokenizer.encode(text);
  const models::LanguageModelConfig& config = loaded.model.config();
  const auto length = static_cast<int64_t>(ids.size());
  check_size(config.num_layers, config.num_heads, length, length);
  auto captured = captures(config.num_layers);
  loaded.model.features(as_row(ids), {.capture = &captured});
  const auto tokens = texts(loaded.tokenizer, ids);
  return {{"Self-attention", tokens, tokens, weights(captured)}};
}

std::vector<AttentionView> look(const LoadedTranslator& loaded, const std::string& source_text,
                                const std::string& target_text) {
  const models::Seq2Seq& model = loaded.model;
  const text::Tokenizer &source_tokenizer = loaded.tokenizers.source, &tokenizer = loaded.tokenizers.target;
  const models::Seq2SeqConfig& config = model.config();
  const auto eos = static_cast<int32_t>(config.eos_id), start = static_cast<int32_t>(config.decoder_start_id);
  Ids source = source_tokenizer.encode(source_text);
  source.push_back(eos);
  Ids target =
      target_text.empty() ? beam_search(model, {source})[0][0].tokens : tokenizer.encode(target_text);
  target.insert(target.begin(), start);
  const auto sources = static_cast<int64_t>(source.size()), targets = static_cast<int64_t>(target.size());
  check_size(config.encoder_layers + 2 * config.decoder_layers, config.num_heads, std::max(sources, targets),
             std::max(sources, targets));

  auto encoder = captures(config.encoder_layers);
  auto decoder = captures(config.decoder_layers), cross = captures(config.decoder_layers);
  const models::TokenBatch batch{as_row(source), {sources}};
  model.encode(batch, nullptr, &encoder);
  nn::DecodeState state = model.start(batch, targets);
  model.step(as_row(target), state, {.capture = &decoder, .cross_capture = &cross});

  auto source_tokens = texts(source_tokenizer, source), target_tokens = texts(tokenizer, target);
  source_tokens.back() = "<end>", target_tokens.front() = "<start>";
  return {{"Cross-attention: target to source", target_tokens, source_tokens, weights(cross)},
          {"Encoder: source to source", source_tokens, source_tokens, weights(encoder)},
          {"Decoder: target to target", target_tokens, target_tokens, weights(decoder)}};
}

class Attend : public Verb {
 public:
  std::string name() const override { return "attend"; }
  std::string summary() const override { return "a page that shows where a model looks"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {{"multihead attend model --text \"It was a fine day\" --out page.html",
             "open page.html in a browser"},
            {"multihead attend translator --source \"Good morning.\" --out page.html",
             "its translation and the cross-attention"}};
  }

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("text", "TEXT", text_, "what the model reads; - reads stdin; translators: the translation");
    flags.text("source", "TEXT", source_, "translators: the sentence to translate");
    flags.text("out", "FILE", out_, "the HTML file to write");
  }

  int run(const CommonOptions& common) override {
    if (out_.empty()) throw UsageError("--out FILE is required");
    const bool translator = reading([&] { return models::is_seq2seq_folder(folder_); });
    AttentionPage page;
    if (translator) {
      if (source_.empty()) throw UsageError("a translator needs --source TEXT");
      page.views = look(load_translator_dir(folder_), source_, text_or_stdin(text_));
      page.title = title(source_);
    } else {
      if (!source_.empty())
        throw UsageError("--source is for translators; this is a language model, give --text");
      const LoadedModel loaded = load_model_dir(folder_);
      const std::string text = text_or_stdin(text_);
      if (text.empty()) throw UsageError("the text is empty; give --text TEXT");
      page.views = look(loaded, text);
      page.title = title(text);
    }
    const std::string html = to_html(page);
    write_file_atomically(out_, html);
    report(common, page, html.size());
    return kDone;
  }

 private:
  std::string title(const std::string& text) const {
    const std::filesystem::path folder = std::filesystem::path(folder_ + "/").parent_path();
    const size_t shown = text::complete_utf8(std::string_view(text).substr(0, 80));
    return concat("Attention of ", folder.filename().string(), ": ", text.substr(0, shown),
                  shown < text.size() ? "…" : "");
  }

  void report(const CommonOptions& common, const AttentionPage& page, size_t bytes) const {
    Json views = Json::array();
    for (const AttentionView& view : page.views) {
      views.push_back(Json::object({{"name", view.name},
                                    {"layers", static_cast<int64_t>(view.layers.size())},
                                    {"heads", view.layers[0].size(1)},
                                    {"queries", static_cast<int64_t>(view.queries.size())},
                                    {"keys", static_cast<int64_t>(view.keys.size())}}));
    }
    if (common.json) {
      fmt::print(
          "{}\n",
          Json::object({{"out", out_}, {"bytes", static_cast<int64_t>(bytes)}, {"views", views}}).dump(2));
    } else {
      fmt::print("{}: {} KiB\n", out_, (bytes + 1023) / 1024);
    }
  }

  std::string folder_, text_, source_, out_;
};

}  // namespace

std::unique_ptr<Verb> make_attend() { return std::make_unique<Attend>(); }

}  // namespace multihead::cli
