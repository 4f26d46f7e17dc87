// How a text is cut before its tokens are looked for.

#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

SplitRule::Behavior behavior(const Reader& in, const Json& step, SplitRule::Behavior missing) {
  using Behavior = SplitRule::Behavior;
  const Json* given = Reader::find(step, "behavior");
  if (given == nullptr) return missing;
  constexpr std::pair<const char*, Behavior> kBehaviors[] = {
      {"Isolated", Behavior::isolated},
      {"Removed", Behavior::removed},
      {"Contiguous", Behavior::contiguous},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next}};
  for (const auto& [name, value] : kBehaviors) {
    if (*given == name) return value;
  }
  in.unsupported("pre_tokenizer.behavior", given->dump());
}

SplitRule split_rule(const Reader& in, const Json& split) {
  const Json& pattern = in.object(split, "pattern", "pre_tokenizer.pattern");
  SplitRule rule;
  if (const Json* text = Reader::find(pattern, "String"); text != nullptr && text->is_string()) {
    rule = {.kind = SplitRule::Kind::text,
            .text = in.text(pattern, "String", "pre_tokenizer.pattern.String")};
  } else {
    const std::string regex = in.string(pattern, "Regex", "pre_tokenizer.pattern.Regex");
    const std::optional<SplitRule> known = known_pattern(regex);
    if (!known) in.unsupported("pre_tokenizer.pattern", quote(regex));
    rule = *known;
  }
  rule.behavior = behavior(in, split, SplitRule::Behavior::isolated);
  rule.is_inverted = in.flag(split, "invert", "pre_tokenizer");
  return rule;
}

void read_byte_level(Reader& in, const Json& step) {
  if (in.flag(step, "add_prefix_space", "pre_tokenizer", true))
    in.model.cuts.push_back({.kind = CutStep::Kind::prefix_space});
  if (in.flag(step, "use_regex", "pre_tokenizer", true)) in.model.cuts.push_back({});
}

void read_marks(Reader& in, const Json& step) {
  const std::string mark = in.text(step, "replacement", "pre_tokenizer.replacement");
  in.model.cuts.push_back(
      {.kind = CutStep::Kind::marks, .mark = mark, .prepend = prepend_scheme(in, step, "pre_tokenizer")});
  if (!in.flag(step, "split", "pre_tokenizer", true)) return;
  in.model.cuts.push_back(
      {.rule = {
           .kind = SplitRule::Kind::text, .behavior = SplitRule::Behavior::merged_with_next, .text = mark}});
}

// The rules of the steps that only cut.
SplitRule cut_rule(const Reader& in, const Json& step, const std::string& type) {
  using Kind = SplitRule::Kind;
  using Behavior = SplitRule::Behavior;
  if (type == "Split") return split_rule(in, step);
  if (type == "Digits") {
    const bool each = in.flag(step, "individual_digits", "pre_tokenizer");
    return {each ? Kind::each_digit : Kind::digit_runs};
  }
  if (type == "Punctuation")
    return {.kind = Kind::punctuation, .behavior = behavior(in, step, Behavior::isolated)};
  if (type == "CharDelimiterSplit")
    return {.kind = Kind::text,
            .behavior = Behavior::removed,
            .text = in.text(step, "delimiter", "pre_tokenizer.delimiter")};
  if (type == "BertPreTokenizer") return {.kind = Kind::bert, .behavior = Behavior::removed};
  if (type == "WhitespaceSplit") return {.kind = Kind::white_space, .behavior = Behavior::removed};
  if (type == "Whitespace") return {.kind = Kind::words, .behavior = Behavior::removed, .is_inverted = true};
  in.unsupported("pre_tokenizer", quote(type));
}

void read_splits(Reader& in, const Json& step, bool& is_byte_level) {
  in.check_object(step, "pre_tokenizer");
  const std::string type = in.string(step, "type", "pre_tokenizer.type");
  if (type == "Sequence") {
    for (const Json& part : in.array(step, "pretokenizers", "pre_tokenizer.pretokenizers").items())
      read_splits(in, part, is_byte_level);
    return;
  }
  if (is_byte_level) in.unsupported("pre_tokenizer after ByteLevel", quote(type));
  is_byte_level = type == "ByteLevel";
  if (is_byte_level) {
    read_byte_level(in, step);
  } else if (type == "Metaspace") {
    read_marks(in, step);
  } else {
    in.model.cuts.push_back({.rule = cut_rule(in, step, type)});
  }
}

}  // namespace

bool read_pre_tokenizer(Reader& in) {
  bool is_byte_level = false;
  if (const Json* pre = Reader::find(in.root, "pre_tokenizer")) read_splits(in, *pre, is_byte_level);
  return is_byte_level;
}

bool cuts_characters(const Reader& in) {
  const Json& pre = in.object(in.root, "pre_tokenizer", "pre_tokenizer");
  const Json& regex = Reader::member(Reader::member(pre, "pattern"), "Regex");
  return Reader::is_type(pre, "Split") && Reader::member(pre, "behavior") == "Isolated" &&
         !in.flag(pre, "invert", "pre_tokenizer") && regex == kEveryCharacter;
}

CutStep::Prepend prepend_scheme(const Reader& in, const Json& step, const std::string& where) {
  using Prepend = CutStep::Prepend;
  const Json* scheme = Reader::find(step, "prepend_scheme");
  if (scheme == nullptr)
    return in.flag(step, "add_prefix_space", where, true) ? Prepend::always : Prepend::never;
  constexpr std::pair<const char*, Prepend> kSchemes[] = {
      {"always", Prepend::always}, {"first", Prepend::first}, {"never", Prepend::never}};
  for (const auto& [name, value] : kSchemes) {
    if (*scheme == name) return value;
  }
  in.unsupported(where + ".prepend_scheme", scheme->dump());
}

}  // namespace multihead::text::tokenizer_json
