// The memory of a generator's running sequences.
#include <algorithm>

#include "multihead/generate/generator.h"
#include "multihead/generate/prefix-inl.h"

namespace multihead {

size_t Generator::bytes() const {
  const Lock lock(mutex_);
  size_t total = state_.bytes();
  for (const Prompt& prompt : prompts_) total += prompt.state.bytes();
  for (const Reading& one : readings_) total += one.state.bytes();
  return total;
}

// Room for what these sequences will hold, or for the next part of it where that is much. A ring has one size.
int64_t Generator::capacity_for(const Rows& rows) const {
  constexpr int64_t kEnough = 1024, kStep = 128;
  if (model_.has_ring()) return options_.capacity;
  int64_t most = 1;
  for (const int64_t number : rows) {
    if (number < 0) continue;
    const Sequence& sequence = at(number);
    const int64_t length = std::ssize(sequence.text) + sequence.drafted,
                  whole = whole_length(length - std::ssize(sequence.fresh), sequence.options.max_new_tokens);
    most = std::max({most, length, std::min(whole, std::max(kEnough, 2 * length))});
  }
  return std::min(limit_, (most + kStep - 1) / kStep * kStep);
}

nn::DecodeState Generator::make_state(const Rows& rows, int64_t least) const {
  return model_.make_state({.batch = std::ssize(rows),
                            .capacity = std::max(capacity_for(rows), least),
                            .ring = model_.has_ring(),
                            .dtype = options_.cache_dtype});
}

void Generator::drop_ended() {
  const auto drop = [&](Rows& rows) {
    for (int64_t& sequence : rows) {
      if (sequence >= 0 && finished(sequence)) sequence = -1;
    }
  };
  drop(rows_);
  for (Reading& one : readings_) drop(one.rows);
  std::erase_if(readings_, [](const Reading& one) {
    return std::all_of(one.rows.begin(), one.rows.end(), [](int64_t sequence) { return sequence < 0; });
  });
}

// Half of the rows free: the rest is computed without them.
void Generator::shrink() {
  const auto left = running(), batch = static_cast<int64_t>(rows_.size());
  if (left <= batch / 2 && batch > 0) resize(left);
}

// Texts that have become longer than the state is get a longer one.
void Generator::grow() {
  if (state_.window > 0) return;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] < 0 || state_.lengths[r] + std::ssize(at(rows_[r]).pending) <= state_.capacity) continue;
    return resize(std::ssize(rows_));
  }
}

// A state of `rows` rows for at least so many tokens, with the running sequences in front.
void Generator::resize(int64_t rows, int64_t least) {
  if (rows == 0) {
    state_ = {}, rows_ = {};
    return;
  }
  Rows kept;
  std::vector<size_t> places;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r] < 0) continue;
    kept.push_back(rows_[r]);
    places.push_back(r);
  }
  kept.resize(static_cast<size_t>(rows), -1);
  nn::DecodeState state = make_state(kept, least);
  for (size_t i = 0; i < places.size(); ++i) {
    state.put(static_cast<int64_t>(i), state_, static_cast<int64_t>(places[i]), state_.lengths[places[i]]);
  }
  state_ = std::move(state), rows_ = std::move(kept);
}

// The rows of `state` move into free rows of ours.
void Generator::join(const Rows& rows, nn::DecodeState& state) {
  drop_ended();
  if (running() == 0) {
    state_ = std::move(state), rows_ = rows;
    return;
  }
  const int64_t needed =
      running() + std::count_if(rows.begin(), rows.end(), [](int64_t sequence) { return sequence >= 0; });
  const int64_t batch = std::ssize(rows_), least = capacity_for(rows);
  if (needed > batch || least > state_.capacity)
    resize(needed > batch ? std::min(std::max(needed, 2 * batch), options_.max_batch) : batch, least);
  size_t free = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r] < 0) continue;  // cancelled meanwhile
    while (rows_[free] >= 0) ++free;
    rows_[free] = rows[r];
    state_.put(static_cast<int64_t>(free), state, static_cast<int64_t>(r), state.lengths[r]);
  }
}

}  // namespace multihead
