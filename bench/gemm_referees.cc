// Our matrix product beside oneDNN's and OpenBLAS's, in one process, on the shapes that training uses.
//
// Each round runs every contender for about a millisecond, in random order, each between two bursts that
// measure the core's multiply-add peak; the table shows medians over the rounds of time ratios and of shares
// of that peak. Results are checked against f64 on sampled elements first.
#include <cblas.h>
#include <dlfcn.h>
#include <dnnl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/kernels/peak/peak.h"

#ifndef MULTIHEAD_GIT_COMMIT
#define MULTIHEAD_GIT_COMMIT "unknown"
#endif

extern "C" void omp_set_num_threads(int) __attribute__((weak));  // oneDNN's threads, if it is built on OpenMP

namespace {

namespace mk = multihead::kernels;
using mk::Transpose;

struct Shape {
  const char* group;
  int64_t m, n, k;
};

// Tokens x in x out of the presets; the transposes of a linear layer are forward NT, dX NN and dW TN.
const Shape kLayers[] = {{"base", 1024, 768, 768},  {"base", 1024, 2304, 768}, {"base", 1024, 3072, 768},
                         {"base", 1024, 768, 3072}, {"tiny", 4096, 128, 128},  {"tiny", 4096, 384, 128},
                         {"tiny", 4096, 512, 128},  {"tiny", 4096, 128, 512},  {"tiny", 768, 128, 128},
                         {"tiny", 768, 384, 128},   {"tiny", 768, 512, 128},   {"tiny", 768, 96, 128},
                         {"small", 4096, 256, 256}, {"small", 4096, 768, 256}, {"small", 4096, 1024, 256}};
const Shape kOthers[] = {{"cube", 64, 64, 64},
                         {"rows", 1, 4096, 4096},
                         {"rows", 2, 4096, 4096},
                         {"rows", 4, 4096, 4096},
                         {"rows", 8, 4096, 4096}};

struct Case {
  std::string group;
  Transpose ta, tb;
  int64_t m, n, k;

  std::string name() const {
    return group + ' ' + (ta == Transpose::yes ? 'T' : 'N') + (tb == Transpose::yes ? 'T' : 'N') + ' ' +
           std::to_string(m) + 'x' + std::to_string(n) + 'x' + std::to_string(k);
  }
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Shape& s : kLayers) {  // m tokens, n outputs, k inputs
    cases.push_back({s.group, Transpose::no, Transpose::yes, s.m, s.n, s.k});
    cases.push_back({s.group, Transpose::no, Transpose::no, s.m, s.k, s.n});
    cases.push_back({s.group, Transpose::yes, Transpose::no, s.n, s.k, s.m});
  }
  for (const Shape& s : kOthers) {
    cases.push_back({s.group, Transpose::no, Transpose::yes, s.m, s.n, s.k});
    cases.push_back({s.group, Transpose::no, Transpose::no, s.m, s.n, s.k});
    if (s.m == s.n) cases.push_back({s.group, Transpose::yes, Transpose::no, s.m, s.n, s.k});
  }
  return cases;
}

struct Operands {
  explicit Operands(const Case& c) : a(c.m * c.k), b(c.k * c.n), c(c.m * c.n) {
    std::mt19937 random(11);
    std::uniform_real_distribution<float> real(-1, 1);
    for (float& x : a) x = real(random);
    for (float& x : b) x = real(random);
    lda = c.ta == Transpose::yes ? c.m : c.k;
    ldb = c.tb == Transpose::yes ? c.k : c.n;
  }
  std::vector<float> a, b, c;
  int64_t lda, ldb;
};

void run_ours(const Case& s, Operands& o) {
  mk::gemm(mk::GemmArgs<float>{.a = o.a.data(),
                               .lda = o.lda,
                               .ta = s.ta,
                               .b = o.b.data(),
                               .ldb = o.ldb,
                               .tb = s.tb,
                               .c = o.c.data(),
                               .ldc = s.n,
                               .m = s.m,
                               .n = s.n,
                               .k = s.k});
}

void run_onednn(const Case& s, Operands& o) {
  dnnl_sgemm(s.ta == Transpose::yes ? 'T' : 'N', s.tb == Transpose::yes ? 'T' : 'N', s.m, s.n, s.k, 1.0f,
             o.a.data(), o.lda, o.b.data(), o.ldb, 0.0f, o.c.data(), s.n);
}

void run_openblas(const Case& s, Operands& o) {
  const auto op = [](Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; };
  const auto i = [](int64_t x) { return static_cast<int>(x); };
  cblas_sgemm(CblasRowMajor, op(s.ta), op(s.tb), i(s.m), i(s.n), i(s.k), 1.0f, o.a.data(), i(o.lda),
              o.b.data(), i(o.ldb), 0.0f, o.c.data(), i(s.n));
}

