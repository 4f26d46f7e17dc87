#include "multihead/core/error.h"
#include "multihead/embed/batches-inl.h"

namespace multihead::embed {

void each_batch(int64_t count, int64_t batch_tokens, const std::function<void(int64_t, int64_t)>& progress,
                FunctionRef<text::Encoding(int64_t)> encode,
                FunctionRef<void(const models::TokenRows& rows, int64_t first)> use) {
  MH_CHECK(batch_tokens > 0, ValueError, "batch_tokens must be positive, got ", batch_tokens);
  constexpr int64_t kTexts = 1024;  // tokenized at a time
  for (int64_t begin = 0; begin < count; begin += kTexts) {
    const auto size = static_cast<size_t>(std::min(kTexts, count - begin));
    std::vector<std::vector<int32_t>> ids(size), types(size);
    parallel_for(std::ssize(ids), [&](int64_t i, int) {
      text::Encoding one = encode(begin + i);
      ids[static_cast<size_t>(i)] = std::move(one.ids);
      types[static_cast<size_t>(i)] = std::move(one.type_ids);
    });
    const bool has_types = !types[0].empty();
    for (size_t first = 0; first < size;) {
      size_t last = first;
      int64_t total = 0;
      do total += std::ssize(ids[last++]);
      while (last < size && total + std::ssize(ids[last]) <= batch_tokens);
      const auto part = [&](const auto& of) { return std::span(of).subspan(first, last - first); };
      use(has_types ? models::TokenRows::of(part(ids), part(types)) : models::TokenRows::of(part(ids)),
          begin + static_cast<int64_t>(first));
      first = last;
      if (progress) progress(begin + static_cast<int64_t>(last), count);
    }
  }
}

}  // namespace multihead::embed
