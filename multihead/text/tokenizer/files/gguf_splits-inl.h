// How vocabularies in GGUF files cut text, by the names in "tokenizer.ggml.pre". Private to text/.
#pragma once

#include <string>
#include <string_view>

namespace multihead::text {

/// Names that llama.cpp treats alike, the first of which is written.
struct GgufSplit {
  const char* names;  ///< a space between them
  const char* steps;  ///< of tokenizer.json, before the byte-level one; each ends with a comma
  bool gpt2;          ///< the byte-level step cuts as GPT-2 does
  /// A piece that is a token is that token, whatever the merges say.
  bool ignore_merges = false;
  bool adds_bos = false;  ///< unless the file says otherwise
};

#define MULTIHEAD_SPLIT(regex) \
  R"({"type":"Split","pattern":{"Regex":")" regex R"("},"behavior":"Isolated","invert":false},)"
#define MULTIHEAD_WORDS(numbers)                                                                 \
  MULTIHEAD_SPLIT(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N})" numbers \
                  R"(| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)")
inline constexpr GgufSplit kGgufSplits[] = {
    {"gpt-2 phi-2 jina-es jina-de gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo jais trillion "
     "granite-docling",
     "", true},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     R"({"type":"Digits","individual_digits":true},)", true},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     MULTIHEAD_WORDS("{1,3}"), false, true, true},
    {"smaug-bpe dbrx", MULTIHEAD_WORDS("{1,3}"), false},
    {"qwen2 stablelm2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2", MULTIHEAD_WORDS(""),
     false},
    {"qwen35",
     MULTIHEAD_SPLIT(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N})"
                     R"(| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)"),
     false},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     MULTIHEAD_SPLIT(R"(\\p{N}{1,3})") MULTIHEAD_SPLIT("[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+")
         MULTIHEAD_SPLIT(
             R"([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?)"
             R"([\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)"),
     false},
    {"falcon",
     R"({"type":"Punctuation","behavior":"Contiguous"},)" MULTIHEAD_SPLIT(
         R"('s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+)")
         MULTIHEAD_SPLIT("[0-9][0-9][0-9]"),
     false},
    {"default",
     MULTIHEAD_SPLIT(R"([\\p{P}\\$\\+<=>\\^~\\|]+)") MULTIHEAD_SPLIT(
         R"('s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+)")
         MULTIHEAD_SPLIT(R"(\\p{N}+)") MULTIHEAD_SPLIT("[0-9][0-9][0-9]"),
     false},
    {"deepseek-coder",
     MULTIHEAD_SPLIT(R"([\\r\\n])") MULTIHEAD_SPLIT(R"(\\s?\\p{L}+)") MULTIHEAD_SPLIT(R"(\\s?\\p{P}+)")
         MULTIHEAD_SPLIT(
             "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+") R"({"type":"Digits","individual_digits":true},)",
     false},
};
#undef MULTIHEAD_WORDS
#undef MULTIHEAD_SPLIT

/// The pre_tokenizer of tokenizer.json. `prefix`: texts begin with a space.
std::string json_of_split(const GgufSplit& split, bool prefix);

}  // namespace multihead::text
