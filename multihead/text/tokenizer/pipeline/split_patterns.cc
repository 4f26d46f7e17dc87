// The regular expressions that are coded by hand.
#include <algorithm>
#include <limits>

#include "multihead/text/tokenizer/pipeline/split-inl.h"

namespace multihead::text {
namespace {

struct KnownPattern {
  std::string_view regex;
  SplitRule::Kind kind;
  int max_digits = 3;
};

// The expressions of published tokenizers. GPT-4's possessive form matches the
// same pieces as Llama 3's.
constexpr KnownPattern kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitRule::Kind::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::Kind::llama3, 3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*)"
     R"(|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitRule::Kind::llama3, 3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::Kind::llama3, 1},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::Kind::qwen35},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::Kind::gpt4o, 3},
    {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::Kind::deepseek},
    {"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+", SplitRule::Kind::cjk_runs},
    {R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)", SplitRule::Kind::clip},
    {R"(\w+|[^\w\s]+)", SplitRule::Kind::words},
    {" {2,}", SplitRule::Kind::space_runs},
    {R"(\A +| +\z)", SplitRule::Kind::outer_spaces},
    {R"(\s{2,}|[\n\r\t])", SplitRule::Kind::wide_blanks},
    {R"(\s)", SplitRule::Kind::white_space},
    {R"(\s+)", SplitRule::Kind::white_runs},
    {R"([0-9])", SplitRule::Kind::ascii_digits},
    {R"(\p{N})", SplitRule::Kind::number_runs, 1},
    {R"(\p{N}{1,3})", SplitRule::Kind::number_runs, 3},
    {R"(\p{N}+)", SplitRule::Kind::number_runs, std::numeric_limits<int>::max()},
    {R"([\p{P}\$\+<=>\^~\|]+)", SplitRule::Kind::ggml_marks},
    {R"([0-9][0-9][0-9])", SplitRule::Kind::three_digits},
    {R"([\r\n])", SplitRule::Kind::line_ends},
    {R"(\s?\p{L}+)", SplitRule::Kind::spaced_words},
    {R"(\s?\p{P}+)", SplitRule::Kind::spaced_marks},
    {"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+", SplitRule::Kind::cjk_korean},
};

}  // namespace

std::optional<SplitRule> known_pattern(std::string_view regex) {
  for (const KnownPattern& pattern : kPatterns)
    if (pattern.regex == regex) return SplitRule{.kind = pattern.kind, .max_digits = pattern.max_digits};
  return std::nullopt;
}

}  // namespace multihead::text
