// Pages of attention, for notebooks.
#include "multihead/look/look.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/look/attention_page.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/modules.h"

namespace multihead::python {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

template <size_t N>
std::vector<std::array<int64_t, N>> rows_of(const char* what, const Lists& lists) {
  std::vector<std::array<int64_t, N>> rows;
  for (const std::vector<int64_t>& list : lists) {
    MH_CHECK(list.size() == N, ValueError, "attend: an entry of ", what, " has ", N, " numbers, got ",
             list.size());
    std::copy(list.begin(), list.end(), rows.emplace_back().begin());
  }
  return rows;
}

look::Look to_look(const std::vector<int64_t>& layers, const std::vector<int64_t>& heads, const Lists& off,
                   const Lists& cut) {
  return {.layers = layers, .heads = heads, .off = rows_of<2>("off", off), .cut = rows_of<4>("cut", cut)};
}

std::string html_of(const std::string& title, const std::vector<std::string>& titles,
                    std::vector<look::AttentionRun> runs) {
  for (size_t i = 0; i < runs.size(); ++i) runs[i].title = titles[i];
  const int bits = look::bits_for(runs);
  return look::to_html({.title = title, .runs = std::move(runs), .bits = bits});
}

}  // namespace

void bind_look(nb::module_& m) {
  m.def(
      "attention_page",
      [](const models::LanguageModel& model, const text::Tokenizer& tokenizer, const std::string& title,
         const std::vector<std::string>& texts, const std::vector<int64_t>& layers,
         const std::vector<int64_t>& heads, std::optional<bool> measures, const Lists& off,
         const Lists& cut) {
        return unlocked([&] {
          std::vector<look::AttentionRun> runs;
          for (const std::string& text : texts) {
            look::Look wanted = to_look(layers, heads, off, cut);
            const auto tokens = static_cast<int64_t>(tokenizer.encode(text).size());
            constexpr double kSomeSeconds = 2e11;
            wanted.measures =
                measures.value_or(look::cost_of_measures(model.config(), tokens) < kSomeSeconds);
            runs.push_back(look::look(model, tokenizer, text, wanted));
          }
          return html_of(title, texts, std::move(runs));
        });
      },
      "model"_a, "tokenizer"_a, "title"_a, "texts"_a, "layers"_a, "heads"_a, "measures"_a.none(), "off"_a,
      "cut"_a);
  m.def(
      "attention_page",
      [](const models::Encoder& model, const text::Tokenizer& tokenizer, const std::string& title,
         const std::vector<std::string>& texts, const std::vector<int64_t>& layers,
         const std::vector<int64_t>& heads, std::optional<bool> measures, const Lists& off,
         const Lists& cut) {
        return unlocked([&] {
          std::vector<look::AttentionRun> runs;
          for (const std::string& text : texts) {
            look::Look wanted = to_look(layers, heads, off, cut);
            wanted.measures = measures.value_or(true);
            runs.push_back(look::look(model, tokenizer, text, wanted));
          }
          return html_of(title, texts, std::move(runs));
        });
      },
      "model"_a, "tokenizer"_a, "title"_a, "texts"_a, "layers"_a, "heads"_a, "measures"_a.none(), "off"_a,
      "cut"_a);
  m.def(
      "attention_page",
      [](const models::Seq2Seq& model, const text::Tokenizer& source_tokenizer,
         const text::Tokenizer& tokenizer, const std::string& title, const std::vector<std::string>& texts,
         const std::string& target, const std::vector<int64_t>& layers, const std::vector<int64_t>& heads) {
        return unlocked([&] {
          std::vector<look::AttentionRun> runs;
          for (const std::string& text : texts) {
            runs.push_back(look::look(model, source_tokenizer, tokenizer, text, runs.empty() ? target : "",
                                      to_look(layers, heads, {}, {})));
          }
          return html_of(title, texts, std::move(runs));
        });
      },
      "model"_a, "source_tokenizer"_a, "tokenizer"_a, "title"_a, "texts"_a, "target"_a, "layers"_a,
      "heads"_a);
}

}  // namespace multihead::python
