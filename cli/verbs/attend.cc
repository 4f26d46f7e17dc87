// multihead attend
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/streams.h"
#include "cli/verbs/look_flags.h"
#include "multihead/core/files.h"
#include "multihead/io/json.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead::cli {
namespace {

class Attend : public Verb {
 public:
  Attend()
      : Verb("attend", "show a model's attention on an HTML page",
             {{"multihead attend model --text \"It was a fine day\" --out page.html",
               "open page.html in a browser"},
              {"multihead attend model --text \"He gave her\" --beside \"She gave him\" --out page.html",
               "two texts side by side; --beside-model DIR: two models"},
              {"multihead attend model --text - --layers 0,5-7 --heads 0-3 --rows 500-511 --out page.html "
               "<chapter.txt",
               "some layers, heads and queries of a long text"},
              {"multihead attend encoder --text \"The weather is [MASK] today.\" --out page.html",
               "an encoder, and its prediction for each position"},
              {"multihead attend translator --source \"Good morning.\" --out page.html",
               "its translation and the cross-attention"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("text", "TEXT", text_,
               "text to run the model on; - reads stdin; translators: the translation");
    flags.text("source", "TEXT", source_, "translators: the sentence to translate");
    flags.text("beside", "TEXT", beside_, "a second text to show beside it (translators: a second source)");
    flags.text("beside-model", "DIR", other_folder_, "a second model of the same kind to show beside it");
    flags.output("out", "FILE", out_, "the HTML file to write");
    selection_.declare(flags);
    flags.choice("measures", measures_, {"auto", "always", "never"},
                 "logit lens, head importance, attributions, queries and keys (auto: if fast)");
  }

  int run(const CommonOptions& common) override {
    if (out_.empty()) throw UsageError("--out FILE is required");
    const bool translator = reading([&] { return models::is_seq2seq_folder(folder_); });
    const bool encoder = reading([&] { return models::is_encoder_folder(folder_); });
    if (translator && source_.empty()) throw UsageError("a translator needs --source TEXT");
    if (!translator && !source_.empty())
      throw UsageError("--source is for translators; this is a language model, give --text");
    look::AttentionPage page;
    try {
      if (encoder) {
        add_encoders(page);
      } else {
        translator ? add_translators(page) : add_models(page);
      }
      page.bits = look::bits_for(page.runs);
      page.title = page.runs[0].title;
    } catch (const ValueError& error) {  // of the text or the flags; a model's are input errors by now
      throw UsageError(error.what());
    }
    const std::string html = to_html(page);
    write_file_atomically(out_, html);
    report(common, page, html.size());
    return kDone;
  }

 private:
  void add(look::AttentionPage& page, const std::string& folder, const std::string& text,
           look::AttentionRun run) const {
    check_numbers(folder, run);
    run.title = page_title(folder, text);
    page.runs.push_back(std::move(run));
  }

  void add_models(look::AttentionPage& page) {
    const LoadedModel loaded = load_model_dir(folder_);
    const std::string text = text_or_stdin(text_);
    if (text.empty()) throw UsageError("the text is empty; give --text TEXT");
    add(page, folder_, text, run_of(loaded, text));
    if (other_folder_.empty() && beside_.empty()) return;
    const std::string& folder = other_folder_.empty() ? folder_ : other_folder_;
    const std::string& second = beside_.empty() ? text : beside_;
    add(page, folder, second, run_of(other_folder_.empty() ? loaded : load_model_dir(folder), second));
    check_same_heads(page);
  }

  void add_encoders(look::AttentionPage& page) {
    if (!other_folder_.empty()) throw UsageError("--beside-model is for language models and translators");
    const models::Encoder encoder = reading([&] { return models::load_encoder(folder_); });
    const text::Tokenizer tokenizer =
        reading([&] { return text::Tokenizer::load(models::tokenizer_folder(folder_)); });
    const std::string text = text_or_stdin(text_);
    for (const std::string& one : beside_.empty() ? std::vector{text} : std::vector{text, beside_}) {
      const auto tokens = std::ssize(tokenizer.encode(one, {.parse_special = true, .add_template = true}));
      look::Look wanted = selection_.of(encoder.config().num_layers, encoder.config().num_heads, tokens);
      wanted.measures = measures_ != "never";
      add(page, folder_, one, look::look(encoder, tokenizer, one, wanted));
    }
  }

  void add_translators(look::AttentionPage& page) {
    if (!selection_.rows.empty()) throw UsageError("--rows is for language models and encoders");
    if (measures_ != "auto") throw UsageError("--measures is for language models and encoders");
    const LoadedTranslator loaded = load_translator_dir(folder_);
    const std::string text = text_or_stdin(text_);
    add(page, folder_, source_, run_of(loaded, source_, text));
    if (other_folder_.empty() && beside_.empty()) return;
    const std::string& folder = other_folder_.empty() ? folder_ : other_folder_;
    const std::string &second = beside_.empty() ? source_ : beside_, target = beside_.empty() ? text : "";
    add(page, folder, second,
        run_of(other_folder_.empty() ? loaded : load_translator_dir(folder), second, target));
    check_same_heads(page);
  }

  look::AttentionRun run_of(const LoadedModel& loaded, const std::string& text) const {
    constexpr double kSomeSeconds = 2e11;
    const double most = measures_ == "always" ? INFINITY : measures_ == "never" ? 0 : kSomeSeconds;
    return look_at(loaded, text, selection_, most);
  }

  look::AttentionRun run_of(const LoadedTranslator& loaded, const std::string& source,
                            const std::string& target) const {
    const models::Seq2SeqConfig& c = loaded.model.config();
    return look::look(loaded.model, loaded.tokenizers.source, loaded.tokenizers.target, source, target,
                      selection_.of(std::max(c.encoder_layers, c.decoder_layers), c.num_heads, 0));
  }

  // A selection applies to both runs, which must then have the same heads.
  static void check_same_heads(const look::AttentionPage& page) {
    const auto &a = page.runs[0].views, &b = page.runs[1].views;
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); ++i)
      same = a[i].layers == b[i].layers && a[i].heads == b[i].heads;
    if (!same)
      throw UsageError(
          "--beside-model: the models must have as many layers and heads; choose some of "
          "them with --layers and --heads");
  }

  void report(const CommonOptions& common, const look::AttentionPage& page, size_t bytes) const {
    Json views = Json::array();
    for (const look::AttentionRun& run : page.runs) {
      for (const look::AttentionView& view : run.views) {
        views.push_back(Json::object({{"name", view.name},
                                      {"layers", view.layers.size()},
                                      {"heads", view.heads.size()},
                                      {"queries", view.queries.size()},
                                      {"keys", view.keys.size()}}));
      }
    }
    if (common.json) {
      put_json(Json::object(
          {{"out", io::path_to_json(out_)}, {"bytes", bytes}, {"bits", page.bits}, {"views", views}}));
      return;
    }
    const bool plain = page.runs[0].lens.empty() && measures_ == "auto" && page.runs[0].views[0].causal;
    fmt::print("{}: {} KiB{}{}\n", printable(out_), (bytes + 1023) / 1024,
               page.bits == 16 ? "" : "; weights in 8 bits, off by up to 0.004: there are many",
               plain ? "; attention alone, see --measures" : "");
  }

  std::string folder_, other_folder_, text_, source_, beside_, out_, measures_ = "auto";
  Selection selection_;
};

}  // namespace

std::unique_ptr<Verb> make_attend() { return std::make_unique<Attend>(); }

}  // namespace multihead::cli
