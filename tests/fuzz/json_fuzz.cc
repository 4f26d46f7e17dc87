// Any bytes are JSON that survives a round trip, or a FormatError; anything else ends the program.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"

using multihead::Json;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Json json;
  try {
    json = Json::parse({reinterpret_cast<const char*>(data), size});
  } catch (const multihead::FormatError&) {
    return 0;
  }
  const std::string text = json.dump();
  const Json again = Json::parse(text);
  if (!(again == json) || again.dump() != text || !(Json::parse(json.dump(2)) == json)) std::abort();
  return 0;
}
