// Texts with marked spans, for taggers: names, places, versions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/text/tokenizer/tokenizer.h"

namespace multihead::text {

struct Span {
  Offsets place;  ///< bytes of the text
  std::string label;
  bool operator==(const Span& other) const {
    return place.begin == other.place.begin && place.end == other.place.end && label == other.label;
  }
};

struct SpannedText {
  std::string text;
  std::vector<Span> spans = {};  ///< in their order
  int64_t line = 0;              ///< of the file
  bool has_words = false;        ///< of the file, which a space ends: CoNLL's
};

/// A place of a text without the blanks at its edges.
Offsets without_spaces(std::string_view text, Offsets place);

/// JSON Lines, {"text": …, "entities": [{"start", "end", "label"}]}, whose places count characters and lose blanks at
/// their edges, which tools for annotating often mark, too; or columns as CoNLL has them: a word and its tag (B-X
/// begins an X, I-X goes on or, after another, begins one, O is none) in the first and the last on every line, a blank
/// line between texts, whose words a space joins. All lines have as many columns, between TABs if the file has any,
/// else between spaces; there are no comments. Throws FormatError naming the line, also what check_spans throws.
std::vector<SpannedText> read_spans(const std::string& path);
std::vector<SpannedText> parse_spans(std::string_view content, const std::string& where);
/// Throws FormatError for an entity without a label or with the label "O", and for two that overlap, naming `where` and
/// the line.
void check_spans(const std::vector<SpannedText>& texts, const std::string& where);

}  // namespace multihead::text
