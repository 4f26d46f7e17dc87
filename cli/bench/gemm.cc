// multihead bench gemm: the speed of matrix products.
#include <fmt/format.h>

#include <tuple>

#include "cli/bench/timing.h"
#include "cli/streams.h"
#include "cli/verb.h"
#include "multihead/core/tensor/rng.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/matmul/gemm.h"
#include "multihead/kernels/peak/peak.h"

namespace multihead::cli {
namespace {

struct Product {
  int64_t m, n, k;
  bool ta = false, tb = true;
};

// y = x·Wᵀ, dx = dy·W and dW = dyᵀ·x of the sizes that small models have, and decoding.
std::vector<Product> usual_products() {
  std::vector<Product> list;
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{768, 384, 128},
                                {768, 512, 128},
                                {4096, 768, 256},
                                {4096, 1024, 256},
                                {1024, 2304, 768}}) {
    list.insert(list.end(), {{m, n, k, false, true}, {m, k, n, false, false}, {n, k, m, true, false}});
  }
  list.insert(list.end(), {{64, 64, 64}, {1, 4096, 4096}, {8, 4096, 4096}});
  return list;
}

class BenchGemm : public Verb {
 public:
  BenchGemm()
      : Verb("bench gemm", "measure the speed of matrix products",
             {{"multihead bench gemm", "shapes common in training"},
              {"multihead bench gemm --dtype bf16 --threads 1", "bf16 matrices, sums in f32"},
              {"multihead bench gemm --m 1024 --n 768 --k 3072 --layout NT",
               "one product; layout of A and B"}}) {}

  void declare(Flags& flags) override {
    flags.integer("m", one_.m, "rows of the result (with --n and --k: only this product)");
    flags.integer("n", one_.n, "columns of the result");
    flags.integer("k", one_.k, "inner size");
    flags.choice("layout", layout_, {"NN", "NT", "TN", "TT"}, "A and B as stored (T: transposed)");
    flags.choice("dtype", dtype_, {"f32", "bf16"}, "of A, B and the result");
    flags.number("seconds", seconds_, "time per product", {.least = 0, .most = 600, .open = true});
  }

  int run(const CommonOptions& common) override {
    Json report = machine_report();
    report["dtype"] = dtype_;
    report["products"] = Json::array();
    const std::vector<Product> list = products();
    if (!common.json) print_header(report);
    for (const Product& p : list) {
      const auto [gflops, share] = measure(p);
      const std::string layout = fmt::format("{}{}", p.ta ? 'T' : 'N', p.tb ? 'T' : 'N');
      report["products"].push_back(Json::object({{"m", p.m},
                                                 {"n", p.n},
                                                 {"k", p.k},
                                                 {"layout", layout},
                                                 {"gflops", gflops},
                                                 {"share_of_peak", share}}));
      if (common.json) continue;
      fmt::print("{} {:>5} x {:>5} x {:>5}  {:8.1f} GFLOP/s  {:.2f} of peak\n", layout, p.m, p.n, p.k, gflops,
                 share);
      flush_output();
    }
    if (common.json) put_json(report);
    return kDone;
  }

 private:
  // The one that the flags name, or those that training and decoding have.
  std::vector<Product> products() const {
    if (one_.m == 0 && one_.n == 0 && one_.k == 0) return usual_products();
    for (const int64_t size : {one_.m, one_.n, one_.k}) {
      if (size < 1 || size > 65536)
        throw UsageError(concat("--m, --n and --k must be in [1, 65536], got ", size));
    }
    return {{one_.m, one_.n, one_.k, layout_[0] == 'T', layout_[1] == 'T'}};
  }

  static void print_header(const Json& report) {
    const auto text = [&](const char* key) { return report.at(key).as_string(); };
    fmt::print("{}, {}, {} thread{}, {}, float32_matmul_precision {}, {}\n", text("cpu"), text("isa"),
               num_threads(), num_threads() == 1 ? "" : "s", text("dtype"), text("float32_matmul_precision"),
               report.at("tiles").as_bool() ? "AMX tiles" : "no tiles");
  }

  // One thread's present peak for products of this dtype, in GFLOP/s.
  double peak() const {
    const bool fast = dtype_ == "bf16" && (kernels::bf16_tiles() || kernels::bf16_dots());
    return fast ? kernels::bf16_gflops(1e-3) : kernels::fma_gflops(1e-3);
  }

  // Medians of bursts of some tenths of a millisecond and more, each after the peak and a product that is not
  // measured.
  std::pair<double, double> measure(const Product& p) const {
    Rng rng(1);
    const Dtype dtype = parse_dtype(dtype_);
    const Tensor a = randn({p.m, p.k}, rng).to(dtype), b = randn({p.k, p.n}, rng).to(dtype);
    const Tensor c = Tensor::empty({p.m, p.n}, dtype);
    const kernels::MixedGemmArgs args{.a = {a.raw(), dtype},
                                      .lda = p.ta ? p.m : p.k,
                                      .ta = p.ta ? kernels::Transpose::yes : kernels::Transpose::no,
                                      .b = {b.raw(), dtype},
                                      .ldb = p.tb ? p.k : p.n,
                                      .tb = p.tb ? kernels::Transpose::yes : kernels::Transpose::no,
                                      .c = {c.raw(), dtype},
                                      .ldc = p.n,
                                      .m = p.m,
                                      .n = p.n,
                                      .k = p.k};
    const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    const int64_t repeats = std::max<int64_t>(1, static_cast<int64_t>(2e8 / flops));
    std::vector<double> speeds, shares;
    kernels::gemm_mixed(args);
    const double end = wall_seconds() + seconds_;
    while (wall_seconds() < end || speeds.size() < 5) {
      const double most = all_threads([&](int64_t) { return peak(); });
      kernels::gemm_mixed(args);
      const double begin = wall_seconds();
      for (int64_t i = 0; i < repeats; ++i) kernels::gemm_mixed(args);
      speeds.push_back(flops * static_cast<double>(repeats) / (wall_seconds() - begin) / 1e9);
      shares.push_back(speeds.back() / most);
    }
    return {median_of(speeds), median_of(shares)};
  }

  Product one_{0, 0, 0};
  std::string layout_ = "NT", dtype_ = "f32";
  double seconds_ = 0.5;
};

}  // namespace

std::unique_ptr<Verb> make_bench_gemm() { return std::make_unique<BenchGemm>(); }

}  // namespace multihead::cli
