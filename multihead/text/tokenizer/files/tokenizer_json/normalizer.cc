// Reads the normaliser: what is done to a text before it is tokenised.
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

// Throws ValueError.
std::string from_base64(std::string_view text) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const size_t digit = kAlphabet.find(c);
    MH_CHECK(digit != kAlphabet.npos, ValueError, "precompiled_charsmap: ", quote({&c, 1}), " in base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> held & 0xFF);
  }
  return out;
}

BertCleaning bert_cleaning(const Reader& in, const Json& step) {
  BertCleaning c;
  c.clean_text = in.flag(step, "clean_text", "normalizer", true);
  c.handle_chinese_chars = in.flag(step, "handle_chinese_chars", "normalizer", true);
  c.lowercase = in.flag(step, "lowercase", "normalizer", true);
  c.strip_accents = in.flag(step, "strip_accents", "normalizer", c.lowercase);
  return c;
}

// Null, as some converters write it: nothing is replaced.
void read_charsmap(const Reader& in, const Json& step, std::vector<NormalStep>& steps) {
  if (Reader::find(step, "precompiled_charsmap") == nullptr) return;
  try {
    std::string table =
        from_base64(in.string(step, "precompiled_charsmap", "normalizer.precompiled_charsmap"));
    const bool longest = in.flag(step, "longest", "normalizer");
    steps.push_back(
        {.kind = NormalStep::Kind::charsmap, .map = std::make_shared<CharsMap>(std::move(table), longest)});
  } catch (const ValueError& error) {
    in.fail("normalizer.", error.what());
  }
}

void read_step(const Reader& in, const Json& step, std::vector<NormalStep>& steps) {
  using Kind = NormalStep::Kind;
  in.check_object(step, "normalizer");
  const std::string type = in.string(step, "type", "normalizer.type");
  constexpr std::pair<const char*, Normalizer> kForms[] = {{"NFC", Normalizer::nfc},
                                                           {"NFD", Normalizer::nfd},
                                                           {"NFKC", Normalizer::nfkc},
                                                           {"NFKD", Normalizer::nfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) return steps.push_back({.kind = Kind::unicode, .form = form});
  }
  if (type == "BertNormalizer") {
    steps.push_back({.kind = Kind::bert, .cleaning = bert_cleaning(in, step)});
  } else if (type == "Sequence") {
    for (const Json& part : in.array(step, "normalizers", "normalizer.normalizers").items()) {
      read_step(in, part, steps);
    }
  } else if (type == "Prepend") {
    steps.push_back({.kind = Kind::prepend, .text = in.string(step, "prepend", "normalizer.prepend")});
  } else if (type == "Replace") {
    steps.push_back(replacement(in, step, "normalizer"));
  } else if (type == "Strip") {
    steps.push_back({.kind = Kind::strip,
                     .left = in.flag(step, "strip_left", "normalizer", true),
                     .right = in.flag(step, "strip_right", "normalizer", true)});
  } else if (type == "Lowercase") {
    steps.push_back({.kind = Kind::lowercase});
  } else if (type == "StripAccents") {
    steps.push_back({.kind = Kind::strip_accents});
  } else if (type == "Precompiled") {
    read_charsmap(in, step, steps);
  } else {
    in.unsupported("normalizer", quote(type));
  }
}

}  // namespace

NormalStep replacement(const Reader& in, const Json& step, const std::string& where) {
  const Json& pattern = in.object(step, "pattern", where + ".pattern");
  const std::string with = in.string(step, "content", where + ".content");
  if (const Json* text = Reader::find(pattern, "String"); text != nullptr && text->is_string() && *text != "")
    return {.kind = NormalStep::Kind::replace, .text = text->as_string(), .with = with};
  const Json* regex = Reader::find(pattern, "Regex");
  const auto rule = regex != nullptr && regex->is_string() ? known_pattern(regex->as_string()) : std::nullopt;
  if (!rule) in.unsupported(where + ".pattern", pattern.dump());
  return {.kind = NormalStep::Kind::replace_rule, .rule = *rule, .with = with};
}

void read_normalizer(Reader& in) {
  if (const Json* normalizer = Reader::find(in.root, "normalizer"))
    read_step(in, *normalizer, in.model.steps);
}

}  // namespace multihead::text::tokenizer_json
