// multihead bench attention: the speed of attention, beside other implementations if they are there.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <random>
#include <thread>

#include "cli/bench_contender.h"
#include "cli/bench_report.h"
#include "cli/bench_shape.h"
#include "cli/output.h"
#include "cli/rival_process.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/parallel.h"
#include "multihead/core/version.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/kernels/cpu/peak.h"
#include "multihead/kernels/matmul/precision.h"
#include "multihead/train/signals.h"

namespace multihead::cli {
namespace {

constexpr double kBurst = 0.03;  // seconds

// What all threads together reach at this moment.
template <class F>
double all_threads(F&& each) {
  std::vector<double> rates(static_cast<size_t>(num_threads()));
  parallel_for(num_threads(), [&](int64_t i, int) { rates[static_cast<size_t>(i)] = each(i); });
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

double peak_gflops() {
  return all_threads([](int64_t) { return kernels::fma_gflops(1e-3); });
}

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
                       {"bf16_unit", std::string(kernels::bf16_unit())},
                       {"bf16_gflops", bf16},
                       {"read_gbps", read},
                       {"copy_gbps", copy}});
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    names.push_back(list.substr(at, end - at));
    if (names.back() != "torch" && names.back() != "onnxruntime") {
      throw UsageError(concat("--vs must list torch, onnxruntime or both; got ", quote(names.back())));
    }
    if (std::count(names.begin(), names.end(), names.back()) > 1) {
      throw UsageError(concat("--vs names ", names.back(), " twice"));
    }
    at = end + 1;
  }
  return names;
}

struct Contest {
  Json answer;  // of a rival to "prepare"
  std::vector<double> times, ratios;
};

class BenchAttention : public Verb {
 public:
  std::string name() const override { return "bench attention"; }
  std::string summary() const override { return "speed of attention, beside PyTorch and ONNX Runtime"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {{"multihead bench attention --threads 1 --vs torch,onnxruntime --svg roofline.svg",
             "all shapes of the protocol on one thread, beside both, with a picture"},
            {"multihead bench attention --shape 1x8x1024x64:causal 8x12x512x64:lengths --backward",
             "two shapes, forward and backward; B x H x T x D with options"},
            {"multihead bench attention --shape 1x32/8x1/16384x128:bf16:cold",
             "decoding: 32 query heads on 8 key heads, one query, keys not in any cache"},
            {"multihead bench attention monday.json tuesday.json --svg both.svg",
             "nothing is measured: reports of --json, shown together"}};
  }

  void declare(Flags& flags) override {
    flags.positionals("REPORT", reports_, "JSON reports to show instead of measuring");
    flags.add({.name = "shape",
               .value = "BxHxTxD[:option]",
               .help = "what to measure (several: space between them); options: " + bench_shape_options(),
               .initial = "the protocol's",
               .many = true,
               .set = [this](std::string_view v) { shapes_.push_back(parse_bench_shape(v)); }});
    flags.choice("part", part_, {"all", "forward", "options", "decode", "backward"},
                 "part of the protocol, without --shape");
    flags.flag("backward", backward_, "each --shape backward too");
    flags.text("vs", "LIST", vs_, "rivals: torch, onnxruntime or both with a comma");
    flags.text("python", "FILE", python_, "interpreter that has the rivals");
    flags.number("seconds", seconds_, "time per shape", {.least = 0, .most = 600, .open = true});
    flags.text("svg", "FILE", svg_, "write a picture: the roofline, and each shape beside its rivals");
  }

  int run(const CommonOptions& common) override {
    common_ = common;
    const std::vector<std::string> rivals = names_in(vs_);
    check_picture();
    if (!reports_.empty()) return show();
    choose_shapes();
    const train::StopSignals signals;
    try {
      return measure_all(rivals);
    } catch (const Interrupted&) {
      return train::StopSignals::exit_code();
    }
  }

 private:
  int show() {
    if (!shapes_.empty() || !vs_.empty())
      throw UsageError("reports are shown, not measured: no --shape, no --vs");
    std::vector<Json> reports;
    for (const std::string& file : reports_) {
      reports.push_back(reading([&] { return Json::parse(read_file(file), file); }));
    }
    const Json report = joined_reports(reports, reports_);
    if (!common_.json) fmt::print("{}", header_text(report));
    for (const Json& row : report.at("shapes").items()) {
      if (!common_.json) fmt::print("{}\n", row_text(row));
    }
    finish(report);
    return kDone;
  }

