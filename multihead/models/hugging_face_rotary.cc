// Rotary positions in config.json, as transformers 4 and 5 write them.
#include <optional>

#include "multihead/models/hugging_face-inl.h"

namespace multihead::models::detail {
namespace {

using Kind = RotaryScaling::Kind;

// In the order of the enum; "dynamic" and "longrope" change with the length of the text.
const std::vector<std::string> kKinds = {"default", "linear", "llama3", "yarn"};

double yarn_attention_factor(io::ConfigReader& rope, double factor) {
  const double given = rope.number_or("attention_factor", 0, {.min = 0});
  const double mscale = rope.number_or("mscale", 0), all = rope.number_or("mscale_all_dim", 0);
  if (given > 0 || mscale == 0 || all == 0) return given;
  const RotaryScaling plain = {.kind = Kind::yarn, .factor = factor};
  const double log_part = rotary_amplitude(plain) - 1;
  return (mscale * log_part + 1) / (all * log_part + 1);
}

RotaryScaling read_scaling(io::ConfigReader& rope, int64_t context) {
  if (rope.number_or("partial_rotary_factor", 1) != 1) rope.fail("partial_rotary_factor", "must be 1");
  RotaryScaling s;
  const char* key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  s.kind = static_cast<Kind>(rope.choice_or(key, kKinds, 0));
  rope.ignore({"type", "rope_type"});
  if (s.kind == Kind::none) return s;
  const char* original = "original_max_position_embeddings";
  if (s.kind == Kind::llama3) s.original_context = rope.integer(original, kSize);
  if (s.kind == Kind::yarn) s.original_context = rope.integer_or(original, context, kSize);
  s.factor =
      s.kind != Kind::yarn
          ? rope.number("factor")
          : rope.number_or("factor", static_cast<double>(context) / static_cast<double>(s.original_context));
  if (s.kind == Kind::llama3) {
    s.low_freq_factor = rope.number("low_freq_factor");
    s.high_freq_factor = rope.number("high_freq_factor");
  } else if (s.kind == Kind::yarn) {
    s.beta_fast = rope.number_or("beta_fast", s.beta_fast);
    s.beta_slow = rope.number_or("beta_slow", s.beta_slow);
    s.truncate = rope.boolean_or("truncate", true);
    s.attention_factor = yarn_attention_factor(rope, s.factor);
  }
  return s;
}

Json rope_json(const LanguageModelConfig& c) {
  const RotaryScaling& s = c.rotary_scaling;
  Json rope =
      Json::object({{"rope_type", kKinds[static_cast<size_t>(s.kind)]}, {"rope_theta", c.rotary_base}});
  if (s.kind == Kind::none) return rope;
  rope["factor"] = s.factor;
  if (s.kind == Kind::linear) return rope;
  rope["original_max_position_embeddings"] = s.original_context;
  if (s.kind == Kind::llama3) {
    rope["low_freq_factor"] = s.low_freq_factor;
    rope["high_freq_factor"] = s.high_freq_factor;
  } else {
    rope["beta_fast"] = s.beta_fast;
    rope["beta_slow"] = s.beta_slow;
    rope["truncate"] = s.truncate;
    if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  }
  return rope;
}

}  // namespace

void read_rotary(io::ConfigReader& config, LanguageModelConfig& c) {
  if (config.number_or("partial_rotary_factor", 1) != 1) config.fail("partial_rotary_factor", "must be 1");
  c.rotary_base = config.number_or("rope_theta", 10000, kPositive);
  std::optional<io::ConfigReader> rope = config.optional_child("rope_parameters");
  std::optional<io::ConfigReader> older = config.optional_child("rope_scaling");
  if (!rope) rope = older;
  if (!rope) return;
  c.rotary_base = rope->number_or("rope_theta", c.rotary_base, kPositive);
  c.rotary_scaling = read_scaling(*rope, c.context);
}

void write_rotary(const LanguageModelConfig& c, Json& json) {
  json["rope_theta"] = c.rotary_base;
  json["rope_parameters"] = rope_json(c);
  if (c.rotary_scaling.kind != Kind::none) json["rope_scaling"] = rope_json(c);
}

}  // namespace multihead::models::detail
