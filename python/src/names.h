// The words that stand for enum values in Python.
#pragma once

#include <string>

#include "multihead/core/text/enum_words.h"
#include "multihead/models/config/config_fields.h"
#include "multihead/nn/norm.h"
#include "multihead/nn/positions.h"
#include "multihead/ops/activation.h"
#include "multihead/ops/attention/options.h"
#include "multihead/ops/loss.h"
#include "multihead/ops/rotary.h"
#include "python/src/modules.h"

namespace multihead::python {

template <HasWords Enum>
Enum to_enum(const std::string& text, const char* what) {
  if (const auto value = value_of<Enum>(text)) return *value;
  std::string known;
  for (const std::string& word : word_list<Enum>()) known += (known.empty() ? "'" : ", '") + word + "'";
  throw nb::value_error((std::string(what) + " must be one of " + known + ", got '" + text + "'").c_str());
}

inline Activation activation_of(const std::string& name) { return to_enum<Activation>(name, "activation"); }
inline nn::NormKind norm_kind_of(const std::string& name) { return to_enum<nn::NormKind>(name, "norm"); }
inline RotaryLayout rotary_layout_of(const std::string& name) {
  return to_enum<RotaryLayout>(name, "layout");
}

inline EmptyRow empty_row_of(const std::string& name) {
  return to_enum<EmptyRow>(name, "empty_row",
                           {{"zero", EmptyRow::zero},
                            {"uniform", EmptyRow::uniform},
                            {"nan", EmptyRow::nan},
                            {"error", EmptyRow::error}});
}

inline Normalise normalise_of(const std::string& name) {
  return to_enum<Normalise>(name, "normalise",
                            {{"softmax", Normalise::softmax},
                             {"sum", Normalise::sum},
                             {"abs_sum", Normalise::abs_sum},
                             {"none", Normalise::none},
                             {"sparsemax", Normalise::sparsemax},
                             {"entmax15", Normalise::entmax15}});
}

inline CaptureStage stage_of(const std::string& name) {
  return to_enum<CaptureStage>(name, "stage",
                               {{"scores", CaptureStage::scores},
                                {"probabilities", CaptureStage::probabilities},
                                {"after_dropout", CaptureStage::after_dropout}});
}
inline const char* stage_name(CaptureStage stage) {
  return stage == CaptureStage::scores          ? "scores"
         : stage == CaptureStage::probabilities ? "probabilities"
                                                : "after_dropout";
}

/// c.name: an enum by its words.
template <class Class, HasWords Enum>
void bind_words(nb::class_<Class>& c, const char* name, Enum Class::*member) {
  c.def_prop_rw(
      name, [member](const Class& x) { return std::string(word_of(x.*member)); },
      [name, member](Class& x, const std::string& word) { x.*member = to_enum<Enum>(word, name); });
}

/// A model's configuration: its fields as properties, and with those bound before by keyword.
template <class Config>
void bind_config_fields(nb::class_<Config>& c, const char* name) {
  for (const models::ConfigField<Config>& field : models::config_fields<Config>()) {
    const auto bind = [&](auto member) {
      if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(Config().*member)>>) {
        bind_words(c, field.name, member);
      } else {
        c.def_rw(field.name, member);
      }
    };
    std::visit(bind, field.member);
  }
  bind_fields_init(c, name);
  c.def("__eq__", [](const Config& a, const Config& b) { return a == b; });
}

}  // namespace multihead::python
