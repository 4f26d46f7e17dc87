// Running out of memory at any point of a call: std::bad_alloc, nothing changed, the next call is right; and what a call
// asks for.
#include <gtest/gtest.h>

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/testing/sanitizers.h"

namespace {

std::atomic<int64_t> allocations_left{-1};  // -1: no limit
std::atomic<size_t> largest_list{0};        // what was asked of operator new, in bytes: tensors do not ask it

bool refuse() {
  int64_t left = allocations_left.load();
  while (left >= 0 && !allocations_left.compare_exchange_weak(left, left == 0 ? 0 : left - 1)) {
  }
  return left == 0;
}

}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  if (size > largest_list) largest_list = size;
  void* memory = refuse() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return refuse() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// Tensors and the kernels' scratch memory ask for aligned memory.
extern "C" [[gnu::noinline]] void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return refuse() ? nullptr : memalign(alignment, size);
}

namespace multihead {
namespace {

struct Call {
  std::string name;
  std::vector<Tensor> leaves;
  std::function<Tensor()> forward;
};

Tensor leaf(const Shape& shape, Rng& rng, Dtype dtype = Dtype::f32) {
  return randn(shape, rng).to(dtype).clone().set_requires_grad();
}

// Every way through the kernels takes memory of its own.
std::vector<Call> calls(Rng& dropout) {
  Rng rng(5);
  std::vector<Call> all;
  {
    const Tensor q = leaf({1, 2, 9, 4}, rng), k = leaf({1, 1, 11, 4}, rng), v = leaf({1, 1, 11, 3}, rng);
    const Tensor bias = leaf({2, 9, 11}, rng);
    const Mask mask = causal() & drop(Tensor::zeros({9, 11}, Dtype::boolean)) &
                      lengths(Tensor::full({1, 9}, 8, Dtype::i64));
    all.push_back({"options", {q, k, v, bias}, [=, &dropout] {
                     return attention(q, k, v,
                                      {.mask = mask, .bias = bias, .dropout_p = 0.2f, .rng = &dropout});
                   }});
  }
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (const int64_t queries : {1, 70}) {
      const Tensor q = leaf({1, 4, queries, 16}, rng, dtype), k = leaf({1, 2, 600, 16}, rng, dtype);
      const Tensor v = leaf({1, 2, 600, 16}, rng, dtype);
      all.push_back({concat(dtype, ", ", queries, " queries"), {q, k, v}, [=] {
                       return attention(q, k, v, {.mask = causal()});
                     }});
    }
  }
  const Tensor x = leaf({20, 2, 8}, rng), ends = Tensor::of<int64_t>({3}, {0, 7, 20});
  all.push_back({"ragged", {x}, [=] { return attention_ragged(x, x, x, ends, ends); }});
  return all;
}

TEST(AttentionAllocTest, AnyAllocationMayFail) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer has allocation functions of its own";
  Rng dropout(1);
  for (const Call& call : calls(dropout)) {
    SCOPED_TRACE(call.name);
    const auto step = [&] {
      dropout = Rng(1);
      release_cached_memory();
      Tape tape;
      const Tensor y = call.forward();
      tape.backward(y, Tensor::ones(y.shape(), y.dtype()));
    };
    const auto gradients = [&] {
      std::vector<std::vector<float>> all;
      for (const Tensor& x : call.leaves) {
        all.push_back(x.grad().to_vector<float>());
        x.set_grad({});
      }
      return all;
    };
    const std::vector<float> before = call.leaves[0].to_vector<float>();
    step();
    const auto expected = gradients();
    int64_t failures = 0;
    for (bool done = false; !done; ++failures) {
      ASSERT_LT(failures, 3000);
      std::string other;
      std::thread([&] {  // a thread of its own has no scratch memory yet
        allocations_left = failures;
        try {
          step();
          done = true;
        } catch (const std::bad_alloc&) {
        } catch (...) {
          other = "another exception";
        }
        allocations_left = -1;
      })
          .join();
      ASSERT_EQ(other, "") << "at allocation " << failures;
      for (const Tensor& x : call.leaves) {
        if (!done) x.set_grad({});
      }
    }
    EXPECT_GT(failures, 20);
    EXPECT_EQ(gradients(), expected);
    EXPECT_EQ(call.leaves[0].to_vector<float>(), before);
  }
}

// A list of all rows costs small shapes a tenth of their time.
TEST(AttentionAllocTest, NothingIsListedByRow) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer has allocation functions of its own";
  Rng rng(7);
  const Tensor q = leaf({12, 4, 64, 8}, rng), k = leaf({12, 4, 64, 8}, rng), v = leaf({12, 4, 64, 8}, rng);
  largest_list = 0;
  Tape tape;
  const Tensor y = attention(q, k, v, {.mask = causal()});
  tape.backward(y, Tensor::ones(y.shape()));
  EXPECT_LT(largest_list, 12 * 4 * 64 * sizeof(int64_t));
}

// With workers: their first scratch memory, and the memory of what they compute.
TEST(AttentionAllocTest, WorkersMayFailToo) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer has allocation functions of its own";
  const int before = num_threads();
  Rng rng(6);
  Tensor q = leaf({1, 3, 300, 16}, rng), k = leaf({1, 3, 600, 16}, rng), v = leaf({1, 3, 600, 16}, rng);
  const auto step = [&] {
    Tape tape;
    const Tensor y = attention(q, k, v, {.mask = causal()});
    tape.backward(y, Tensor::ones(y.shape()));
  };
  step();
  const std::vector<float> expected = k.grad().to_vector<float>();
  bool done = false;
  int64_t failures = 0;
  for (; !done; ++failures) {
    ASSERT_LT(failures, 3000);
    set_num_threads(2);
    parallel_for(2, [](int64_t, int) {});
    set_num_threads(4);
    parallel_for(8, [](int64_t, int) {});  // new workers, made before memory runs out
    for (Tensor* x : {&q, &k, &v}) x->set_grad({});
    allocations_left = failures;
    try {
      step();
      done = true;
    } catch (const std::bad_alloc&) {
    }
    allocations_left = -1;
  }
  set_num_threads(before);
  EXPECT_GT(failures, 10);
  EXPECT_EQ(k.grad().to_vector<float>(), expected);
}

}  // namespace
}  // namespace multihead
