// multihead bench attention: the speed of attention beside what the machine can do.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "cli/bench/shape.h"
#include "cli/bench/timed_attention.h"
#include "cli/bench/timing.h"
#include "cli/streams.h"
#include "cli/verb.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/core/version.h"
#include "multihead/kernels/peak/peak.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

constexpr double kBurst = 0.03;  // seconds

// The best of five: what the machine can do, not what it did while something disturbed it.
template <class F>
double best_of_five(F&& rate) {
  double best = 0;
  for (int i = 0; i < 5; ++i) best = std::max(best, rate());
  return best;
}

Json calibration() {
  const int64_t share =
      (int64_t{1} << 27) / num_threads();  // floats per thread; 512 MiB in all, past any cache
  const Tensor data = Tensor::full({share * num_threads()}, 1.0);
  float* x = data.data<float>();
  const size_t bytes = static_cast<size_t>(share) * sizeof(float);
  const double read = best_of_five(
      [&] { return all_threads([&](int64_t i) { return kernels::read_gbps(x + i * share, bytes); }); });
  const double copy = best_of_five([&] {
    return all_threads([&](int64_t i) {
      float* part = x + i * share;
      return kernels::copy_gbps(part, part + share / 2, bytes / 2);
    });
  });
  const double bf16 =
      best_of_five([] { return all_threads([](int64_t) { return kernels::bf16_gflops(1e-3); }); });
  return Json::object({{"fma_gflops", best_of_five(peak_gflops)},
                       {"bf16_unit", kernels::bf16_unit()},
                       {"bf16_gflops", bf16},
                       {"read_gbps", read},
                       {"copy_gbps", copy}});
}

// The machine and the calibration.
std::string header_text(const Json& report) {
  const auto text = [&](const char* key) { return report.at(key).as_string(); };
  const Json& c = report.at("calibration");
  const int64_t threads = report.at("threads").as_int();
  std::string out = fmt::format("{}, {}, {} thread{}, {}; multihead {}", text("cpu"), text("isa"), threads,
                                threads == 1 ? "" : "s", text("date"), text("version"));
  if (report.at("tiles").as_bool()) {
    out += fmt::format(", AMX tiles, float32_matmul_precision {}", text("float32_matmul_precision"));
  }
  if (!text("commit").empty()) out += " " + text("commit");
  out += fmt::format("\npeak {:.0f} GFLOP/s in f32", c.at("fma_gflops").as_double());
  if (const std::string unit = c.at("bf16_unit").as_string(); !unit.empty()) {
    out += fmt::format(", {:.0f} in bf16 ({})", c.at("bf16_gflops").as_double(), unit);
  }
  return out + fmt::format("; memory: read {:.1f} GB/s, copy {:.1f} GB/s\n\n", c.at("read_gbps").as_double(),
                           c.at("copy_gbps").as_double());
}

// One line of the table.
std::string row_text(const Json& row) {
  const auto number = [&](const char* key) { return row.at(key).as_double(); };
  const std::string share = row.at("memory_bound").as_bool()
                                ? fmt::format("{:.2f} of read rate", number("share_of_read_rate"))
                                : fmt::format("{:.2f} of peak", number("share_of_peak"));
  const std::string error = row.at("error").is_null() ? "-" : fmt::format("{:.0e}", number("error"));
  return fmt::format("{:<33} {:<8} {:9.3f} ms {:8.1f} GFLOP/s  {:<17} error {:<6}{}\n",
                     row.at("shape").as_string(), row.at("direction").as_string(), number("seconds") * 1e3,
                     number("gflops"), share, error, row.contains("wrong") ? "  WRONG" : "");
}

class BenchAttention : public Verb {
 public:
  BenchAttention()
      : Verb("bench attention", "measure the speed of attention",
             {{"multihead bench attention --threads 1 --json >report.json",
               "all standard shapes on one thread, for bench/attention_rivals.py"},
              {"multihead bench attention --shape 1x8x1024x64:causal 8x12x512x64:lengths --backward",
               "two shapes, forward and backward; B x H x T x D with options"},
              {"multihead bench attention --shape 1x32/8x1/16384x128:bf16:cold",
               "decoding: 32 query heads on 8 key heads, one query, cold cache"}}) {}

  void declare(Flags& flags) override {
    flags.add({.name = "shape",
               .value = "BxHxTxD[:option]",
               .help = "shapes to measure, separated by spaces; options: " + bench_shape_options(),
               .initial = "the protocol's",
               .many = true,
               .set = [this](std::string_view v) { shapes_.push_back(parse_bench_shape(v)); }});
    flags.choice("part", part_, {"all", "forward", "options", "decode", "backward"},
                 "without --shape: which standard shapes to measure");
    flags.flag("backward", backward_, "measure each --shape backward, too");
    flags.number("seconds", seconds_, "time per shape", {.least = 0, .most = 600, .open = true});
  }

