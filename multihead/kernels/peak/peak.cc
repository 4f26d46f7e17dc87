#include "multihead/kernels/peak/peak.h"

#include <cstring>
#include <ctime>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/peak/peak.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Enough chains to hide a latency of 4 on two pipes, few enough to stay in 16 registers.
constexpr int kChains = 12;

// Returns a value that depends on every chain, so that none is optimised away.
float FmaBurst(size_t steps) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> chain[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) chain[i] = hn::Set(d, 0.37f + 0.01f * static_cast<float>(i));
  const auto x = hn::Set(d, 0.99f), y = hn::Set(d, 0.013f);
  for (size_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], x, y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) chain[0] = hn::Add(chain[0], chain[i]);
  return hn::GetLane(chain[0]);
}

size_t FlopsPerStep() { return 2 * kChains * hn::Lanes(hn::ScalableTag<float>()); }

float ReadBurst(const float* data, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(d, data + i));
    s1 = hn::Add(s1, hn::LoadU(d, data + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(d, data + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

HWY_EXPORT(FmaBurst);
HWY_EXPORT(FlopsPerStep);
HWY_EXPORT(ReadBurst);

volatile float sink;

// Amount of work per second of calls to `burst`, each of which does `amount`.
template <class Burst>
double rate(double amount, double seconds, Burst burst) {
  const double start = thread_seconds();
  double done = 0, elapsed = 0;
  do {
    burst();
    done += amount;
    elapsed = thread_seconds() - start;
  } while (elapsed < seconds);
  return done / elapsed;
}

}  // namespace

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double fma_gflops(double seconds) {
  constexpr size_t kSteps = 16384;  // about 30 us
  const double flops = static_cast<double>(kSteps * HWY_DYNAMIC_DISPATCH(FlopsPerStep)());
  return 1e-9 * rate(flops, seconds, [] { sink = HWY_DYNAMIC_DISPATCH(FmaBurst)(kSteps); });
}

double read_gbps(const float* data, size_t bytes, double seconds) {
  return 1e-9 * rate(static_cast<double>(bytes), seconds,
                     [&] { sink = HWY_DYNAMIC_DISPATCH(ReadBurst)(data, bytes / sizeof(float)); });
}

double copy_gbps(float* to, const float* from, size_t bytes, double seconds) {
  return 1e-9 * rate(static_cast<double>(bytes), seconds, [&] {
           std::memcpy(to, from, bytes);
           sink = to[0];
         });
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE
