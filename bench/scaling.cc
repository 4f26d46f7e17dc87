// How work scales over threads: speed-up and efficiency on 1 … n threads of this machine, and what 4, 16 and
// 64 would reach by the plan alone.
//   scaling_bench [REGEX]      only the cases whose name contains a match
//
// The first lines are multiplications in registers, which share nothing: where they lose, all cores at once have
// lower clocks, or fewer units, than one.
//
// The plan is simulated: the library is told of so many threads, one thread runs all tasks, their times are
// recorded, and a makespan follows from dealing them out in order, each to the first thread that is free. It
// shows too few or uneven tasks, time spent between parallel regions, and a microsecond for each region, not
// caches, memory, clocks, or tasks that wait for each other (a key block of attention's backward waits for
// one tile of the block before it).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <queue>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "multihead/core/threads/interrupt.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/kernels/peak/peak.h"
#include "multihead/multihead.h"

namespace multihead {
namespace {

constexpr double kRegion = 1e-6;  // seconds: what a parallel region costs beyond its tasks

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + std::ssize(x) / 2, x.end());
  return x[x.size() / 2];
}

// When the last of these tasks ends, each begun in order by the first thread that is free.
double makespan(const std::vector<double>& tasks, int threads) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < threads; ++i) free.push(0);
  double end = 0;
  for (const double task : tasks) {
    const double done = free.top() + task;
    free.pop(), free.push(done);
    end = std::max(end, done);
  }
  return end;
}

// The time of a call on threads that are not there. Each of its tasks counts with the least of its times, as
// the plan is the same each time, and what interrupts this thread is not part of it.
class Simulation {
 public:
  explicit Simulation(int threads) : threads_(threads) {}

  double run(const std::function<void()>& call) {
    for (int repeat = 0; repeat < kRepeats; ++repeat) run_once(call);
    double time = 0;
    for (const auto& tasks : regions_) time += makespan(tasks, threads_) + kRegion;
    for (const double gap : gaps_) time += gap;
    return time;
  }

 private:
  static constexpr int kRepeats = 7;

  void run_once(const std::function<void()>& call) {
    current_ = this;
    next_ = 0;
    last_ = seconds();
    {
      const HostThreadsScope host(
          {[](void (*task)(void*), void* context, int) { current_->region(task, context); }, threads_});
      call();
    }
    gap();
  }

  // Records the time between two regions.
  void gap() {
    if (gaps_.size() <= next_) gaps_.resize(next_ + 1, 1e30);
    gaps_[next_] = std::min(gaps_[next_], seconds() - last_);
  }

  void region(void (*task)(void*), void* context) {
    gap();
    std::vector<double> starts;
    {
      const InterruptScope each([&] { starts.push_back(seconds()); });
      task(context);
    }
    starts.push_back(seconds());
    if (regions_.size() <= next_) regions_.resize(next_ + 1);
    std::vector<double>& least = regions_[next_++];
    least.resize(starts.size() - 1, 1e30);
    for (size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], starts[i + 1] - starts[i]);
    last_ = seconds();
  }

  static inline Simulation* current_ = nullptr;
  const int threads_;
  size_t next_ = 0;
  double last_ = 0;
  std::vector<std::vector<double>> regions_;
  std::vector<double> gaps_;
};

struct Case {
  std::string name;
  std::function<void()> call;
};

Tensor random(Shape shape, Dtype dtype) {
  static Rng rng(1);
  return randn(shape, rng).to(dtype);
}

void attention_cases(Dtype dtype, const std::string& type, std::vector<Case>& cases) {
  for (const int64_t heads : {1, 2, 8}) {
    for (const bool masked : {false, true}) {
      if (masked && heads != 8) continue;
      std::vector<Tensor> x;
      for (int i = 0; i < 4; ++i) x.push_back(random({1, heads, 1024, 64}, dtype));
      AttentionOptions options;
      if (masked) options.mask = causal();
      const std::string shape = concat(" 1x", heads, "x1024x64 ", masked ? "causal " : "", type);
      cases.push_back({"attention" + shape, [=] {
                         const NoTape off;
                         attention(x[0], x[1], x[2], options);
                       }});
      std::vector<Tensor> leaves = {x[0].clone(), x[1].clone(), x[2].clone()};
      for (Tensor& leaf : leaves) leaf.set_requires_grad();
      cases.push_back({"training step of attention" + shape, [=]() mutable {
                         for (Tensor& leaf : leaves) leaf.set_grad({});
                         Tape tape;
                         tape.backward(attention(leaves[0], leaves[1], leaves[2], options), x[3]);
                       }});
    }
  }
}

