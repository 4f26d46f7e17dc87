// "truncation" and "padding".
#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

constexpr int64_t kLongestPadding = 1 << 20;  // every text takes memory for this many ids

size_t length(const Reader& in, const Json& value, const std::string& where, int64_t most) {
  if (!value.is_integer() || value.as_int() < 0 || value.as_int() > most)
    in.fail(where, " must be an integer in [0, ", most, "], got ", quote(value.dump(), 40));
  return static_cast<size_t>(value.as_int());
}

bool is_left(const Reader& in, const Json& of, const std::string& where) {
  const Json* direction = Reader::find(of, "direction");
  if (direction == nullptr || *direction == "Right") return false;
  if (*direction != "Left") in.unsupported(where + ".direction", direction->dump());
  return true;
}

Truncation read_truncation(const Reader& in, const Json& given) {
  using Strategy = Truncation::Strategy;
  in.check_object(given, "truncation");
  Truncation truncation{
      .max_length = length(in, Reader::member(given, "max_length"), "truncation.max_length", INT64_MAX),
      .from_left = is_left(in, given, "truncation")};
  constexpr std::pair<const char*, Strategy> kStrategies[] = {{"LongestFirst", Strategy::longest_first},
                                                              {"OnlyFirst", Strategy::only_first},
                                                              {"OnlySecond", Strategy::only_second}};
  // "stride" is that of the pieces that are cut off, which are never requested.
  const Json* strategy = Reader::find(given, "strategy");
  if (strategy == nullptr) return truncation;
  for (const auto& [name, value] : kStrategies) {
    if (*strategy == name) return truncation.strategy = value, truncation;
  }
  in.unsupported("truncation.strategy", strategy->dump());
}

Padding read_padding(const Reader& in, const Json& given) {
  in.check_object(given, "padding");
  Padding padding{.on_left = is_left(in, given, "padding")};
  const Json& strategy = Reader::member(given, "strategy");
  if (strategy.is_object()) {
    padding.length = length(in, Reader::member(strategy, "Fixed"), "padding.strategy.Fixed", kLongestPadding);
  } else if (strategy != Json("BatchLongest")) {
    in.unsupported("padding.strategy", strategy.dump());
  }
  if (const Json* multiple = Reader::find(given, "pad_to_multiple_of"))
    padding.multiple_of = length(in, *multiple, "padding.pad_to_multiple_of", kLongestPadding);
  padding.id = in.known_id(Reader::member(given, "pad_id"), "padding.pad_id");
  if (const Json* type = Reader::find(given, "pad_type_id"))
    padding.type_id = in.token_id(*type, "padding.pad_type_id");
  return padding;
}

}  // namespace

void read_lengths(Reader& in) {
  if (const Json* given = Reader::find(in.root, "truncation"))
    in.model.truncation = read_truncation(in, *given);
  const Json* const given = Reader::find(in.root, "padding");
  if (given == nullptr) return;
  in.model.padding = read_padding(in, *given);
  const Json& name = Reader::member(*given, "pad_token");
  if (name.is_string() && name != in.model.tokens[static_cast<size_t>(in.model.padding->id)])
    in.model.padding_name = name.as_string();
}

}  // namespace multihead::text::tokenizer_json
