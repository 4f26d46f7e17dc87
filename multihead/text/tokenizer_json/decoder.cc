// What becomes of the tokens' texts.
#include "multihead/text/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

using Kind = DecodeStep::Kind;

// Of the whole text, which Fuse makes; ends are left alone.
DecodeStep strip(const Reader& in, const Json& step) {
  const Json *start = Reader::find(step, "start"), *stop = Reader::find(step, "stop");
  const bool is_plain =
      start != nullptr && start->is_integer() && (stop == nullptr || *stop == Json(int64_t{0}));
  if (!is_plain) in.unsupported("decoder", step.dump());
  return {.kind = Kind::strip, .text = in.text(step, "content", "decoder.content"), .count = start->as_int()};
}

void read_steps(const Reader& in, const Json& decoder, bool& is_fused, std::vector<DecodeStep>& steps) {
  in.check_object(decoder, "decoder");
  const std::string type = in.string(decoder, "type", "decoder.type");
  if (type == "Sequence") {
    for (const Json& step : in.array(decoder, "decoders", "decoder.decoders").items()) {
      read_steps(in, step, is_fused, steps);
    }
    return;
  }
  if (type == "Fuse") {
    is_fused = true;
    return;
  }
  if (is_fused != (type == "Strip"))
    in.unsupported("decoder", quote(type) + (is_fused ? " behind" : " before") + " Fuse");
  if (type == "Replace") {
    const NormalStep step = replacement(in, decoder, "decoder");
    if (step.kind != NormalStep::Kind::replace) in.unsupported("decoder.pattern", decoder.dump());
    steps.push_back({.kind = Kind::replace, .text = step.text, .with = step.with});
  } else if (type == "ByteFallback") {
    steps.push_back({.kind = Kind::byte_fallback});
  } else if (type == "Strip") {
    steps.push_back(strip(in, decoder));
  } else if (type == "Metaspace") {
    const bool drops = prepend_scheme(in, decoder, "decoder") != Metaspace::Prepend::never;
    steps.push_back({.kind = Kind::metaspace,
                     .text = in.text(decoder, "replacement", "decoder.replacement"),
                     .with = " ",
                     .count = drops ? 1 : 0});
  } else {
    in.unsupported("decoder", quote(type));
  }
}

}  // namespace

void read_decoder(Reader& in) {
  bool is_fused = false;
  if (const Json* decoder = Reader::find(in.root, "decoder")) {
    read_steps(in, *decoder, is_fused, in.model.decode_steps);
  }
}

}  // namespace multihead::text::tokenizer_json
