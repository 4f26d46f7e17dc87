// Reads the decoder: how tokens' texts are joined.
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

using Kind = DecodeStep::Kind;

int64_t count(const Reader& in, const Json& step, const char* key) {
  const Json* value = Reader::find(step, key);
  if (value == nullptr) return 0;
  if (!value->is_integer() || value->as_int() < 0)
    in.wrong(std::string("decoder.") + key, "an integer of at least 0", *value);
  return value->as_int();
}

DecodeStep replace_step(const Reader& in, const Json& step) {
  const NormalStep rule = replacement(in, step, "decoder");
  if (rule.kind != NormalStep::Kind::replace) in.unsupported("decoder.pattern", step.dump());
  return {.kind = Kind::replace, .text = rule.text, .with = rule.with};
}

DecodeStep step_of(const Reader& in, const Json& step, const std::string& type) {
  if (type == "Replace") return replace_step(in, step);
  if (type == "ByteFallback") return {.kind = Kind::byte_fallback};
  if (type == "Strip")
    return {.kind = Kind::strip,
            .text = in.text(step, "content", "decoder.content"),
            .count = count(in, step, "start"),
            .last_count = count(in, step, "stop")};
  if (type == "Metaspace") {
    const bool drops = prepend_scheme(in, step, "decoder") != CutStep::Prepend::never;
    return {.kind = Kind::metaspace,
            .text = in.text(step, "replacement", "decoder.replacement"),
            .count = drops ? 1 : 0};
  }
  if (type == "BPEDecoder") {
    const bool is_given = Reader::find(step, "suffix") != nullptr;
    return {.kind = Kind::word_end, .text = is_given ? in.text(step, "suffix", "decoder.suffix") : "</w>"};
  }
  in.unsupported("decoder", quote(type));
}

// Fuse and ByteLevel make one text of all tokens.
void read_steps(Reader& in, const Json& decoder, bool& is_fused) {
  in.check_object(decoder, "decoder");
  const std::string type = in.string(decoder, "type", "decoder.type");
  std::vector<DecodeStep>& steps = is_fused ? in.model.text_steps : in.model.token_steps;
  if (type == "Sequence") {
    for (const Json& step : in.array(decoder, "decoders", "decoder.decoders").items())
      read_steps(in, step, is_fused);
  } else if (type == "Fuse") {
    is_fused = true;
  } else if (is_fused && type != "Strip" && type != "Replace") {
    in.unsupported("decoder", quote(type) + " after Fuse");
  } else if (type == "ByteLevel") {
    steps.push_back({.kind = Kind::byte_level});
    is_fused = true;
  } else if (type == "WordPiece") {
    steps.push_back({.kind = Kind::word_pieces, .text = in.string(decoder, "prefix", "decoder.prefix")});
    if (in.flag(decoder, "cleanup", "decoder", true)) steps.push_back({.kind = Kind::tidy});
  } else {
    steps.push_back(step_of(in, decoder, type));
  }
}

}  // namespace

void read_decoder(Reader& in) {
  bool is_fused = false;
  const Json* decoder = Reader::find(in.root, "decoder");
  in.model.joins_with_spaces = decoder == nullptr;
  if (decoder != nullptr) read_steps(in, *decoder, is_fused);
}

}  // namespace multihead::text::tokenizer_json
