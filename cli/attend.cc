// multihead attend
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>

#include "cli/attention_page.h"
#include "cli/model_dir.h"
#include "cli/streams.h"
#include "multihead/core/files.h"
#include "multihead/core/json.h"
#include "multihead/generate/beam_search.h"
#include "multihead/io/json.h"
#include "multihead/models/hugging_face.h"
#include "multihead/text/token_labels.h"

namespace multihead::cli {
namespace {

using Ids = std::vector<int32_t>;

Tensor as_row(const Ids& ids) { return Tensor::of({1, static_cast<int64_t>(ids.size())}, ids); }

using Numbers = std::vector<int64_t>;

Numbers all_of(int64_t count) {
  Numbers numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// "0,3-5" of `count`; "" is all. In order, each once.
Numbers selected(const char* flag, const std::string& text, int64_t count) {
  if (text.empty()) return all_of(count);
  std::set<int64_t> chosen;
  const auto wrong = [&] {
    return UsageError(fmt::format("{}: expected numbers and ranges from 0 to {}, like 0,2-4; got {}", flag,
                                  count - 1, quote(text)));
  };
  const auto number = [&](const std::string& digits) {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value >= count)
      throw wrong();
    return value;
  };
  std::istringstream parts(text + ",");  // a comma at the end asks for another number
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int64_t first = number(part.substr(0, dash));
    const int64_t last = dash == std::string::npos ? first : number(part.substr(dash + 1));
    if (last < first) throw wrong();
    for (int64_t i = first; i <= last; ++i) chosen.insert(i);
  }
  return {chosen.begin(), chosen.end()};
}

// What --layers and --heads say.
struct Selection {
  std::string layers, heads;
};

// One stack to be looked at: what to capture, and the view that it becomes.
struct Stack {
  AttentionView view;
  std::vector<AttentionCapture> captures;  // one per layer of the model

  Stack(std::string name, int64_t layer_count, const Numbers& layers, int64_t head_count,
        const Numbers& heads) {
    view.name = std::move(name);
    view.all_layers = layer_count, view.all_heads = head_count;
    std::copy_if(layers.begin(), layers.end(), std::back_inserter(view.layers),
                 [&](int64_t layer) { return layer < layer_count; });
    view.heads = heads;
    captures.resize(static_cast<size_t>(layer_count));
    for (AttentionCapture& capture : captures) {
      capture.weights_wanted = false;
      capture.heads = heads;
    }
    for (const int64_t layer : view.layers) captures[static_cast<size_t>(layer)].weights_wanted = true;
  }

