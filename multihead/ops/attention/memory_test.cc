// Memory of a long sequence, forward and backward, as the operating system counts it: nothing escapes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

#include "multihead/autograd/tape.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/ops/attention/attention.h"
#include "multihead/testing/sanitizers.h"

namespace multihead {
namespace {

// A line of /proc/self/status in bytes; -1 if there is none.
int64_t status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    int64_t kilobytes = 0;
    if (word == name + ":" && file >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

// Sets the largest resident size back to the present one.
bool reset_peak_resident() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

constexpr int64_t kMiB = 1 << 20;

// MiB beyond inputs, output and gradients at the worst moment.
double extra_mib(const AttentionOptions& options, int64_t length) {
  Rng rng(3);
  const Shape shape = {1, 8, length, 64};
  Tensor q = randn(shape, rng).set_requires_grad(), k = randn(shape, rng).set_requires_grad();
  Tensor v = randn(shape, rng).set_requires_grad();
  const Tensor d_out = randn(shape, rng);
  release_cached_memory();
  const int64_t before = status("VmRSS");
  if (before < 0 || !reset_peak_resident()) return NAN;
  Tape tape;
  const Tensor out = attention(q, k, v, options);
  tape.backward(out, d_out);
  size_t named = out.bytes() + q.grad().bytes() + k.grad().bytes() + v.grad().bytes();
  if (options.relative_key.defined()) named += options.relative_key.grad().bytes();
  return static_cast<double>(status("VmHWM") - before - static_cast<int64_t>(named)) / kMiB;
}

// In a process of its own, whose threads have no scratch memory yet.
double extra_mib_fresh(int threads, bool options) {
  int ends[2];
  if (pipe(ends) != 0) return NAN;
  const pid_t child = fork();
  if (child == 0) {
    set_num_threads(threads);
    Rng rng(1);
    AttentionOptions o;
    if (options) {
      o = {.mask = causal() & window(4095, 0), .softcap = 20, .dropout_p = 0.1f, .rng = &rng};
      o.alibi_slopes = Tensor::full({8}, 0.01).set_requires_grad();
      o.relative_bias = Tensor::full({8, 129}, 0.5).set_requires_grad();
      o.relative_key = Tensor::full({8, 8191, 64}, 0.01).set_requires_grad();
    }
    const double extra = extra_mib(o, 16384);
    _exit(write(ends[1], &extra, sizeof(extra)) == sizeof(extra) ? 0 : 1);
  }
  close(ends[1]);
  double extra = NAN;
  const bool whole = read(ends[0], &extra, sizeof(extra)) == sizeof(extra);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(whole) << "the child died";
  return extra;
}

TEST(AttentionMemoryTest, SixteenThousandTokensSlow) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer keeps memory of its own";
  for (const int threads : {1, 2, 8}) {
    for (const bool options : {false, true}) {
      if (threads == 1 && options) continue;  // the slowest; two threads show the same
      const double extra = extra_mib_fresh(threads, options);
      if (std::isnan(extra)) GTEST_SKIP() << "no /proc here that counts";
      const std::string what = std::to_string(threads) + " threads" + (options ? ", options" : "");
      std::printf("%s: %.1f MiB\n", what.c_str(), extra);
      EXPECT_LT(extra, 64) << what;  // the scores of one head alone would be 1 GiB
      EXPECT_GT(extra, 1) << what << ": nothing was counted";
    }
  }
}

}  // namespace
}  // namespace multihead
