// How a text is cut before its tokens are looked for.
#include <algorithm>

#include "multihead/text/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

struct KnownPattern {
  std::string_view regex;
  SplitRule rule;
};

// The expressions of published tokenizers that split.cc codes by hand. GPT-4's possessive form matches the
// same pieces as Llama 3's.
constexpr KnownPattern kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     {SplitRule::Kind::gpt2}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {SplitRule::Kind::llama3, 3}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
     R"(|\s*[\r\n]|\s+(?!\S)|\s+)",
     {SplitRule::Kind::llama3, 3}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {SplitRule::Kind::llama3, 1}},
};

std::string pattern(const Reader& in, const Json& split) {
  if (in.flag(split, "invert", "pre_tokenizer")) in.unsupported("pre_tokenizer.invert", "true");
  const Json& pattern = in.object(split, "pattern", "pre_tokenizer.pattern");
  if (!Reader::find(pattern, "Regex")) in.unsupported("pre_tokenizer.pattern", pattern.dump());
  return in.string(pattern, "Regex", "pre_tokenizer.pattern.Regex");
}

SplitRule split_rule(const Reader& in, const Json& split) {
  const std::string regex = pattern(in, split);
  if (Reader::member(split, "behavior") != "Isolated")
    in.unsupported("pre_tokenizer.behavior", Reader::member(split, "behavior").dump());
  for (const KnownPattern& known : kPatterns)
    if (known.regex == regex) return known.rule;
  in.unsupported("pre_tokenizer.pattern", quote(regex));
}

std::vector<const Json*> steps_of(const Reader& in, const Json& pre) {
  if (!Reader::is_type(pre, "Sequence")) return {&pre};
  std::vector<const Json*> steps;
  for (const Json& step : in.array(pre, "pretokenizers", "pre_tokenizer.pretokenizers").items()) {
    in.check_object(step, "pre_tokenizer step");
    steps.push_back(&step);
  }
  return steps;
}

// Of what is left of a text that has no spaces, as normalizers leave it: no cuts.
bool cuts_at_no_space(const Reader& in, const Json& step) {
  const auto replaces_spaces = [](const NormalStep& s) {
    return s.kind == NormalStep::Kind::replace && s.text == " " && s.with.find(' ') == s.with.npos;
  };
  return Reader::is_type(step, "Split") && Reader::member(Reader::member(step, "pattern"), "String") == " " &&
         std::any_of(in.model.steps.begin(), in.model.steps.end(), replaces_spaces);
}

}  // namespace

bool read_byte_level(Reader& in) {
  const Json* pre = Reader::find(in.root, "pre_tokenizer");
  if (pre == nullptr) return false;
  in.check_object(*pre, "pre_tokenizer");
  const std::vector<const Json*> steps = steps_of(in, *pre);
  const auto is_byte_level = [](const Json* step) { return Reader::is_type(*step, "ByteLevel"); };
  if (std::none_of(steps.begin(), steps.end(), is_byte_level)) return false;
  for (const Json* step : steps) {
    const std::string type = in.string(*step, "type", "pre_tokenizer.type");
    if (step != steps[0] && is_byte_level(*std::prev(std::find(steps.begin(), steps.end(), step))))
      in.unsupported("pre_tokenizer behind ByteLevel", quote(type));
    if (type == "Split") {
      in.model.rules.push_back(split_rule(in, *step));
    } else if (type == "Digits") {
      const bool each = in.flag(*step, "individual_digits", "pre_tokenizer");
      in.model.rules.push_back({each ? SplitRule::Kind::each_digit : SplitRule::Kind::digit_runs});
    } else if (type == "ByteLevel") {
      in.model.add_prefix_space = in.flag(*step, "add_prefix_space", "pre_tokenizer", true);
      if (in.model.add_prefix_space && !in.model.rules.empty())
        in.unsupported("pre_tokenizer.add_prefix_space", "true behind another step");
      if (in.flag(*step, "use_regex", "pre_tokenizer", true))
        in.model.rules.push_back({SplitRule::Kind::gpt2});
    } else {
      in.unsupported("pre_tokenizer", quote(type));
    }
  }
  return true;
}

bool cuts_characters(const Reader& in) {
  const Json& pre = in.object(in.root, "pre_tokenizer", "pre_tokenizer");
  return Reader::is_type(pre, "Split") && Reader::member(pre, "behavior") == "Isolated" &&
         pattern(in, pre) == kEveryCharacter;
}

Metaspace::Prepend prepend_scheme(const Reader& in, const Json& step, const std::string& where) {
  using Prepend = Metaspace::Prepend;
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

// Nothing, or marks for spaces, with words cut before or not.
void read_metaspace(Reader& in) {
  const Json* pre = Reader::find(in.root, "pre_tokenizer");
  if (pre == nullptr) return;
  in.check_object(*pre, "pre_tokenizer");
  const std::vector<const Json*> steps = steps_of(in, *pre);
  const bool words_first = steps.size() == 2 && Reader::is_type(*steps[0], "WhitespaceSplit");
  if (steps.size() == 1 && cuts_at_no_space(in, *steps[0])) return;
  if (steps.size() != (words_first ? 2 : 1) || !Reader::is_type(*steps.back(), "Metaspace"))
    in.unsupported("pre_tokenizer", pre->dump());
  in.model.metaspace = Metaspace{.mark = in.text(*steps.back(), "replacement", "pre_tokenizer.replacement"),
                                 .prepend = prepend_scheme(in, *steps.back(), "pre_tokenizer"),
                                 .cuts = in.flag(*steps.back(), "split", "pre_tokenizer", true),
                                 .words_first = words_first};
}

}  // namespace multihead::text::tokenizer_json
