#include "multihead/embed/multi_vector_encoder.h"

#include <algorithm>
#include <utility>

#include "multihead/autograd/autocast.h"
#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/embed/batches-inl.h"
#include "multihead/embed/modules/modules-inl.h"
#include "multihead/ops/embedding.h"
#include "multihead/ops/shape.h"

namespace multihead::embed {

int64_t MultiVectorEncoder::dim() const {
  int64_t width = model_.embed_dim();
  for (const VectorStep& step : steps_) width = detail::width_after(step, width);
  return width;
}

MultiVectorEncoder::Input MultiVectorEncoder::input(const std::string& text, const std::string& prompt,
                                                    TextTask task, int64_t length) const {
  const auto encode = [&](std::string_view part, int64_t limit) {
    return tokenizer_.encoding(part, {.parse_special = true, .max_length = static_cast<size_t>(limit)});
  };
  const std::string whole = prompt + text;
  const auto marker = std::ranges::find_if(
      markers_, [&](const std::string& m) { return !prompt.empty() && prompt.starts_with(m); });
  text::Encoding encoded;
  if (marker == markers_.end()) {
    encoded = encode(whole, length);
  } else {
    encoded = encode(std::string_view(whole).substr(marker->size()), std::max<int64_t>(length - 1, 1));
    const auto at = std::ranges::find_if(encoded.sequence_ids, [](int32_t id) { return id >= 0; });
    // A text of template tokens alone: the marker follows the first.
    const auto place = at == encoded.sequence_ids.end() ? std::min<ptrdiff_t>(1, std::ssize(encoded.ids))
                                                        : at - encoded.sequence_ids.begin();
    encoded.ids.insert(encoded.ids.begin() + place, *tokenizer_.id(*marker));
  }
  Input made{std::move(encoded.ids), 0, {}};
  if (made.ids.empty()) made.ids.push_back(0);  // the model wants one
  made.attended = std::ssize(made.ids);
  const bool skips = task == TextTask::query ? skips_queries_ : skips_documents_;
  for (const int32_t id : made.ids) made.counts.push_back(!skips || !skipped_.contains(id));
  if (task != TextTask::query || !expansion_) return made;
  const auto filled = static_cast<size_t>(expansion_->length);
  const bool skips_added = skips && skipped_.contains(expansion_->token);
  while (made.ids.size() < filled) {
    made.ids.push_back(expansion_->token);
    made.counts.push_back(!skips_added);
  }
  if (expansion_->is_attended) made.attended = std::ssize(made.ids);
  return made;
}

MultiVectors MultiVectorEncoder::encode(std::span<const std::string> texts, TextTask task,
                                        const EncodeTextOptions& options) const {
  MH_CHECK(options.truncate_dim == 0, ValueError,
           "MultiVectorEncoder: truncate_dim is that of dense vectors");
  const NoTape silent;
  const bool has_own = options.prompt || !options.prompt_name.empty() || task == TextTask::none;
  const std::string prompt = has_own
                                 ? prompts_.resolve("MultiVectorEncoder", options.prompt, options.prompt_name)
                                 : prompts_.of(task);
  const bool expands = task == TextTask::query && expansion_;
  int64_t length = max_length_;
  if (task == TextTask::query && query_length_ > 0) length = query_length_;
  if (task == TextTask::document && document_length_ > 0) length = document_length_;
  if (options.max_length > 0) length = std::min(length, options.max_length);
  if (expands) length = expansion_->cuts ? expansion_->length : std::max(length, expansion_->length);
  // Tokens that none attends to are told to a layer of one sequence.
  const int64_t batch_tokens = expands && !expansion_->is_attended ? 1 : options.batch_tokens;
  std::vector<Input> inputs(texts.size());
  std::vector<int64_t> ends = {0};
  std::vector<Tensor> parts = {Tensor::empty({0, dim()}, Dtype::f32)};
  each_batch(
      std::ssize(texts), batch_tokens, options.progress,
      [&](int64_t i) {
        Input& made = inputs[static_cast<size_t>(i)];
        made = input(texts[static_cast<size_t>(i)], prompt, task, length);
        return text::Encoding{made.ids, {}};
      },
      [&](const models::TokenRows& rows, int64_t first) {
        const Autocast autocast(options.precision);
        models::TokenRows given = rows;
        const Input& single = inputs[static_cast<size_t>(first)];
        if (single.attended < std::ssize(single.ids))
          given.attended = Tensor::of<int64_t>({1}, {single.attended});
        const Tensor features = model_.features(given).to(Dtype::f32);
        std::vector<int64_t> kept;
        int64_t token = 0;
        for (int64_t s = 0; s < rows.sequences(); ++s) {
          Input& made = inputs[static_cast<size_t>(first + s)];
          for (const bool counts : made.counts) {
            if (counts) kept.push_back(token);
            ++token;
          }
          ends.push_back(ends.back() + std::ranges::count(made.counts, true));
          made = {};
        }
        Tensor x = embedding(features, Tensor::of({std::ssize(kept)}, kept));
        for (const VectorStep& step : steps_) x = detail::apply(step, x);
        parts.push_back(options.normalize.value_or(false) ? normalized_rows(x) : x);
      });
  return {concat(parts, 0), Tensor::of({std::ssize(ends)}, ends)};
}

}  // namespace multihead::embed