  // A stack may have none of the chosen layers.
  void add_to(std::vector<AttentionView>& views) {
    if (view.layers.empty()) return;
    for (const int64_t layer : view.layers) {
      view.weights.push_back(std::move(captures[static_cast<size_t>(layer)].weights));
    }
    views.push_back(std::move(view));
  }
};

constexpr double kMiB = 1 << 20, kLimit = 96 * kMiB;

// The bits of the weights that keep the page small enough, before anything is computed.
int bits_for(const std::vector<AttentionView>& views) {
  for (const int bits : {16, 8}) {
    if (stored_bytes(views, bits) <= kLimit) return bits;
  }
  const AttentionView& largest = *std::max_element(
      views.begin(), views.end(),
      [](const AttentionView& a, const AttentionView& b) { return a.weight_count() < b.weight_count(); });
  throw UsageError(
      fmt::format("{} layers of {} heads on {} x {} tokens would make a page of {:.0f} MiB, more than "
                  "{:.0f}, even with 8 "
                  "bits per weight; choose some with --layers and --heads, or give a shorter text",
                  largest.layers.size(), largest.heads.size(), largest.queries.size(), largest.keys.size(),
                  stored_bytes(views, 8) / kMiB, kLimit / kMiB));
}

AttentionPage look(const LoadedModel& loaded, const std::string& text, const Selection& selection) {
  const Ids ids = loaded.tokenizer.encode(text);
  const models::LanguageModelConfig& config = loaded.model.config();
  const Numbers layers = selected("--layers", selection.layers, config.num_layers),
                heads = selected("--heads", selection.heads, config.num_heads);
  Stack stack("Self-attention", config.num_layers, layers, config.num_heads, heads);
  stack.view.causal = true;
  stack.view.queries = stack.view.keys = text::token_labels(loaded.tokenizer, ids);
  const int bits = bits_for({stack.view});
  loaded.model.features(as_row(ids), {.capture = &stack.captures});
  AttentionPage page;
  page.bits = bits;
  stack.add_to(page.views);
  return page;
}

AttentionPage look(const LoadedTranslator& loaded, const std::string& source_text,
                   const std::string& target_text, const Selection& selection) {
  const models::Seq2Seq& model = loaded.model;
  const text::Tokenizer &source_tokenizer = loaded.tokenizers.source, &tokenizer = loaded.tokenizers.target;
  const models::Seq2SeqConfig& config = model.config();
  const auto eos = static_cast<int32_t>(config.eos_id), start = static_cast<int32_t>(config.decoder_start_id);
  Ids source = source_tokenizer.encode(source_text);
  std::vector<std::string> source_labels = text::token_labels(source_tokenizer, source);
  source.push_back(eos), source_labels.emplace_back("<end>");
  const int64_t deepest = std::max(config.encoder_layers, config.decoder_layers);
  const Numbers layers = selected("--layers", selection.layers, deepest),
                heads = selected("--heads", selection.heads, config.num_heads);
  Stack cross("Cross-attention: target to source", config.decoder_layers, layers, config.num_heads, heads);
  Stack encoder("Encoder: source to source", config.encoder_layers, layers, config.num_heads, heads);
  Stack decoder("Decoder: target to target", config.decoder_layers, layers, config.num_heads, heads);
  decoder.view.causal = true;

  Ids target =
      target_text.empty() ? beam_search(model, {source})[0][0].tokens : tokenizer.encode(target_text);
  std::vector<std::string> target_labels = text::token_labels(tokenizer, target);
  target.insert(target.begin(), start), target_labels.insert(target_labels.begin(), "<start>");
  cross.view.queries = decoder.view.queries = decoder.view.keys = target_labels;
  cross.view.keys = encoder.view.queries = encoder.view.keys = source_labels;
  const int bits = bits_for({cross.view, encoder.view, decoder.view});

  const models::TokenBatch batch{as_row(source), {static_cast<int64_t>(source.size())}};
  model.encode(batch, nullptr, &encoder.captures);
  nn::DecodeState state = model.start(batch, static_cast<int64_t>(target.size()));
  model.step(as_row(target), state, {.capture = &decoder.captures, .cross_capture = &cross.captures});
  AttentionPage page;
  page.bits = bits;
  for (Stack* stack : {&cross, &encoder, &decoder}) stack->add_to(page.views);
  return page;
}

class Attend : public Verb {
 public:
  Attend()
      : Verb("attend", "a page that shows where a model looks",
             {{"multihead attend model --text \"It was a fine day\" --out page.html",
               "open page.html in a browser"},
              {"multihead attend model --text - --layers 0,5-7 --heads 0-3 --out page.html <chapter.txt",
               "some layers and heads of a long text"},
              {"multihead attend translator --source \"Good morning.\" --out page.html",
               "its translation and the cross-attention"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.text("text", "TEXT", text_, "what the model reads; - reads stdin; translators: the translation");
    flags.text("source", "TEXT", source_, "translators: the sentence to translate");
    flags.text("out", "FILE", out_, "the HTML file to write");
    flags.text("layers", "LIST", selection_.layers, "these layers only: 0,2-4 (default: all)");
    flags.text("heads", "LIST", selection_.heads, "these heads only: 0,2-4 (default: all)");
  }

  int run(const CommonOptions& common) override {
    if (out_.empty()) throw UsageError("--out FILE is required");
    const bool translator = reading([&] { return models::is_seq2seq_folder(folder_); });
    AttentionPage page;
    if (translator) {
      if (source_.empty()) throw UsageError("a translator needs --source TEXT");
      page = look(load_translator_dir(folder_), source_, text_or_stdin(text_), selection_);
      page.title = title(source_);
    } else {
      if (!source_.empty())
        throw UsageError("--source is for translators; this is a language model, give --text");
      const LoadedModel loaded = load_model_dir(folder_);
      const std::string text = text_or_stdin(text_);
      if (text.empty()) throw UsageError("the text is empty; give --text TEXT");
      page = look(loaded, text, selection_);
      page.title = title(text);
    }
    for (const AttentionView& view : page.views) check_numbers(view);
    const std::string html = to_html(page);
    write_file_atomically(out_, html);
    report(common, page, html.size());
    return kDone;
  }

 private:
  // A page of zeros would say nothing of weights that are NaN.
  void check_numbers(const AttentionView& view) const {
    for (const Tensor& layer : view.weights) {
      for (const float weight : layer.to_vector<float>())
        check_number(folder_, "an attention weight", weight);
    }
  }

  std::string title(const std::string& text) const {
    const std::filesystem::path folder = std::filesystem::path(folder_ + "/").parent_path();
    const size_t shown = complete_utf8(std::string_view(text).substr(0, 80));
    return concat("Attention of ", folder.filename().string(), ": ", text.substr(0, shown),
                  shown < text.size() ? "…" : "");
  }

  void report(const CommonOptions& common, const AttentionPage& page, size_t bytes) const {
    Json views = Json::array();
    for (const AttentionView& view : page.views) {
      views.push_back(Json::object({{"name", view.name},
                                    {"layers", view.layers.size()},
                                    {"heads", view.heads.size()},
                                    {"queries", view.queries.size()},
                                    {"keys", view.keys.size()}}));
    }
    if (common.json) {
      put_json(Json::object(
          {{"out", io::path_to_json(out_)}, {"bytes", bytes}, {"bits", page.bits}, {"views", views}}));
    } else {
      fmt::print("{}: {} KiB{}\n", printable(out_), (bytes + 1023) / 1024,
                 page.bits == 16 ? "" : "; weights in 8 bits, off by up to 0.004: there are many");
    }
  }

  std::string folder_, text_, source_, out_;
  Selection selection_;
};

}  // namespace

std::unique_ptr<Verb> make_attend() { return std::make_unique<Attend>(); }

}  // namespace multihead::cli
