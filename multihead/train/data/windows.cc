#include "multihead/train/data/windows.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/tensor/rng.h"

namespace multihead::train {
namespace {

// Streams of the seed that nothing else draws from: models and dropout count theirs up from 0.
constexpr uint64_t kOrderStream = uint64_t{1} << 63;
constexpr uint64_t kOffsetStream = kOrderStream + (uint64_t{1} << 62);

}  // namespace

WindowOrder::WindowOrder(int64_t tokens, int64_t context, uint64_t seed)
    : context_(context), windows_((tokens - 1) / context), seed_(seed) {
  MH_CHECK(windows_ >= 1, FormatError, "the training text has ", tokens,
           " tokens, too few for one window of ", context, " + 1; give more text or a smaller context");
  slack_ = tokens - 1 - windows_ * context;
  // One window less leaves room for offsets; a text of a single window keeps it.
  if (windows_ > 1 && slack_ < context - 1) --windows_, slack_ += context;
  slack_ = std::min(slack_, context - 1);
}

int64_t WindowOrder::begin(int64_t index) const {
  const auto epoch = static_cast<uint64_t>(index / windows_);
  const RandomStream offsets{seed_, kOffsetStream};
  const auto offset = static_cast<int64_t>(offsets.bits(epoch) % static_cast<uint64_t>(slack_ + 1));
  return offset + permuted(index % windows_, windows_, seed_, epoch) * context_;
}

int64_t permuted(int64_t index, int64_t count, uint64_t seed, uint64_t round) {
  const int half = (std::bit_width(static_cast<uint64_t>(count - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const RandomStream stream{seed, kOrderStream + round};
  auto at = static_cast<uint64_t>(index);
  do {
    uint64_t left = at >> half, right = at & mask;
    for (uint64_t i = 0; i < 4; ++i) {
      const auto word = stream.block((i << 32) | right)[0];
      left ^= word & mask;
      std::swap(left, right);
    }
    at = (left << half) | right;
  } while (at >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(at);
}

WindowBatch gather_windows(const text::TokenView& text, std::span<const int64_t> begins, int64_t context) {
  const auto rows = static_cast<int64_t>(begins.size());
  WindowBatch batch{Tensor::empty({rows, context}, Dtype::i32), Tensor::empty({rows, context}, Dtype::i32)};
  const auto tokens = batch.tokens.span<int32_t>(), targets = batch.targets.span<int32_t>();
  const auto length = static_cast<size_t>(context);
  std::vector<int32_t> window(length + 1);  // one read for both
  for (size_t row = 0; row < begins.size(); ++row) {
    const int64_t begin = begins[row];
    MH_CHECK(begin >= 0 && begin + context < text.size(), ValueError, "windows: tokens ", begin, " to ",
             begin + context, " of a text of ", text.size());
    text.copy(begin, window);
    std::copy_n(window.begin(), length, tokens.begin() + row * length);
    std::copy_n(window.begin() + 1, length, targets.begin() + row * length);
  }
  return batch;
}

}  // namespace multihead::train