// A library given by --sgemm with a Fortran SGEMM, such as the MKL inside PyTorch's libtorch_cpu.so.
using FortranSgemm = void(const char*, const char*, const int*, const int*, const int*, const float*,
                          const float*, const int*, const float*, const int*, const float*, float*,
                          const int*);
FortranSgemm* other_sgemm = nullptr;

void run_other(const Case& s, Operands& o) {  // column-major: the transposed product
  const char ta = s.ta == Transpose::yes ? 'T' : 'N', tb = s.tb == Transpose::yes ? 'T' : 'N';
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  const int lda = static_cast<int>(o.lda), ldb = static_cast<int>(o.ldb);
  const float one = 1, zero = 0;
  other_sgemm(&tb, &ta, &n, &m, &k, &one, o.b.data(), &ldb, o.a.data(), &lda, &zero, o.c.data(), &n);
}

bool load_other(const std::string& path, int threads) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return false;
  }
  for (const char* name : {"SGEMM", "sgemm_"}) {
    if (other_sgemm == nullptr) other_sgemm = reinterpret_cast<FortranSgemm*>(dlsym(library, name));
  }
  using SetThreads = int(int);
  if (auto* set = reinterpret_cast<SetThreads*>(dlsym(library, "MKL_Set_Num_Threads_Local"))) set(threads);
  if (other_sgemm == nullptr) std::fprintf(stderr, "%s: no SGEMM\n", path.c_str());
  return other_sgemm != nullptr;
}

// Largest relative error of sampled elements.
double error_of(const Case& s, const Operands& o) {
  std::mt19937_64 random(5);
  double worst = 0;
  for (int sample = 0; sample < 100; ++sample) {
    const int64_t i = static_cast<int64_t>(random() % s.m), j = static_cast<int64_t>(random() % s.n);
    double sum = 0, size = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const double x = s.ta == Transpose::yes ? o.a[k * o.lda + i] : o.a[i * o.lda + k];
      const double y = s.tb == Transpose::yes ? o.b[j * o.ldb + k] : o.b[k * o.ldb + j];
      sum += x * y;
      size += std::abs(x * y);
    }
    worst = std::max(worst, std::abs(o.c[i * s.n + j] - sum) / size);
  }
  return worst;
}

struct Contender {
  const char* name;
  std::function<void(const Case&, Operands&)> run;
};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
  return x[x.size() / 2];
}

// The CPU time of this thread where it does all the work, else the wall's.
double now(int threads) {
  if (threads == 1) return mk::thread_seconds();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_per_call(const Contender& who, const Case& s, Operands& o, int threads) {
  const double start = now(threads);
  int calls = 0;
  double elapsed = 0;
  do {
    who.run(s, o);
    ++calls;
    elapsed = now(threads) - start;
  } while (elapsed < 1e-3);
  return elapsed / calls;
}

double peak_of(int threads) {
  std::vector<double> of(threads, 0.0);
  if (threads == 1) return mk::fma_gflops(3e-4);
  multihead::parallel_for(threads, [&](int64_t i, int) { of[i] = mk::fma_gflops(3e-4); });
  double sum = 0;
  for (double x : of) sum += x;
  return sum;
}

struct Result {
  std::vector<double> share, gflops, ratio, error;  // per contender; ratio = its time / ours
};

Result measure(const Case& s, const std::vector<Contender>& contenders, int rounds, int threads) {
  Operands operands(s);
  Result result;
  for (const Contender& who : contenders) {
    std::fill(operands.c.begin(), operands.c.end(), std::nanf(""));
    who.run(s, operands);
    result.error.push_back(error_of(s, operands));
  }
  const size_t count = contenders.size();
  std::vector<std::vector<double>> shares(count), speeds(count), ratios(count);
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  std::mt19937 random(3);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<double> cost(count);  // in units of the peak of the moment
    double before = peak_of(threads);
    for (size_t i : order) {
      const double gflops = 1e-9 * s.flops() / seconds_per_call(contenders[i], s, operands, threads);
      const double after = peak_of(threads);
      const double share = gflops / (0.5 * (before + after));
      shares[i].push_back(share);
      speeds[i].push_back(gflops);
      cost[i] = 1 / share;
      before = after;
    }
    for (size_t i = 0; i < count; ++i) ratios[i].push_back(cost[i] / cost[0]);
  }
  for (size_t i = 0; i < count; ++i) {
    result.share.push_back(median(shares[i]));
    result.gflops.push_back(median(speeds[i]));
    result.ratio.push_back(median(ratios[i]));
  }
  return result;
}

struct Settings {
  int rounds = 15, threads = 1;
  std::string filter, json, sgemm;
};

