// The same bits however the work is cut: threads, batch, padding, chunks, instruction set.
#include <gtest/gtest.h>

#include <cstring>

#include "multihead/autograd/tape.h"
#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/ops/attention/testing-inl.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/everywhere.h"

namespace multihead {
namespace {

using Floats = std::vector<float>;
using kernels::Isa;

struct TensorPass {
  Tensor out, dq, dk, dv;
};

Operands operands(int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                  Dtype dtype) {
  Rng rng(23);
  return {
      randn({batch, heads, queries, 32}, rng).to(dtype), randn({batch, kv_heads, keys, 32}, rng).to(dtype),
      randn({batch, kv_heads, keys, 24}, rng).to(dtype), randn({batch, heads, queries, 24}, rng).to(dtype)};
}

TensorPass pass_of(Operands x, const AttentionOptions& options) {
  for (Tensor* t : {&x.q, &x.k, &x.v}) *t = t->detach().set_requires_grad();
  Tape tape;
  const Tensor out = attention(x.q, x.k, x.v, options);
  tape.backward(out, x.d_out);
  return {out, x.q.grad(), x.k.grad(), x.v.grad()};
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  const Floats x = a.to_vector<float>(), y = b.to_vector<float>();
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0) << what;
}

void expect_same_bits(const TensorPass& a, const TensorPass& b, const std::string& what) {
  expect_same_bits(a.out, b.out, what + ": out");
  expect_same_bits(a.dq, b.dq, what + ": d_query");
  expect_same_bits(a.dk, b.dk, what + ": d_key");
  expect_same_bits(a.dv, b.dv, what + ": d_value");
}

struct CallKind {
  const char* name;
  int64_t batch, heads, kv_heads, queries, keys;
};

constexpr CallKind kCallKinds[] = {
    {"many heads", 2, 6, 3, 150, 150},
    {"one head", 1, 1, 1, 700, 700},
    {"few queries, many keys", 1, 8, 2, 3, 1300},
    {"decode", 2, 8, 2, 1, 1300},
};

// 1, 2, 3 and 8 threads, and every target with FMA, f32; bf16 on one target at a time.
TEST(AttentionPromisesTest, ThreadsAndTargets) {
  const testing::EverywhereScope scope;
  for (const CallKind& kind : kCallKinds) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      const Operands x = operands(kind.batch, kind.heads, kind.kv_heads, kind.queries, kind.keys, dtype);
      std::optional<TensorPass> with_fma;
      for (const Isa isa : kernels::kIsas) {
        if (isa > kernels::best_isa()) continue;
        kernels::set_isa(isa);
        std::optional<TensorPass> one;
        for (const int threads : {1, 2, 3, 8}) {
          set_num_threads(threads);
          Rng rng(1);
          const TensorPass pass = pass_of(x, {.mask = causal(), .dropout_p = 0.1f, .rng = &rng});
          if (!one) one = pass;
          expect_same_bits(pass, *one,
                           concat(kind.name, ", ", kernels::isa_name(isa), ", ", threads, " threads"));
        }
        if (isa == Isa::baseline || dtype != Dtype::f32) continue;
        if (!with_fma) with_fma = one;
        expect_same_bits(*one, *with_fma, concat(kind.name, ", avx2 against avx512"));
      }
    }
  }
}

// A sequence alone, unpadded, on one thread; the same as row 11 of a padded batch of 32 on eight.
TEST(AttentionPromisesTest, ARowAloneAndInABatchOf32) {
  const testing::EverywhereScope scope;
  constexpr int64_t kBatch = 32, kRow = 11, kLength = 83, kPadded = 131;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Operands all = operands(kBatch, 4, 2, kPadded, kPadded, dtype);
    std::vector<int64_t> valid;
    for (int64_t b = 0; b < kBatch; ++b) valid.push_back(b == kRow ? kLength : 1 + b * 37 % kPadded);
    const Tensor lens = Tensor::of<int64_t>({kBatch}, valid);
    Operands one;
    const auto cut = [&](const Tensor& x) { return tokens(slice(x, 0, kRow, kRow + 1), 0, kLength).clone(); };
    one.q = cut(all.q), one.k = cut(all.k), one.v = cut(all.v), one.d_out = cut(all.d_out);
    const Tensor slopes = Tensor::of<float>({4}, {0.5f, 0.25f, 0.125f, 0.0625f});
    for (const bool from_start : {false, true}) {
      // Padding follows the sequence, so "the last query sees the last key" must hold for its own
      // end.
      const Mask rule = from_start ? causal(Align::start) & window(40, 0, Align::start) : Mask();
      set_num_threads(1);
      const TensorPass alone =
          pass_of(one, {.mask = rule, .softcap = 12, .alibi_slopes = from_start ? slopes : Tensor()});
      set_num_threads(8);
      const TensorPass batch = pass_of(all, {.mask = rule & lengths(lens) & query_lengths(lens),
                                             .softcap = 12,
                                             .alibi_slopes = from_start ? slopes : Tensor()});
      expect_same_bits({cut(batch.out), cut(batch.dq), cut(batch.dk), cut(batch.dv)}, alone,
                       concat(dtype, from_start ? ", causal window" : ", dense"));
    }
  }
}

// One prefill, chunks, token by token; across the kernel's key blocks, on any threads and target.
TEST(AttentionPromisesTest, PrefillChunksAndTokens) {
  const testing::EverywhereScope scope;
  constexpr int64_t kLength = 560;
  const Operands x = operands(1, 8, 2, kLength, kLength, Dtype::f32);
  const Tensor slopes = Tensor::full({8}, 0.0625);
  for (const bool options : {false, true}) {
    AttentionOptions o = {.mask = causal()};
    if (options) o = {.mask = causal() & window(300, 0), .softcap = 15, .alibi_slopes = slopes};
    set_num_threads(1);
    kernels::set_isa(kernels::best_isa());
    const Tensor whole = attention(x.q, x.k, x.v, o);
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
      if (isa > kernels::best_isa()) continue;
      kernels::set_isa(isa);
      for (const int threads : {1, 2, 3, 8}) {
        set_num_threads(threads);
        for (const int64_t chunk : {1, 19, 256}) {
          for (int64_t begin = chunk == 1 ? 500 : 0; begin < kLength; begin += chunk) {
            const int64_t end = std::min(begin + chunk, kLength);
            const Tensor part =
                attention(tokens(x.q, begin, end), tokens(x.k, 0, end), tokens(x.v, 0, end), o);
            expect_same_bits(part.contiguous(), tokens(whole, begin, end).contiguous(),
                             concat("chunk of ", chunk, " at ", begin, ", ", threads, " threads, ",
                                    kernels::isa_name(isa)));
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace multihead