  // Not after minutes of measuring.
  void check_picture() const {
    const std::filesystem::path folder = std::filesystem::path(svg_).parent_path();
    if (folder.empty() || std::filesystem::is_directory(folder)) return;
    throw IoError(concat("--svg ", svg_, ": there is no such folder"));
  }

  void finish(const Json& report) const {
    if (!svg_.empty()) write_file_atomically(svg_, roofline_svg(report));
    if (common_.json) {
      fmt::print("{}\n", report.dump(2));
    } else {
      fmt::print("{}", summary_text(report));
    }
  }

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

  int measure_all(const std::vector<std::string>& rivals) {
    Json versions = Json::object({});
    for (const std::string& rival : rivals) {
      say("starting " + rival);
      rivals_.push_back(std::make_unique<RivalProcess>(python_, rival, num_threads()));
      versions[rival] = rivals_.back()->version();
    }
    say("calibrating");
    const std::time_t now = std::time(nullptr);
    std::tm utc = {};
    gmtime_r(&now, &utc);
    Json report = Json::object({{"date", fmt::format("{:%Y-%m-%d}", utc)},
                                {"cpu", std::string(kernels::cpu_name())},
                                {"isa", std::string(kernels::isa_name(kernels::current_isa()))},
                                {"float32_matmul_precision",
                                 std::string(kernels::precision_name(kernels::float32_matmul_precision()))},
                                {"tiles", kernels::has_tiles()},
                                {"threads", num_threads()},
                                {"version", std::string(version())},
                                {"commit", std::string(git_hash())},
                                {"rivals", versions},
                                {"calibration", calibration()},
                                {"shapes", Json::array()}});
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
        fmt::print("{}\n", row_text(row));
        flush_output();
      }
      report["shapes"].push_back(std::move(row));
    }
    finish(report);
    if (correct) return kDone;
    fmt::print(stderr, "multihead: a result differs from its f64 reference by more than rounding\n");
    return kFailed;
  }

  Json prepare(RivalProcess& rival, const BenchShape& shape, OwnAttention& own) const {
    Json tensors = Json::array();
    std::vector<Tensor> payload;
    for (const auto& [name, tensor] : own.operands()) {
      Json sizes = Json::array();
      for (const int64_t size : tensor.shape()) sizes.push_back(size);
      tensors.push_back(Json::object({{"name", name}, {"shape", sizes}}));
      payload.push_back(tensor);
    }
    const RivalReply reply = rival.ask(
        Json::object({{"do", "prepare"}, {"shape", shape.to_json()}, {"tensors", tensors}}), payload);
    Json answer = reply.message;
    if (!answer.contains("unsupported")) {
      const auto error = own.error_of(reply.tensors);
      answer["error"] = error && std::isfinite(*error) ? Json(*error) : Json();
    }
    return answer;
  }

  Json measure(const BenchShape& shape) {
    OwnAttention own(shape);
    const std::optional<double> error = own.error();
    std::vector<Contest> contests;
    for (const auto& rival : rivals_) contests.push_back({prepare(*rival, shape, own), {}, {}});
    const auto [times, peaks, reads] = rounds(own, contests);
    const double seconds = median_of(times), flops = useful_flops(shape), bytes = least_bytes(shape);
    const double rate = bytes / seconds / 1e9;
    std::vector<double> shares, read_shares;
    for (size_t i = 0; i < times.size(); ++i) {
      shares.push_back(flops / times[i] / 1e9 / peaks[i]);
      read_shares.push_back(bytes / times[i] / 1e9 / reads[i]);
    }
    Json row = Json::object({{"shape", shape.text()},
                             {"direction", std::string(direction_name(shape.direction))},
                             {"dtype", shape.bf16 ? "bf16" : "f32"},
                             {"seconds", seconds},
                             {"seconds_min", *std::min_element(times.begin(), times.end())},
                             {"rounds", static_cast<int64_t>(times.size())},
                             {"flops", flops},
                             {"bytes", bytes},
                             {"gflops", flops / seconds / 1e9},
                             {"peak_gflops", median_of(peaks)},
                             {"share_of_peak", median_of(shares)},
                             {"gbps", rate},
                             {"read_gbps", median_of(reads)},
                             {"share_of_read_rate", median_of(read_shares)},
                             {"memory_bound", bytes / median_of(reads) > flops / median_of(peaks)},
                             {"error", error && std::isfinite(*error) ? Json(*error) : Json()}});
    if (error && !(*error <= own.tolerance())) row["wrong"] = true;
    Json rivals = Json::object({});
    for (size_t i = 0; i < rivals_.size(); ++i) rivals[rivals_[i]->name()] = verdict(contests[i], flops);
    row["rivals"] = rivals;
    return row;
  }

  // Of every round: our seconds a call, and what the machine reached beside them.
  struct Rounds {
    std::vector<double> times, peaks, reads;
  };

  // Everybody's turn once per round, in an order that changes; never fewer than three rounds.
  Rounds rounds(OwnAttention& own, std::vector<Contest>& contests) {
    Rounds result;
    auto& [times, peaks, reads] = result;
    std::vector<size_t> order(contests.size() + 1);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::mt19937 shuffler(1);
    const double end = wall_seconds() + seconds_;
    while (times.size() < 3 || wall_seconds() < end) {
      std::shuffle(order.begin(), order.end(), shuffler);
      std::vector<double> rival_seconds(contests.size(), 0);
      for (const size_t turn : order) {
        if (turn == contests.size()) {
          const double peak = peak_gflops(), read = own.cold() ? own.read_gbps() : read_gbps_;
          times.push_back(median_of(own.burst(kBurst)));
          // Shared memory's rate moves by a third within minutes.
          reads.push_back(own.cold() ? std::max(read, own.read_gbps()) : read);
          peaks.push_back(std::max(peak, peak_gflops()));
        } else if (!contests[turn].answer.contains("unsupported")) {
          rival_seconds[turn] = rival_burst(*rivals_[turn]);
        }
        // Worker threads of the one who just ran may still be spinning.
        if (num_threads() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      for (size_t i = 0; i < contests.size(); ++i) {
        if (rival_seconds[i] == 0) continue;
        contests[i].times.push_back(rival_seconds[i]);
        contests[i].ratios.push_back(rival_seconds[i] / times.back());
      }
    }
    return result;
  }

  static double rival_burst(RivalProcess& rival) {
    const RivalReply reply = rival.ask(Json::object({{"do", "burst"}, {"seconds", kBurst}}));
    std::vector<double> times;
    for (const Json& t : reply.message.at("seconds").items()) times.push_back(t.as_double());
    return median_of(times);
  }

  // Median of the ratios with an interval that holds the true median in 95 of 100 cases.
  static Json verdict(const Contest& contest, double flops) {
    if (const Json* why = contest.answer.find("unsupported")) return Json::object({{"unsupported", *why}});
    std::vector<double> sorted = contest.ratios;
    std::sort(sorted.begin(), sorted.end());
    const double n = static_cast<double>(sorted.size());
    const auto at = [&](double rank) { return sorted[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))]; };
    const double seconds = median_of(contest.times);
    return Json::object({{"variant", contest.answer.at("variant")},
                         {"seconds", seconds},
                         {"gflops", flops / seconds / 1e9},
                         {"ratio", median_of(contest.ratios)},
                         {"ratio_low", at(std::floor(n / 2 - 0.98 * std::sqrt(n)))},
                         {"ratio_high", at(std::ceil(n / 2 + 0.98 * std::sqrt(n)))},
                         {"error", contest.answer.at("error")},
                         {"tried", contest.answer.at("tried")}});
  }

  CommonOptions common_;
  std::vector<BenchShape> shapes_;
  std::vector<std::string> reports_;
  std::vector<std::unique_ptr<RivalProcess>> rivals_;
  std::string part_ = "all", vs_, python_ = "python3", svg_;
  double seconds_ = 1, read_gbps_ = 1;
  bool backward_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_bench_attention() { return std::make_unique<BenchAttention>(); }

}  // namespace multihead::cli
