#include "multihead/text/corpus/spans.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/json.h"
#include "multihead/core/text/utf8.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::text {
namespace {

// The byte at which each character begins, and the text's end.
std::vector<size_t> character_places(const std::string& text) {
  std::vector<size_t> places;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) places.push_back(i);
  }
  places.push_back(text.size());
  return places;
}

const Json& member(const Json& json, const char* key, const std::string& where) {
  const Json* value = json.is_object() ? json.find(key) : nullptr;
  MH_CHECK(value != nullptr, FormatError, where,
           ": expected {\"text\": …, \"entities\": [{\"start\", \"end\", ", "\"label\"}]}, \"", key,
           "\" is missing");
  return *value;
}

SpannedText spanned_from_json(std::string_view line, const std::string& where) {
  const Json json = Json::parse(line, where);
  SpannedText one = {.text = member(json, "text", where).as_string()};
  const std::vector<size_t> places = character_places(one.text);
  const auto most = std::ssize(places) - 1;
  const Json& list = member(json, "entities", where);
  MH_CHECK(list.is_array(), FormatError, where, ": \"entities\" must be an array");
  for (const Json& entity : list.items()) {
    const Json &first = member(entity, "start", where), &last = member(entity, "end", where);
    MH_CHECK(first.is_integer() && last.is_integer() && first.as_int() >= 0 &&
                 first.as_int() < last.as_int() && last.as_int() <= most,
             FormatError, where, ": an entity must lie within the ", most, " characters of the text, got [",
             first.dump(), ", ", last.dump(), ")");
    const Offsets place = without_spaces(
        one.text, {places[static_cast<size_t>(first.as_int())], places[static_cast<size_t>(last.as_int())]});
    MH_CHECK(place.begin < place.end, FormatError, where, ": the entity [", first.dump(), ", ", last.dump(),
             ") holds nothing but blanks");
    one.spans.push_back({place, member(entity, "label", where).as_string()});
  }
  std::ranges::sort(one.spans, {}, [](const Span& span) { return span.place.begin; });
  return one;
}

void add_word(SpannedText& one, std::string_view word, std::string_view tag) {
  const bool goes_on = tag.starts_with("I-");
  const bool is_next = !one.spans.empty() && one.spans.back().place.end == one.text.size();
  if (!one.text.empty()) one.text += ' ';
  const size_t begin = one.text.size();
  one.text += word;
  if (tag == "O") return;
  const std::string label(tag.substr(2));
  if (goes_on && is_next && one.spans.back().label == label) {
    one.spans.back().place.end = one.text.size();
  } else {
    one.spans.push_back({{begin, one.text.size()}, label});
  }
}

// Between TABs a column may be empty or hold spaces, as a word such as "10 000".
std::vector<std::string_view> columns_in(std::string_view line, bool has_tabs) {
  std::vector<std::string_view> columns;
  for (size_t begin = 0; begin < line.size();) {
    const size_t end = std::min(line.find(has_tabs ? '\t' : ' ', begin), line.size());
    const std::string_view column = trimmed(line.substr(begin, end - begin));
    if (has_tabs || !column.empty()) columns.push_back(column);
    begin = end + 1;
  }
  return columns;
}

// Lines of words with their tags, one after the other.
class TaggedWords {
 public:
  TaggedWords(const std::string& where, bool has_tabs) : where_(where), has_tabs_(has_tabs) {}

  void add(std::string_view line, int64_t number, std::vector<SpannedText>& all) {
    if (number != last_ + 1 || all.empty()) all.push_back({.text = "", .line = number, .has_words = true});
    last_ = number;
    if (line.starts_with("-DOCSTART-")) return;
    if (width_ == 0) begins_with_hash_ = line.starts_with("# ");
    const std::vector<std::string_view> columns = columns_in(trimmed_end(line), has_tabs_);
    check(columns, line);
    width_ = columns.size();
    add_word(all.back(), columns.front(), columns.back());
  }

 private:
  static std::string_view trimmed_end(std::string_view line) {
    return line.substr(0, line.find_last_not_of(" \t\r") + 1);
  }
  void check(const std::vector<std::string_view>& columns, std::string_view line) const {
    const std::string place = concat(where_, ": line ", last_);
    const char* hint = begins_with_hash_ || line.starts_with("# ")
                           ? "; lines that begin with \"# \" are not read as comments, as CoNLL-U has them: "
                             "remove them"
                           : "";
    MH_CHECK(columns.size() > 1 && !columns[0].empty(), FormatError, place, ": expected a word and its tag",
             has_tabs_ ? ", between which this file has TABs" : "", ", got ", quote(line, 40), hint);
    MH_CHECK(width_ == 0 || columns.size() == width_, FormatError, place, " has ", columns.size(),
             " columns, the lines before have ", width_, hint);
    const std::string_view tag = columns.back();
    MH_CHECK(tag == "O" || ((tag.starts_with("B-") || tag.starts_with("I-")) && tag.size() > 2), FormatError,
             place, ": a tag must be O, B-… or I-…, got ", quote(tag, 40), hint);
  }

  const std::string& where_;
  bool has_tabs_, begins_with_hash_ = false;
  size_t width_ = 0;  // in columns
  int64_t last_ = -1;
};

}  // namespace

Offsets without_spaces(std::string_view text, Offsets place) {
  constexpr std::string_view kSpaces = " \t\r\n";
  while (place.begin < place.end && kSpaces.find(text[place.begin]) != text.npos) ++place.begin;
  while (place.begin < place.end && kSpaces.find(text[place.end - 1]) != text.npos) --place.end;
  return place;
}

void check_spans(const std::vector<SpannedText>& texts, const std::string& where) {
  for (const SpannedText& one : texts) {
    const std::string place = concat(where, ": line ", one.line);
    for (size_t i = 0; i < one.spans.size(); ++i) {
      const std::string& label = one.spans[i].label;
      MH_CHECK(!label.empty(), FormatError, place, ": an entity has no label");
      MH_CHECK(label != "O", FormatError, place, ": an entity is called \"O\", as what is none");
      MH_CHECK(i == 0 || one.spans[i].place.begin >= one.spans[i - 1].place.end, FormatError, place,
               ": the entities ", quote(one.spans[i - 1].label, 40), " and ", quote(label, 40),
               " overlap, and a token has one label");
    }
  }
}

std::vector<SpannedText> parse_spans(std::string_view content, const std::string& where) {
  std::vector<SpannedText> all;
  const size_t first = content.find_first_not_of(" \t\r\n");
  const bool is_json = first != content.npos && content[first] == '{';
  TaggedWords words(where, content.find('\t') != content.npos);
  each_line(content, [&](std::string_view line, int64_t number) {
    if (!is_json) return words.add(line, number, all);
    all.push_back(spanned_from_json(line, concat(where, ": line ", number)));
    all.back().line = number;
  });
  std::erase_if(all, [](const SpannedText& one) { return one.text.empty(); });
  MH_CHECK(!all.empty(), FormatError, where, ": the file has no texts");
  check_spans(all, where);
  return all;
}

std::vector<SpannedText> read_spans(const std::string& path) {
  return parse_spans(read_text(path, {.in_lines = true}), path);
}

}  // namespace multihead::text