void product_case(const char* kind, int64_t m, int64_t n, int64_t k, Dtype dtype, const std::string& type,
                  std::vector<Case>& cases) {
  const bool ta = kind[0] == 'T', tb = kind[1] == 'T';
  const Tensor a = random(ta ? Shape{k, m} : Shape{m, k}, dtype),
               b = random(tb ? Shape{n, k} : Shape{k, n}, dtype);
  Tensor c = Tensor::empty({m, n});
  cases.push_back({concat(kind, " ", m, "x", n, "x", k, " ", type), [=]() mutable {
                     kernels::MixedGemmArgs g;
                     g.a = {a.raw(), dtype}, g.lda = ta ? m : k;
                     g.b = {b.raw(), dtype}, g.ldb = tb ? k : n;
                     g.ta = ta ? kernels::Transpose::yes : kernels::Transpose::no;
                     g.tb = tb ? kernels::Transpose::yes : kernels::Transpose::no;
                     g.c = {c.raw(), Dtype::f32}, g.ldc = n;
                     g.m = m, g.n = n, g.k = k;
                     kernels::gemm_mixed(g);
                   }});
}

void training_case(int64_t layers, int64_t heads, int64_t width, Dtype dtype, const std::string& type,
                   std::vector<Case>& cases) {
  models::LanguageModelConfig config;
  config.vocab_size = 4096, config.context = 128;
  config.num_layers = layers, config.num_heads = heads, config.embed_dim = width, config.ffn_dim = 4 * width;
  Rng rng(1);
  const auto model = std::make_shared<models::LanguageModel>(config, rng);
  const auto optimizer = std::make_shared<optim::AdamW>(nn::parameters(*model), optim::AdamWOptions{});
  std::vector<int32_t> ids(8 * 128);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % 4096);
  const Tensor tokens = Tensor::of({8, 128}, ids);
  cases.push_back({concat("training ", layers, "/", heads, "/", width, " 8x128 ", type), [=] {
                     {
                       const Autocast autocast(dtype);
                       Tape tape;
                       tape.backward(model->loss(tokens, tokens));
                     }
                     optimizer->step();
                     optimizer->zero_grad();
                   }});
}

// The median and the least time of a call.
struct Times {
  double median, least;
};

Times times_of(const Case& c) {
  c.call();
  std::vector<double> times;
  for (const double end = seconds() + 0.5; seconds() < end || times.size() < 5;) {
    const double begin = seconds();
    c.call();
    times.push_back(seconds() - begin);
  }
  return {median(times), *std::min_element(times.begin(), times.end())};
}

void print_speed(int threads, double speed) {
  std::printf(" %d: %5.2f (%.2f)", threads, speed, speed / threads);
}

void measure(const Case& c) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  set_num_threads(1);
  const Times one = times_of(c);
  std::printf("%-52s %9.3f ms |", c.name.c_str(), one.median * 1e3);
  for (int threads = 2; threads <= cores; threads *= 2) {
    set_num_threads(threads);
    print_speed(threads, one.median / times_of(c).median);
  }
  set_num_threads(1);
  std::printf(" | plan of");
  for (const int threads : {4, 16, 64}) {
    print_speed(threads, one.least / Simulation(threads).run(c.call));
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Multiplications in registers on so many threads at once, in GFLOP/s.
double peak_of(double (*gflops)(double), int threads) {
  set_num_threads(threads);
  std::vector<double> rounds;
  for (int round = 0; round < 15; ++round) {
    std::vector<double> each(static_cast<size_t>(threads));
    parallel_for(threads, [&](int64_t i, int) { each[static_cast<size_t>(i)] = gflops(2e-3); });
    rounds.push_back(std::accumulate(each.begin(), each.end(), 0.0));
  }
  set_num_threads(1);
  return median(rounds);
}

void measure_peak(const char* name, double (*gflops)(double), int cores) {
  const double one = peak_of(gflops, 1);
  if (one == 0) return;
  std::printf("%-52s %9.0f GFLOP/s |", name, one);
  for (int threads = 2; threads <= cores; threads *= 2) {
    print_speed(threads, peak_of(gflops, threads) / one);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void run(const std::string& pattern) {
  std::printf("%s, %s: one thread, speed-up and (efficiency) on this machine, and by the plan\n",
              std::string(kernels::cpu_name()).c_str(),
              std::string(kernels::isa_name(kernels::current_isa())).c_str());
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  measure_peak("multiplications in registers, f32", kernels::fma_gflops, cores);
  measure_peak("multiplications in registers, bf16", kernels::bf16_gflops, cores);
  std::vector<Case> cases;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const std::string type = dtype == Dtype::f32 ? "f32" : "bf16";
    attention_cases(dtype, type, cases);
    product_case("NT", 1024, 2304, 768, dtype, type, cases);
    product_case("NT", 4096, 768, 256, dtype, type, cases);
    product_case("NN", 1024, 768, 3072, dtype, type, cases);
    product_case("TN", 768, 256, 4096, dtype, type, cases);
    product_case("TN", 2304, 768, 1024, dtype, type, cases);
    product_case("NN", 64, 64, 64, dtype, type, cases);
    training_case(6, 8, 256, dtype, type, cases);
    training_case(12, 12, 768, dtype, type, cases);
  }
  const std::regex wanted(pattern);
  for (const Case& c : cases) {
    if (std::regex_search(c.name, wanted)) measure(c);
  }
}

}  // namespace
}  // namespace multihead

int main(int argc, char** argv) {
  multihead::run(argc > 1 ? argv[1] : "");
  return 0;
}
