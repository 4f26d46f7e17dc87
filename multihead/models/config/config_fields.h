// The fields of a model's configuration, one row each. The table serves our own config.json, the names that
// other libraries give the same fields, the flags of training, and Python.
#pragma once

#include <limits>
#include <variant>
#include <vector>

#include "multihead/core/text/enum_words.h"
#include "multihead/io/config.h"
#include "multihead/models/encoder.h"
#include "multihead/models/image_encoder.h"
#include "multihead/models/seq2seq.h"

namespace multihead::models {

inline constexpr io::IntegerRange kSize = {.min = 1, .max = int64_t{1} << 31};
inline constexpr io::IntegerRange kSizeOrNone = {.min = 0, .max = int64_t{1} << 31};
inline constexpr io::IntegerRange kLayers = {.min = 1, .max = 1 << 16};
inline constexpr io::IntegerRange kBuckets = {.min = 0, .max = 1 << 16};
inline constexpr io::NumberRange kProbability = {.min = 0, .max = 1, .exclude_max = true};
inline constexpr io::NumberRange kPositive = {.min = 0, .exclude_min = true};
inline constexpr io::NumberRange kNotNegative = {.min = 0};

/// Where config.json has a field.
enum class Stored {
  always,    ///< a file without it is refused
  later,     ///< files of earlier versions lack it
  training,  ///< among those that only training needs, under "multihead" whatever the family
};

/// The range of a number, in config.json and in resolved().
struct FieldRange {
  FieldRange() = default;
  FieldRange(io::IntegerRange range) : integer(range) {}
  FieldRange(io::NumberRange range) : number(range) {}
  io::IntegerRange integer;
  io::NumberRange number;
};

template <class Config>
struct ConfigField {
  using Member = std::variant<int64_t Config::*, double Config::*, bool Config::*, Activation Config::*,
                              Positions Config::*, nn::NormKind Config::*, RotaryLayout Config::*,
                              nn::SinusoidLayout Config::*, nn::Block Config::*, EncoderHead Config::*,
                              PoolerActivation Config::*, ProblemType Config::*, PrunedHeads Config::*,
                              std::string Config::*>;

  ConfigField(const char* name, Member member, Stored stored = Stored::always,
              FieldRange range = FieldRange(), const char* flag = nullptr, const char* help = nullptr)
      : name(name), member(member), stored(stored), range(range), flag(flag), help(help) {}

  ConfigField(const char* name, Member member, Stored stored, const char* flag, const char* help)
      : ConfigField(name, member, stored, FieldRange(), flag, help) {}

  const char* name;  ///< in Python and in our own config.json
  Member member;
  Stored stored;
  FieldRange range;
  const char *flag, *help;  ///< of training; null: it sets the field itself, or leaves it alone
};

/// In the order of config.json.
template <class Config>
const std::vector<ConfigField<Config>>& config_fields();
template <>
const std::vector<ConfigField<LanguageModelConfig>>& config_fields();
template <>
const std::vector<ConfigField<Seq2SeqConfig>>& config_fields();
template <>
const std::vector<ConfigField<EncoderConfig>>& config_fields();
template <>
const std::vector<ConfigField<ImageEncoderConfig>>& config_fields();

}  // namespace multihead::models
