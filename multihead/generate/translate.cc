#include "multihead/generate/translate.h"

#include <algorithm>
#include <numeric>

#include "multihead/core/error.h"
#include "multihead/text/languages.h"

namespace multihead {
namespace {

constexpr size_t kMostRows = 128;

// Indices of the texts by length, cut where the padded source tokens would exceed `limit`.
std::vector<std::vector<size_t>> batches_of(const std::vector<std::vector<int32_t>>& sources, size_t limit) {
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sources[a].size() > sources[b].size(); });
  std::vector<std::vector<size_t>> batches;
  for (const size_t i : order) {
    // The first of a batch is its longest.
    if (batches.empty() || batches.back().size() == kMostRows ||
        (batches.back().size() + 1) * sources[batches.back().front()].size() > limit) {
      batches.emplace_back();
    }
    batches.back().push_back(i);
  }
  return batches;
}

}  // namespace

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r") == text.npos; }

std::vector<int32_t> encode_source(const models::Seq2SeqConfig& config, const text::Tokenizer& tokenizer,
                                   const std::string& text, const std::string& what,
                                   const std::string& language) {
  MH_CHECK(!is_blank(text), ValueError, what, " is empty");
  std::vector<int32_t> ids;
  try {
    ids = text::encode_source(tokenizer, text, static_cast<int32_t>(config.eos_id), language);
  } catch (const ValueError& error) {
    throw ValueError(concat(what, ": ", error.what()));
  }
  MH_CHECK(static_cast<int64_t>(ids.size()) <= config.max_positions, ValueError, what, " has ", ids.size(),
           " tokens, the model reads at most ", config.max_positions, "; split it");
  return ids;
}

std::vector<std::vector<Translation>> translate(const models::PackedSeq2Seq& model,
                                                const text::Tokenizer& source, const text::Tokenizer& target,
                                                const std::vector<std::string>& texts,
                                                const TranslateOptions& options) {
  MH_CHECK(options.batch_tokens > 0, ValueError, "translate: batch_tokens must be positive, got ",
           options.batch_tokens);
  MH_CHECK(options.prefixes.empty() || options.prefixes.size() == texts.size(), ValueError,
           "translate: ", options.prefixes.size(), " prefixes for ", texts.size(), " texts");
  MH_CHECK(options.beam.prefixes.empty(), ValueError, "translate: give prefixes as texts");
  std::vector<std::vector<int32_t>> sources;
  std::vector<size_t> spoken;  // of the texts that say something
  for (size_t i = 0; i < texts.size(); ++i) {
    if (is_blank(texts[i])) continue;
    spoken.push_back(i);
    sources.push_back(
        encode_source(model.config(), source, texts[i], concat("text ", i + 1), options.source_language));
  }
  BeamOptions search = options.beam;
  search.suppress.push_back({static_cast<int32_t>(model.config().pad_id)});  // padding is no word
  if (!options.target_language.empty())
    search.first_token = text::language_token(target, options.target_language);
  // A blank text stays one, so that documents keep their lines.
  std::vector<std::vector<Translation>> results(texts.size(), {Translation()});
  for (const std::vector<size_t>& rows : batches_of(sources, static_cast<size_t>(options.batch_tokens))) {
    BeamOptions beam = search;
    std::vector<std::vector<int32_t>> batch;
    for (const size_t row : rows) {
      batch.push_back(sources[row]);
      if (options.prefixes.empty()) continue;  // of which the tokenizer's template is no part
      beam.prefixes.push_back(target.encode(options.prefixes[spoken[row]], {.add_template = false}));
    }
    std::vector<std::vector<Hypothesis>> found = beam_search(model, batch, beam);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::vector<Translation>& result = results[spoken[rows[i]]];
      result.clear();
      for (Hypothesis& hypothesis : found[i]) {
        std::string text = target.decode(hypothesis.tokens, {.skip_special = true});
        result.push_back({std::move(text), std::move(hypothesis)});
      }
    }
  }
  return results;
}

}  // namespace multihead
