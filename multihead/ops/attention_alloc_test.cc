// Running out of memory at any point of a call: std::bad_alloc, nothing changed, the next call is right.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "multihead/autograd/tape.h"
#include "multihead/ops/attention.h"

// The address sanitizer brings allocation functions of its own.
#if defined(__SANITIZE_ADDRESS__)
#define MH_OWN_NEW 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MH_OWN_NEW 0
#endif
#endif
#ifndef MH_OWN_NEW
#define MH_OWN_NEW 1
#endif

#if MH_OWN_NEW
namespace {

std::atomic<int64_t> allocations_left{-1};  // -1: no limit

bool refuse() {
  int64_t left = allocations_left.load();
  while (left >= 0 && !allocations_left.compare_exchange_weak(left, left == 0 ? 0 : left - 1)) {
  }
  return left == 0;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  void* memory = refuse() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace multihead {
namespace {

TEST(AttentionAllocTest, AnyAllocationMayFail) {
  Rng rng(5);
  Tensor q = randn({1, 2, 9, 4}, rng).set_requires_grad(), k = randn({1, 1, 11, 4}, rng).set_requires_grad();
  Tensor v = randn({1, 1, 11, 3}, rng).set_requires_grad(), bias = randn({2, 9, 11}, rng).set_requires_grad();
  const Mask mask =
      causal() & drop(Tensor::zeros({9, 11}, Dtype::boolean)) & lengths(Tensor::full({1, 9}, 8, Dtype::i64));
  const auto step = [&] {
    Rng dropout(1);
    Tape tape;
    const Tensor y = attention(q, k, v, {.mask = mask, .bias = bias, .dropout_p = 0.2f, .rng = &dropout});
    tape.backward(y, Tensor::ones(y.shape()));
  };
  const auto gradients = [&] {
    std::vector<std::vector<float>> all;
    for (const Tensor* x : {&q, &k, &v, &bias}) {
      all.push_back(x->grad().to_vector<float>());
      x->set_grad({});
    }
    return all;
  };
  const std::vector<float> q_before = q.to_vector<float>();
  step();
  const auto expected = gradients();
  int64_t failures = 0;
  for (bool done = false; !done; ++failures) {
    ASSERT_LT(failures, 2000);
    allocations_left = failures;
    try {
      step();
      done = true;
    } catch (const std::bad_alloc&) {
    }
    allocations_left = -1;
    for (const Tensor* x : {&q, &k, &v, &bias}) {
      if (!done) x->set_grad({});
    }
  }
  EXPECT_GT(failures, 20);
  EXPECT_EQ(gradients(), expected);
  EXPECT_EQ(q.to_vector<float>(), q_before);
}

}  // namespace
}  // namespace multihead
#endif  // MH_OWN_NEW
