// Pages of attention, for notebooks.
#include "multihead/look/look.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/look/attention_page.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"
#include "python/src/tensor/convert.h"

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

std::string html_of(const std::string& title, const std::vector<std::string>& titles,
                    std::vector<look::AttentionRun> runs) {
  for (size_t i = 0; i < runs.size(); ++i) runs[i].title = titles[i];
  const int bits = look::bits_for(runs);
  return look::to_html({.title = title, .runs = std::move(runs), .bits = bits});
}

// Whether what the layers predict and heads are worth takes seconds at most.
bool is_quick(const models::LanguageModel& model, int64_t tokens) {
  constexpr double kSomeSeconds = 2e11;
  return look::cost_of_measures(model.config(), tokens) < kSomeSeconds;
}
bool is_quick(const models::Encoder&, int64_t) { return true; }

template <class Model>
void bind_page(nb::module_& m) {
  m.def(
      "attention_page",
      [](const Model& model, const text::Tokenizer& tokenizer, const std::string& title,
         const std::vector<std::string>& texts, const std::vector<int64_t>& layers,
         const std::vector<int64_t>& heads, const std::vector<int64_t>& rows, std::optional<bool> measures,
         const Lists& off, const Lists& cut) {
        return unlocked([&] {
          std::vector<look::AttentionRun> runs;
          for (const std::string& text : texts) {
            look::Look wanted = {.layers = layers, .heads = heads, .rows = rows};
            wanted.off = rows_of<2>("off", off), wanted.cut = rows_of<4>("cut", cut);
            wanted.measures = measures.value_or(is_quick(model, std::ssize(tokenizer.encode(text))));
            runs.push_back(look::look(model, tokenizer, text, wanted));
          }
          return html_of(title, texts, std::move(runs));
        });
      },
      "model"_a, "tokenizer"_a, "title"_a, "texts"_a, "layers"_a, "heads"_a, "rows"_a, "measures"_a.none(),
      "off"_a, "cut"_a);
}

}  // namespace

void bind_look(nb::module_& m) {
  bind_page<models::LanguageModel>(m);
  bind_page<models::Encoder>(m);
  m.def(
      "attention_page",
      [](const models::Seq2Seq& model, const text::Tokenizer& source_tokenizer,
         const text::Tokenizer& tokenizer, const std::string& title, const std::vector<std::string>& texts,
         const std::string& target, const std::vector<int64_t>& layers, const std::vector<int64_t>& heads) {
        return unlocked([&] {
          std::vector<look::AttentionRun> runs;
          for (const std::string& text : texts) {
            runs.push_back(look::look(model, source_tokenizer, tokenizer, text, runs.empty() ? target : "",
                                      {.layers = layers, .heads = heads}));
          }
          return html_of(title, texts, std::move(runs));
        });
      },
      "model"_a, "source_tokenizer"_a, "tokenizer"_a, "title"_a, "texts"_a, "target"_a, "layers"_a,
      "heads"_a);
}

}  // namespace multihead::python
