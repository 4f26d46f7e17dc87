#include "multihead/generate/draft.h"

#include <algorithm>
#include <memory>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"

namespace multihead {
namespace {

// The part of a text that a model has read.
struct Reader {
  models::LanguageModel model;
  nn::DecodeState state;
  std::vector<int32_t> text;

  // Logits [V] after `more`, which follows the first `kept` tokens.
  Tensor read(size_t kept, std::span<const int32_t> more) {
    state.truncate(static_cast<int64_t>(kept));
    text.resize(kept);
    text.insert(text.end(), more.begin(), more.end());
    const Tensor tokens = Tensor::of<int32_t>({1, std::ssize(more)}, more);
    const Tensor features = model.features(tokens, {.state = &state});
    const int64_t width = features.size(2);
    return model.logits(features.as_strided({width}, {1}, (std::ssize(more) - 1) * width)).to(Dtype::f32);
  }

  std::vector<int32_t> draft(std::span<const int32_t> whole, int64_t most) {
    const NoTape silent;
    most = std::min(most, state.capacity - std::ssize(whole));
    std::vector<int32_t> drafted;
    if (most <= 0) return drafted;
    const auto same =
        std::mismatch(text.begin(), text.end(), whole.begin(), whole.end()).first - text.begin();
    size_t kept = std::min(static_cast<size_t>(same), whole.size() - 1);
    std::span<const int32_t> more = whole.subspan(kept);
    while (true) {
      const Tensor logits = read(kept, more);
      const float* first = logits.data<float>();
      drafted.push_back(static_cast<int32_t>(std::max_element(first, first + logits.numel()) - first));
      if (std::ssize(drafted) == most) return drafted;
      kept = text.size();
      more = std::span(drafted).last(1);
    }
  }
};

}  // namespace

Draft prompt_lookup(int64_t longest) {
  MH_CHECK(longest >= 1, ValueError, "prompt_lookup: longest must be at least 1, got ", longest);
  return [longest](std::span<const int32_t> text, int64_t most) -> std::vector<int32_t> {
    for (int64_t n = std::min<int64_t>(longest, std::ssize(text) - 1); n > 0; --n) {
      const auto pattern = text.last(static_cast<size_t>(n));
      const auto end = text.end() - 1;  // the pattern itself is not meant
      const auto found = std::find_end(text.begin(), end, pattern.begin(), pattern.end());
      if (found == end) continue;
      const auto next = found + n;
      return {next, next + std::min<int64_t>(most, text.end() - next)};
    }
    return {};
  };
}

Draft draft_model(const models::LanguageModel& model) {
  MH_CHECK(!model.state_options({}).carries(), ValueError,
           "draft_model: an attention that carries tensors cannot take back what was wrong");
  const auto reader = std::make_shared<Reader>(Reader{model, model.make_state(1), {}});
  return [reader](std::span<const int32_t> text, int64_t most) { return reader->draft(text, most); };
}

}  // namespace multihead
