// Promises of every path through the kernels: all dtypes, many and few queries, every instruction set.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "multihead/autograd/tape.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/masks/mask_mod.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/testing/everywhere.h"
#include "multihead/testing/float_mode.h"

namespace multihead {
namespace {

using Floats = std::vector<float>;
using kernels::Isa;

struct Path {
  const char* name;
  Dtype dtype;
  int64_t queries, keys;
};

constexpr Path kPaths[] = {
    {"tiles", Dtype::f32, 70, 90},        {"long rows", Dtype::f32, 67, 531},
    {"few queries", Dtype::f32, 3, 531},  {"decode", Dtype::f32, 1, 531},
    {"bf16 tiles", Dtype::bf16, 70, 90},  {"bf16 few queries", Dtype::bf16, 3, 531},
    {"bf16 decode", Dtype::bf16, 1, 531}, {"f16", Dtype::f16, 5, 90},
    {"f64", Dtype::f64, 5, 90},
};

constexpr int64_t kDim = 24, kValueDim = 16;

Operands operands(const Path& path) {
  Rng rng(17);
  return {randn({2, kHeads, path.queries, kDim}, rng).to(path.dtype),
          randn({2, kKeyHeads, path.keys, kDim}, rng).to(path.dtype),
          randn({2, kKeyHeads, path.keys, kValueDim}, rng).to(path.dtype),
          randn({2, kHeads, path.queries, kValueDim}, rng).to(path.dtype)};
}

struct PassWithLse {
  Floats out, lse, dq, dk, dv;
  bool operator==(const PassWithLse&) const = default;
};

// `mode`: what the caller's control register holds meanwhile.
PassWithLse run(Operands x, AttentionOptions options, const ScoreMod& mod = {}, unsigned mode = 0) {
  x.q.set_requires_grad(), x.k.set_requires_grad(), x.v.set_requires_grad();
  for (const Tensor* t : {&x.q, &x.k, &x.v}) t->set_grad({});
  Tensor lse;
  options.lse = &lse;
  Tape tape;
  Tensor out;
  {
    const testing::FloatModeScope scope(mode);
    out = attention(x.q, x.k, x.v, options, mod);
    tape.backward(out, x.d_out);
    EXPECT_TRUE(scope.untouched()) << "the caller's mode is gone";
  }
  return {out.to_vector<float>(), lse.to_vector<float>(), x.q.grad().to_vector<float>(),
          x.k.grad().to_vector<float>(), x.v.grad().to_vector<float>()};
}

void expect_same_bits(const Floats& a, const Floats& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

template <class F>
void on_every_path(F&& f) {
  const testing::EverywhereScope scope;
  for (const Isa isa : kernels::kIsas) {
    if (isa > kernels::best_isa()) continue;
    kernels::set_isa(isa);
    for (const Path& path : kPaths) {
      SCOPED_TRACE(std::string(path.name) + ", " + std::string(kernels::isa_name(isa)));
      f(path);
    }
  }
}

// Every way to say that keys from `first` on are excluded.
std::vector<AttentionOptions> excluding_from(int64_t first, const Path& path) {
  const auto row = [&](double inside, double outside, Dtype dtype) {
    Tensor x = Tensor::full({1, path.keys}, inside, dtype);
    x.as_strided({1, path.keys - first}, {path.keys, 1}, first).fill(outside);
    return x;
  };
  Tensor flags = row(1, 0, Dtype::boolean);
  const Dtype bias = path.dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  const Tensor blocked = Tensor::zeros({1, (path.keys + 4) / 5}, Dtype::boolean);
  blocked.as_strided({first / 5}, {1}).fill(1);
  std::vector<AttentionOptions> all;
  all.push_back({.mask = lengths(Tensor::full({2}, static_cast<double>(first), Dtype::i64))});
  all.push_back({.mask = keep(flags)});
  all.push_back({.mask = mask_mod([first](ScoreIndex at) { return at.key < first; })});
  all.push_back({.mask = window(-1, 0, Diagonal(first - path.queries)) &
                         lengths(Tensor::full({2}, static_cast<double>(first), Dtype::i64))});
  all.push_back({.mask = blocks(blocked, path.queries, 5)});
  all.push_back({.bias = row(0.5, -INFINITY, bias)});
  return all;
}

TEST(AttentionPathsTest, EmptyRowsAreZeroWithZeroGradients) {
  on_every_path([](const Path& path) {
    const Operands x = operands(path);
    size_t number = 0;
    for (const AttentionOptions& options : excluding_from(0, path)) {
      SCOPED_TRACE(number++);
      const PassWithLse pass = run(x, options);
      for (const float y : pass.out) ASSERT_EQ(y, 0.0f);
      for (const float l : pass.lse) ASSERT_EQ(l, -kInf);
      for (const Floats* g : {&pass.dq, &pass.dk, &pass.dv}) {
        for (const float y : *g) ASSERT_EQ(y, 0.0f);
      }
    }
  });
}

// A value of NaN under a bias of -inf is 0 · NaN only if they are multiplied.
TEST(AttentionPathsTest, NanInExcludedKeysStaysThere) {
  on_every_path([](const Path& path) {
    constexpr int64_t kFirst = 75;
    Operands clean = operands(path), dirty = operands(path);
    for (Tensor* t : {&dirty.k, &dirty.v}) {
      const Shape& s = t->strides();
      t->as_strided({2, kKeyHeads, path.keys - kFirst, t->size(3)}, s, kFirst * s[2]).fill(NAN);
    }
    size_t number = 0;
    for (const AttentionOptions& options : excluding_from(kFirst, path)) {
      SCOPED_TRACE(number++);
      const PassWithLse a = run(clean, options), b = run(dirty, options);
      expect_same_bits(a.out, b.out, "out");
      expect_same_bits(a.lse, b.lse, "lse");
      const std::pair<const Floats*, const Floats*> gradients[] = {
          {&a.dq, &b.dq}, {&a.dk, &b.dk}, {&a.dv, &b.dv}};
      for (const auto& [x, y] : gradients) {
        for (size_t i = 0; i < x->size(); ++i) ASSERT_NEAR((*x)[i], (*y)[i], 4e-2 * (1 + std::abs((*x)[i])));
      }
    }
  });
}

// Flushing of subnormals, rounding down, up and towards zero: nothing of it reaches the result, and the
// caller keeps it.
TEST(AttentionPathsTest, ForeignFloatingPointModesChangeNothing) {
  on_every_path([](const Path& path) {
    Operands x = operands(path);
    x.q.as_strided({kDim}, {1}).fill(1e-41);  // denormal where the type has them
    const AttentionOptions options = {.mask = causal(), .softcap = 9};
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      const PassWithLse expected = run(x, options);
      for (const unsigned mode : testing::kFloatModes) {
        const PassWithLse got = run(x, options, {}, mode);
        expect_same_bits(got.out, expected.out, "out");
        expect_same_bits(got.dq, expected.dq, "dq");
        expect_same_bits(got.dk, expected.dk, "dk");
        expect_same_bits(got.dv, expected.dv, "dv");
      }
    }
  });
}

// Memory that ends (or begins) where reading is forbidden: one element too far is a crash.
class Guarded {
 public:
  Guarded(const Tensor& source, bool at_end) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = source.bytes(), inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page, inner, PROT_READ | PROT_WRITE);
    char* data = base_ + page + (at_end ? inner - bytes : 0);
    tensor = Tensor::borrow(data, source.shape(), contiguous_strides(source.shape()), source.dtype());
    tensor.copy_from(source);
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  Tensor tensor;

