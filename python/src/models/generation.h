// Generation as methods of the models.
#pragma once

#include <nanobind/nanobind.h>

#include "multihead/models/language_model.h"

namespace multihead::python {

void bind_generate(nanobind::class_<models::LanguageModel>& c);  // LanguageModel.generate

}  // namespace multihead::python
