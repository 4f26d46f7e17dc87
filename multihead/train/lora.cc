#include "multihead/train/lora.h"

#include "multihead/core/error.h"

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

void check_lora(const TrainingSettings& settings, const std::string& init) {
  MH_CHECK(settings.lora.rank == 0 || !init.empty(), ValueError,
           "train: --lora-rank is for fine-tuning and needs --init");
}

}  // namespace multihead::train
