// Rotary positions in config.json, as transformers 4 and 5 write them.
#include <cmath>
#include <optional>

#include "multihead/core/error.h"
#include "multihead/models/config/transformer_config-inl.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail {
namespace {

using Kind = RotaryScaling::Kind;

double yarn_attention_factor(io::ConfigReader& rope, double factor) {
  const double given = rope.number_or("attention_factor", 0, kPositive);
  const double mscale = rope.number_or("mscale", 0), all = rope.number_or("mscale_all_dim", 0);
  if (given > 0 || mscale == 0 || all == 0) return given;
  const RotaryScaling plain = {.kind = Kind::yarn, .factor = factor};
  const double log_part = rotary_amplitude(plain) - 1;
  return (mscale * log_part + 1) / (all * log_part + 1);
}

Json rope_json(const LanguageModelConfig& c, const RotaryNames& names) {
  const RotaryScaling& s = c.rotary_scaling;
  Json rope = Json::object({{"rope_type", stored(s.kind)}, {"rope_theta", c.rotary_base}});
  if (names.fraction != nullptr) rope["partial_rotary_factor"] = c.rotary_fraction;
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

RotaryScaling read_rotary_scaling(io::ConfigReader& rope, int64_t context) {
  RotaryScaling s;
  const char* key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  s.kind = read_word(rope, key, std::optional(Kind::none));
  // Fields of the other kinds are ignored, as in transformers.
  rope.ignore({"type", "rope_type", "rope_theta", "factor", "original_max_position_embeddings",
               "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
               "mscale_all_dim", "truncate", "finetuned"});
  rope.refuse_unknown();
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
    s.beta_fast = rope.number_or("beta_fast", s.beta_fast, kPositive);
    s.beta_slow = rope.number_or("beta_slow", s.beta_slow, kPositive);
    s.truncate = rope.boolean_or("truncate", true);
    s.attention_factor = yarn_attention_factor(rope, s.factor);
  }
  try {
    check(s);
  } catch (const ValueError& error) {
    rope.fail(key, concat("is ", quote(word_of(s.kind)), ", with a wrong number: ", error.what()));
  }
  return s;
}

Json rotary_json(const LanguageModelConfig& c) { return rope_json(c, {}); }

namespace {

void read_rotary(io::ConfigReader& config, LanguageModelConfig& c, const RotaryNames& names) {
  const double base = config.number_or(names.base, names.default_base, kPositive);
  c.rotary_base = base;
  if (names.fraction != nullptr) {
    c.rotary_fraction = config.number_or(names.fraction, names.default_fraction, {.min = 0, .max = 1});
  }
  std::optional<RotaryScaling> read;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    std::optional<io::ConfigReader> rope = config.optional_child(key);
    if (!rope) continue;
    const double own_base = rope->number_or("rope_theta", base, kPositive);
    if (names.fraction == nullptr) {
      expect_value(*rope, "partial_rotary_factor", 1);
    } else {
      c.rotary_fraction = rope->number_or("partial_rotary_factor", c.rotary_fraction, {.min = 0, .max = 1});
    }
    const RotaryScaling scaling = read_rotary_scaling(*rope, c.context);
    if (read && (scaling != *read || own_base != c.rotary_base)) {
      config.fail(key, "contradicts \"rope_parameters\"");
    }
    c.rotary_base = own_base;
    c.rotary_scaling = scaling;
    read = scaling;
  }
}

}  // namespace

ExtraTensor rotary_buffers(const LanguageModelConfig& c) {
  // Some versions saved them before they were scaled, some after.
  return constant_tensor(
      "rotary_emb.inv_freq",
      [c](const Shape&) {
        std::vector<Tensor> tables;
        for (const RotaryScaling& scaling : {RotaryScaling{}, c.rotary_scaling}) {
          const std::vector<double> w = rotary_frequencies(rotary_dim(c), c.rotary_base, scaling);
          tables.push_back(Tensor::of<double>({static_cast<int64_t>(w.size())}, w));
        }
        return tables;
      },
      1e-4);
}

namespace {

// {"type": "ntk", "factor": f}: a larger base, and positions divided besides (kexue.fm/archives/9706).
bool read_ntk(io::ConfigReader& rope, EncoderConfig& c) {
  const Json* type = rope.find("type");
  if (type == nullptr || *type != Json("ntk")) return false;
  const double factor = rope.number("factor", kPositive);
  c.rotary_base *= factor;
  c.rotary_factor = std::pow(factor, 2 / static_cast<double>(head_dim(c)));
  rope.ignore({"rope_theta"});
  expect_value(rope, "mixed_b", Json());
  rope.refuse_unknown();
  return true;
}

void read_encoder_rotary(io::ConfigReader& config, EncoderConfig& c) {
  const Json *parameters = config.find("rope_parameters"), *older = config.find("rope_scaling");
  const bool has_both =
      parameters != nullptr && older != nullptr && parameters->is_object() && older->is_object();
  if (has_both && older->size() > 0 && *older != *parameters)
    config.fail("rope_scaling", "contradicts \"rope_parameters\"");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    std::optional<io::ConfigReader> rope = config.optional_child(key);
    if (!rope) continue;
    c.rotary_base = rope->number_or("rope_theta", c.rotary_base, kPositive);
    if (read_ntk(*rope, c)) continue;
    const RotaryScaling scaling = read_rotary_scaling(*rope, c.context);
    if (scaling.kind != Kind::none && scaling.kind != Kind::linear) {
      config.fail(key, concat("scales positions as ", word_of(scaling.kind), ", which encoders do not have"));
    }
    c.rotary_factor = scaling.factor;
  }
}

}  // namespace

ConfigKey<EncoderConfig> encoder_rotary_key(const char* base, double default_base) {
  return {base,
          [=](io::ConfigReader& r, const std::string& key, EncoderConfig& c) {
            c.rotary_base = r.number_or(key, default_base, kPositive);
            read_encoder_rotary(r, c);
          },
          [](const EncoderConfig& c, const std::string&, Json& json) {
            Json& rope = json["rope_parameters"];
            rope = Json::object({{"rope_type", "default"}, {"rope_theta", c.rotary_base}});
            if (c.rotary_factor == 1) return;
            rope["rope_type"] = "linear";
            rope["factor"] = c.rotary_factor;
          },
          row_of(&EncoderConfig::rotary_base)};
}

ConfigKey<LanguageModelConfig> rotary_key(RotaryNames names) {
  return {names.base,
          [=](io::ConfigReader& r, const std::string&, LanguageModelConfig& c) { read_rotary(r, c, names); },
          [=](const LanguageModelConfig& c, const std::string& key, Json& json) {
            json[key] = c.rotary_base;
            if (names.fraction != nullptr) json[names.fraction] = c.rotary_fraction;
            json["rope_parameters"] = rope_json(c, names);
            if (c.rotary_scaling.kind != Kind::none) json["rope_scaling"] = rope_json(c, names);
          },
          row_of(&LanguageModelConfig::rotary_base)};
}

}  // namespace multihead::models::detail