bool parse(int argc, char** argv, Settings& settings) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (i + 1 >= argc) return false;
    const std::string value = argv[++i];
    if (flag == "--rounds") {
      settings.rounds = std::max(1, std::atoi(value.c_str()));
    } else if (flag == "--threads") {
      settings.threads = std::max(1, std::atoi(value.c_str()));
    } else if (flag == "--filter") {
      settings.filter = value;
    } else if (flag == "--json") {
      settings.json = value;
    } else if (flag == "--sgemm") {
      settings.sgemm = value;
    } else {
      return false;
    }
  }
  return true;
}

void set_threads(int threads) {
  multihead::set_num_threads(threads);
  openblas_set_num_threads(threads);
  if (omp_set_num_threads != nullptr) omp_set_num_threads(threads);
}

void save(const std::string& path, const nlohmann::json& report) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return std::perror(path.c_str());
  std::fputs(report.dump(2).c_str(), file);
  std::fputc('\n', file);
  std::fclose(file);
}

// Speed relative to a referee over all cases.
struct Summary {
  double log_sum = 0, worst = 1e9;
  int count = 0;

  void add(double ratio) {
    log_sum += std::log(ratio);
    worst = std::min(worst, ratio);
    ++count;
  }
  double mean() const { return count == 0 ? 0 : std::exp(log_sum / count); }
  void print(const char* whom) const {
    std::printf("speed against %s: geometric mean %.3f, worst %.3f over %d cases\n", whom, mean(), worst,
                count);
  }
  nlohmann::json json() const { return {{"geometric_mean", mean()}, {"worst", worst}, {"cases", count}}; }
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  if (!parse(argc, argv, settings)) {
    std::fprintf(
        stderr,
        "usage: gemm_referees [--rounds N] [--threads N] [--filter TEXT] [--json FILE] [--sgemm LIBRARY]\n");
    return 2;
  }
  set_threads(settings.threads);
  std::vector<Contender> contenders = {
      {"multihead", run_ours}, {"onednn", run_onednn}, {"openblas", run_openblas}};
  if (!settings.sgemm.empty()) {
    if (!load_other(settings.sgemm, settings.threads)) return 1;
    contenders.push_back({"other", run_other});
  }
  const dnnl_version_t* version = dnnl_version();
  const std::string cpu(mk::cpu_name()), isa(mk::isa_name(mk::current_isa()));
  std::printf("%s, %s, %d thread(s), f32, commit %s; oneDNN %d.%d.%d; OpenBLAS %s\n", cpu.c_str(),
              isa.c_str(), settings.threads, MULTIHEAD_GIT_COMMIT, version->major, version->minor,
              version->patch, openblas_get_corename());
  std::printf("%-26s %8s | share of peak:", "case (m x n x k)", "GFLOP/s");
  for (const Contender& who : contenders) std::printf(" %9s", who.name);
  std::printf(" | their time / ours:");
  for (size_t i = 1; i < contenders.size(); ++i) std::printf(" %9s", contenders[i].name);
  std::printf(" | error\n");

  nlohmann::json report{{"cpu", cpu},
                        {"isa", isa},
                        {"threads", settings.threads},
                        {"dtype", "float32"},
                        {"commit", MULTIHEAD_GIT_COMMIT},
                        {"cases", nlohmann::json::array()}};
  Summary better, other;
  for (const Case& s : all_cases()) {
    if (s.name().find(settings.filter) == std::string::npos) continue;
    const Result r = measure(s, contenders, settings.rounds, settings.threads);
    better.add(std::min(r.ratio[1], r.ratio[2]));
    if (r.ratio.size() > 3) other.add(r.ratio[3]);
    std::printf("%-26s %8.1f |               ", s.name().c_str(), r.gflops[0]);
    for (double share : r.share) std::printf(" %9.3f", share);
    std::printf(" |                   ");
    for (size_t i = 1; i < r.ratio.size(); ++i) std::printf(" %9.2f", r.ratio[i]);
    std::printf(" | %.1e\n", r.error[0]);
    std::fflush(stdout);
    if (!(r.error[0] <= 1e-5)) {
      std::fprintf(stderr, "%s: wrong result\n", s.name().c_str());
      return 1;
    }
    nlohmann::json entry{{"name", s.name()}, {"m", s.m}, {"n", s.n}, {"k", s.k}, {"gflops", r.gflops[0]}};
    for (size_t i = 0; i < r.share.size(); ++i) {
      entry["share"][contenders[i].name] = r.share[i];
      if (i > 0) entry["time_ratio"][contenders[i].name] = r.ratio[i];
    }
    report["cases"].push_back(entry);
  }
  better.print("the better of oneDNN and OpenBLAS");
  report["better_referee"] = better.json();
  if (other_sgemm != nullptr) {
    other.print(settings.sgemm.c_str());
    report["other"] = other.json();
  }
  if (!settings.json.empty()) save(settings.json, report);
  return 0;
}
