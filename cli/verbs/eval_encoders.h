// multihead eval for encoders: how well those of a file are classified, found, ranked or tagged.
#pragma once

#include <string>

#include "cli/verb.h"
#include "multihead/text/corpus/table.h"

namespace multihead::cli {

struct EncoderTest {
  std::string folder, data;
  text::TableFormat format = text::TableFormat::by_name;
  std::string predictions;  ///< a TSV file to write; empty: none
  std::string page;         ///< an HTML file to write, of a classifier; empty: none
};

/// Texts with labels. One label: pairs with degrees of relevance, a reranker's.
int eval_classifier(const EncoderTest& test, const CommonOptions& common);
/// Images in folders called by their labels.
int eval_images(const EncoderTest& test, const CommonOptions& common);
/// Texts with marked spans (text/corpus/spans.h).
int eval_tagger(const EncoderTest& test, const CommonOptions& common);
/// Pairs of a query and its document, or of texts with a score.
int eval_embedder(const EncoderTest& test, const CommonOptions& common);

/// A finite number. Throws InputError: at `where`, `what` must be one.
double number_in(const std::string& text, const std::string& what, const std::string& where);
/// A cell of a TSV file.
std::string cell(const std::string& text);

}  // namespace multihead::cli
