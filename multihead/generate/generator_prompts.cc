#include <algorithm>

#include "multihead/generate/generator.h"

namespace multihead {

int64_t Generator::reading() const {
  int64_t count = 0;
  for (const Reading& one : readings_) {
    count += std::count_if(one.rows.begin(), one.rows.end(),
                           [&](int64_t sequence) { return sequence >= 0 && !finished(sequence); });
  }
  return count;
}

// The log-probabilities of the tokens that follow those of `features` [n, E], the first of which is at `begin` of the
// text. Throws ValueError if they are not finite.
void Generator::score_prompt(Sequence& sequence, const Tensor& features, int64_t begin) const {
  constexpr int64_t kBlock = 16;  // a row of logits is as long as the vocabulary
  const int64_t width = features.size(1), vocabulary = model_.config().vocab_size;
  const int64_t count = std::min(features.size(0), std::ssize(sequence.text) - 1 - begin);
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t rows = std::min(kBlock, count - at);
    const Tensor logits =
        model_.logits(features.as_strided({rows, width}, {width, 1}, at * width)).to(Dtype::f32);
    for (int64_t r = 0; r < rows; ++r) {
      const std::span<const float> row(logits.data<float>() + r * vocabulary,
                                       static_cast<size_t>(vocabulary));
      const int32_t token = sequence.text[static_cast<size_t>(begin + at + r + 1)];
      sequence.prompt_logprobs.push_back(token_logprobs(row, token, sequence.options.top_logprobs));
    }
  }
}

// Sequences that are short are read together, as many as a chunk holds; a longer one has a state of its own, so that
// the others need not wait for it.
void Generator::begin_reading(const Rows& rows) {
  const int64_t chunk = options_.prompt_chunk;
  std::vector<Rows> groups;
  int64_t room = 0;
  for (const int64_t number : rows) {
    const auto size = std::ssize(at(number).pending);
    const bool joins = !groups.empty() && (chunk == 0 || size <= room);
    if (!joins) {
      groups.emplace_back();
      room = chunk;
    }
    groups.back().push_back(number);
    room -= size;
  }
  for (Rows& group : groups) {
    Reading& one = readings_.emplace_back();
    one.rows = std::move(group);
    one.state = make_state(one.rows);
    for (int64_t r = 0; r < std::ssize(one.rows); ++r) {
      Sequence& sequence = at(one.rows[static_cast<size_t>(r)]);
      one.texts.push_back(sequence.pending);
      recall(one.state, r, sequence);
    }
  }
}

// Reads a chunk of the first prompts, which then join the running ones or wait for their next turn.
void Generator::read_chunk() {
  if (readings_.empty()) return;
  Reading one = std::move(readings_.front());
  readings_.pop_front();
  Sequence* longer = nullptr;
  if (options_.prompt_chunk > 0 && one.rows.size() == 1) {
    Sequence& only = at(one.rows[0]);
    if (std::ssize(only.pending) > options_.prompt_chunk) longer = &only;
  }
  if (longer != nullptr) {
    const auto cut = longer->pending.begin() + options_.prompt_chunk;
    std::vector<int32_t> rest(cut, longer->pending.end());
    longer->pending.erase(cut, longer->pending.end());
    read(one.rows, one.state);
    longer->pending = std::move(rest);
    readings_.push_back(std::move(one));
    return;
  }
  advance(one.rows, one.state);
  for (int64_t r = 0; r < std::ssize(one.rows); ++r) {
    const int64_t number = one.rows[static_cast<size_t>(r)];
    // A text that slid on is no prompt.
    if (number >= 0 && std::ssize(at(number).fresh) <= 1)
      remember(one.state, r, one.texts[static_cast<size_t>(r)]);
  }
  join(one.rows, one.state);
}

}  // namespace multihead