  int run(const CommonOptions& common) override {
    common_ = common;
    choose_shapes();
    const train::StopSignals signals;
    try {
      return measure_all();
    } catch (const Interrupted&) {
      return train::StopSignals::exit_code();
    }
  }

 private:
  void choose_shapes() {
    if (shapes_.empty()) {
      shapes_ = protocol_shapes(part_);
      return;
    }
    const size_t given = shapes_.size();
    for (size_t i = 0; backward_ && i < given; ++i) {
      BenchShape s = shapes_[i];
      if (s.direction != Direction::forward) continue;
      if (s.cold) throw UsageError(concat("--backward: ", s.text(), " is for the forward pass"));
      s.direction = Direction::backward;
      shapes_.push_back(s);
    }
  }

  void say(const std::string& text) const {
    if (common_.quiet) return;
    const bool terminal = isatty(STDERR_FILENO) != 0;
    fmt::print(stderr, "{}{}{}", terminal ? "\r\x1b[K" : "", text, terminal || text.empty() ? "" : "\n");
    std::fflush(stderr);
  }

  Json start_report() const {
    const std::time_t now = std::time(nullptr);
    std::tm utc = {};
    gmtime_r(&now, &utc);
    char date[16];
    std::strftime(date, sizeof date, "%Y-%m-%d", &utc);
    Json report = machine_report();
    report["date"] = date;
    report["version"] = version();
    report["commit"] = git_hash();
    report["calibration"] = calibration();
    report["shapes"] = Json::array();
    return report;
  }

  int measure_all() {
    say("calibrating");
    Json report = start_report();
    read_gbps_ = report.at("calibration").at("read_gbps").as_double();
    say("");
    if (!common_.json) fmt::print("{}", header_text(report));
    bool correct = true;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const BenchShape& shape = shapes_[i];
      say(fmt::format("[{}/{}] {} {}", i + 1, shapes_.size(), shape.text(), direction_name(shape.direction)));
      Json row = measure(shape);
      correct = correct && !row.contains("wrong");
      say("");
      if (!common_.json) {
        fmt::print("{}", row_text(row));
        flush_output();
      }
      report["shapes"].push_back(std::move(row));
    }
    if (common_.json) put_json(report);
    if (correct) return kDone;
    fmt::print(stderr, "multihead: a result differs from its f64 reference by more than rounding\n");
    return kFailed;
  }

  Json measure(const BenchShape& shape) const {
    TimedAttention attention(shape);
    const std::optional<double> error = attention.error();
    const auto [times, peaks, reads] = rounds(attention);
    const double seconds = median_of(times), flops = useful_flops(shape), bytes = least_bytes(shape);
    std::vector<double> shares, read_shares;
    for (size_t i = 0; i < times.size(); ++i) {
      shares.push_back(flops / times[i] / 1e9 / peaks[i]);
      read_shares.push_back(bytes / times[i] / 1e9 / reads[i]);
    }
    Json row = Json::object({{"shape", shape.text()},
                             {"direction", direction_name(shape.direction)},
                             {"dtype", shape.bf16 ? "bf16" : "f32"},
                             {"seconds", seconds},
                             {"seconds_min", *std::min_element(times.begin(), times.end())},
                             {"rounds", times.size()},
                             {"flops", flops},
                             {"bytes", bytes},
                             {"gflops", flops / seconds / 1e9},
                             {"peak_gflops", median_of(peaks)},
                             {"share_of_peak", median_of(shares)},
                             {"gbps", bytes / seconds / 1e9},
                             {"read_gbps", median_of(reads)},
                             {"share_of_read_rate", median_of(read_shares)},
                             {"memory_bound", bytes / median_of(reads) > flops / median_of(peaks)},
                             {"error", error ? number_or_null(*error) : Json()}});
    if (error && !(*error <= attention.tolerance())) row["wrong"] = true;
    return row;
  }

  // Seconds per call in every round, and the peak rates measured next to them.
  struct Rounds {
    std::vector<double> times, peaks, reads;
  };

  // Never fewer than three.
  Rounds rounds(TimedAttention& attention) const {
    Rounds result;
    const double end = wall_seconds() + seconds_;
    while (result.times.size() < 3 || wall_seconds() < end) {
      const double peak = peak_gflops(), read = attention.cold() ? attention.read_gbps() : read_gbps_;
      result.times.push_back(median_of(attention.burst(kBurst)));
      // Shared memory's rate moves by a third within minutes.
      result.reads.push_back(attention.cold() ? std::max(read, attention.read_gbps()) : read);
      result.peaks.push_back(std::max(peak, peak_gflops()));
    }
    return result;
  }

  CommonOptions common_;
  std::vector<BenchShape> shapes_;
  std::string part_ = "all";
  double seconds_ = 1, read_gbps_ = 1;
  bool backward_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_bench_attention() { return std::make_unique<BenchAttention>(); }

}  // namespace multihead::cli
