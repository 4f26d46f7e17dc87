#include "multihead/io/json.h"

#include "multihead/core/files.h"

namespace multihead::io {

Json load_json(const std::string& path, const JsonLimits& limits) {
  return Json::parse(read_file(path, limits.bytes), path, limits);
}

void save_json(const std::string& path, const Json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace multihead::io
