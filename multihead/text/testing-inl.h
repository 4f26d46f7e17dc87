// What tests of several files here need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "multihead/core/files.h"
#include "multihead/core/text/json.h"

namespace multihead::text {

inline const std::string kTestdata = MULTIHEAD_SOURCE_DIR "/multihead/text/testdata/";

/// A file of testdata/ that a script under tools/goldens/ made.
inline Json golden(const std::string& file) { return Json::parse(read_file(kTestdata + file)); }

inline std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.items()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

}  // namespace multihead::text