 private:
  char* base_;
  size_t size_;
};

TEST(AttentionPathsTest, NothingIsReadBeyondTheOperands) {
  on_every_path([](const Path& path) {
    const Operands x = operands(path);
    Rng rng(5);
    const Dtype score = path.dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32;
    const Tensor bias = randn({kHeads, path.queries, path.keys}, rng).to(score);
    const Tensor flags = Tensor::ones({path.queries, path.keys}, Dtype::boolean);
    const PassWithLse expected = run(x, {.mask = causal() & keep(flags), .bias = bias});
    for (const bool at_end : {true, false}) {
      const Guarded q(x.q, at_end), k(x.k, at_end), v(x.v, at_end), d_out(x.d_out, at_end);
      const Guarded b(bias, at_end), f(flags, at_end);
      const PassWithLse got = run({q.tensor, k.tensor, v.tensor, d_out.tensor},
                                  {.mask = causal() & keep(f.tensor), .bias = b.tensor});
      EXPECT_TRUE(got == expected) << (at_end ? "at the end" : "at the beginning");
    }
  });
}

// Aligned to the element only, at an odd place within a cache line.
TEST(AttentionPathsTest, BasesNeedNoAlignment) {
  on_every_path([](const Path& path) {
    const Operands x = operands(path);
    std::vector<std::vector<std::byte>> memory;
    const auto moved = [&](const Tensor& t, size_t elements) {
      memory.emplace_back(t.bytes() + 128);
      auto address = reinterpret_cast<uintptr_t>(memory.back().data());
      address = (address + 63) / 64 * 64 + elements * size_of(t.dtype());
      const Tensor y = Tensor::borrow(reinterpret_cast<void*>(address), t.shape(),
                                      contiguous_strides(t.shape()), t.dtype());
      y.copy_from(t);
      return y;
    };
    const AttentionOptions options = {.mask = causal()};
    EXPECT_TRUE(run({moved(x.q, 1), moved(x.k, 3), moved(x.v, 5), moved(x.d_out, 7)}, options) ==
                run(x, options));
  });
}

// The three operands may be one tensor, or views that overlap; the gradients of one tensor add up.
TEST(AttentionPathsTest, OperandsMayShareMemory) {
  Rng rng(8);
  const int64_t length = 70;
  const Tensor memory = randn({1, 2, length + 20, 16}, rng);
  const auto part = [&](int64_t begin) {
    return memory.as_strided({1, 2, length, 16}, memory.strides(), begin * 16);
  };
  const Tensor d_out = randn({1, 2, length, 16}, rng);
  const AttentionOptions options = {.mask = causal()};
  const PassWithLse overlapping = run({part(0), part(10), part(20), d_out}, options);
  const PassWithLse apart = run({part(0).clone(), part(10).clone(), part(20).clone(), d_out}, options);
  EXPECT_TRUE(overlapping == apart);

  Tensor x = part(0).clone().set_requires_grad();
  Tape tape;
  tape.backward(attention(x, x, x, options), d_out);
  const PassWithLse each = run({x.clone(), x.clone(), x.clone(), d_out}, options);
  const Floats sum = x.grad().to_vector<float>();
  for (size_t i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(sum[i], each.dq[i] + each.dk[i] + each.dv[i], 1e-5 * (1 + std::abs(sum[i])));
  }
}

// An exception inside a worker: the caller gets it, no thread waits for ever, the next call is right.
TEST(AttentionPathsTest, ExceptionsReachTheCallerFromForwardAndBackward) {
  const testing::EverywhereScope scope;
  Rng rng(4);
  for (const int threads : {1, 2, 8}) {
    set_num_threads(threads);
    for (const int64_t heads : {1, 8}) {  // key blocks of one head in parallel; heads in parallel
      Operands x = {randn({1, heads, 400, 16}, rng), randn({1, heads, 700, 16}, rng),
                    randn({1, heads, 700, 16}, rng), randn({1, heads, 400, 16}, rng)};
      const PassWithLse expected = run(x, {});
      for (const bool backward_only : {false, true}) {
        const auto mod = score_mod([backward_only](auto score, ScoreIndex at) {
          const bool derivative = !std::is_arithmetic_v<decltype(score)>;
          if (at.key == 433 && at.row == 201 && derivative == backward_only) throw std::runtime_error("mine");
          return score;
        });
        for (int round = 0; round < (testing::kSanitized ? 1 : 3); ++round)
          EXPECT_THROW(run(x, {}, mod), std::runtime_error);
      }
      EXPECT_TRUE(run(x, {}) == expected) << threads << " threads, " << heads << " heads";
    }
  }
}

}  // namespace
}  // namespace multihead
