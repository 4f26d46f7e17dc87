// What a model's folder holds, by its config.json. Private to models/.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "multihead/io/config.h"
#include "multihead/models/families/family-inl.h"

namespace multihead::models::detail {

/// The family of this name that no other claims; null: there is none.
template <class Config>
const Family<Config>* family_named(const std::string& name) {
  const std::vector<Family<Config>>& all = families<Config>();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const auto& f) { return f.name == name && f.claims == nullptr; });
  return found == all.end() ? nullptr : &*found;
}

/// The path of config.json, of a folder that is whole; an adapter's may leave it to its model's. Throws IoError.
std::string config_path(const std::string& folder);

/// The class in "architectures" if it is an encoder's alone, of those that share their type with a whole model.
std::string encoder_class(io::ConfigReader& reader);

}  // namespace multihead::models::detail
