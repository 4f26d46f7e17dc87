#include "multihead/train/lora.h"

namespace multihead::train {

models::AdapterOptions adapter_options(const LoraSettings& s) {
  models::AdapterOptions options = {.rank = s.rank, .alpha = s.alpha};
  for (size_t begin = 0; begin < s.targets.size();) {
    const size_t end = std::min(s.targets.find(',', begin), s.targets.size());
    if (end > begin) options.targets.push_back(s.targets.substr(begin, end - begin));
    begin = end + 1;
  }
  return options;
}

}  // namespace multihead::train
