// Runs key heads of the backward pass, on one thread or on all. Internal.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "multihead/kernels/attention/block/backward_call-inl.h"
#include "multihead/kernels/attention/driver-inl.h"

namespace multihead::kernels {

// Sums of the gradients of what a score function captured: key block n of any head adds to copy n % count,
// block after block. So the order depends on the table's size and the key's position alone.
class CapturedSums {
 public:
  explicit CapturedSums(const BackwardCall& call) : to_(as_floats(call.gradient.d_captured)) {
    constexpr int64_t kMost = 8, kFloats = int64_t{1} << 21;  // 8 MiB, or one copy of a larger table
    if (to_ == nullptr) return;
    size_ = call.forward.terms->score_function.captured;
    count_ = std::clamp<int64_t>(kFloats / std::max<int64_t>(size_, 1), 1, kMost);
    sums_.assign(static_cast<size_t>(count_ * size_), 0.0f);
    turns_ = std::vector<std::atomic<int32_t>>(static_cast<size_t>(count_));
  }
  void lend(BackwardJob& job) {
    if (to_ == nullptr) return;
    for (auto& turn : turns_) turn.store(0, std::memory_order_relaxed);
    job.captured = sums_.data(), job.turns = turns_.data(), job.copies = count_;
  }
  void add() const {
    for (int64_t n = 0; n < count_; ++n) {
      const float* from = sums_.data() + n * size_;
      for (int64_t i = 0; i < size_; ++i) to_[i] += from[i];
    }
  }

 private:
  float* to_;
  int64_t size_ = 0, count_ = 0;
  std::vector<float> sums_;
  std::vector<std::atomic<int32_t>> turns_;
};

struct HeadOfSample {
  int64_t b, kv;
};

/// Runs a key head on the calling thread.
void run_backward_job(const BackwardCall& call, HeadOfSample head, CapturedSums& captured);
/// Runs some together on all threads. No two of them may add to the same term gradients.
void run_backward_jobs(const BackwardCall& call, std::span<const HeadOfSample> heads, CapturedSums& captured);

}  // namespace multihead::kernels
