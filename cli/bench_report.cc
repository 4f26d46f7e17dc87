#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "multihead/core/error.h"

namespace multihead::cli {
namespace {

std::string share_text(const Json& row) {
  if (row.at("memory_bound").as_bool()) {
    return fmt::format("{:.2f} of read rate", row.at("share_of_read_rate").as_double());
  }
  return fmt::format("{:.2f} of peak", row.at("share_of_peak").as_double());
}

std::string error_text(const Json* error) {
  return error == nullptr || error->is_null() ? "-" : fmt::format("{:.0e}", error->as_double());
}

void check_row(const Json& row) {
  for (const char* key : {"shape", "direction"}) row.at(key).as_string();
  for (const char* key : {"seconds", "gflops", "flops", "bytes", "share_of_peak", "share_of_read_rate"}) {
    const double value = row.at(key).as_double();
    MH_CHECK(value > 0 && std::isfinite(value), FormatError, "a report's ", key, " must be positive, got ",
             value);
  }
  row.at("memory_bound").as_bool();
  row.at("error");
  for (const auto& [name, rival] : row.at("rivals").members()) {
    if (rival.contains("unsupported")) continue;
    rival.at("variant").as_string();
    for (const char* key : {"ratio", "gflops"}) {
      MH_CHECK(rival.at(key).as_double() > 0, FormatError, "a rival's ", key, " must be positive");
    }
  }
}

// Reports are files, and these lines are for a terminal.
std::string shown(const Json& text) { return printable(text.as_string()); }

}  // namespace

std::string header_text(const Json& report) {
  const Json& c = report.at("calibration");
  std::string out =
      fmt::format("{}, {}, {} thread{}, {}; multihead {}", shown(report.at("cpu")), shown(report.at("isa")),
                  report.at("threads").as_int(), report.at("threads").as_int() == 1 ? "" : "s",
                  shown(report.at("date")), shown(report.at("version")));
  if (report.at("tiles").as_bool()) {
    out +=
        fmt::format(", AMX tiles, float32_matmul_precision {}", shown(report.at("float32_matmul_precision")));
  }
  if (const std::string& commit = shown(report.at("commit")); !commit.empty()) out += " " + commit;
  for (const auto& [name, version] : report.at("rivals").members()) {
    out += fmt::format(", {} {}", printable(name), shown(version));
  }
  out += fmt::format("\npeak {:.0f} GFLOP/s in f32", c.at("fma_gflops").as_double());
  if (const std::string& unit = shown(c.at("bf16_unit")); !unit.empty()) {
    out += fmt::format(", {:.0f} in bf16 ({})", c.at("bf16_gflops").as_double(), unit);
  }
  return out + fmt::format("; memory: read {:.1f} GB/s, copy {:.1f} GB/s\n\n", c.at("read_gbps").as_double(),
                           c.at("copy_gbps").as_double());
}

std::string row_text(const Json& row) {
  std::string out =
      fmt::format("{:<33} {:<8} {:9.3f} ms {:8.1f} GFLOP/s  {:<17} error {:<6}", shown(row.at("shape")),
                  shown(row.at("direction")), row.at("seconds").as_double() * 1e3,
                  row.at("gflops").as_double(), share_text(row), error_text(row.find("error")));
  for (const auto& [name, rival] : row.at("rivals").members()) {
    if (rival.contains("unsupported")) {
      out += fmt::format("  {}: -", printable(name));
    } else {
      out += fmt::format("  {}: {:.2f}x ({}, error {})", printable(name), rival.at("ratio").as_double(),
                         shown(rival.at("variant")), error_text(rival.find("error")));
    }
  }
  if (row.contains("wrong")) out += "  WRONG";
  return out;
}

std::string summary_text(const Json& report) {
  std::string out;
  for (const auto& [name, version] : report.at("rivals").members()) {
    double logs = 0, least = INFINITY;
    int64_t count = 0;
    std::string where;
    for (const Json& row : report.at("shapes").items()) {
      const Json* rival = row.at("rivals").find(name);
      if (rival == nullptr || rival->contains("unsupported")) continue;
      const double ratio = rival->at("ratio").as_double();
      logs += std::log(ratio), ++count;
      if (ratio < least) {
        least = ratio;
        where = shown(row.at("shape")) + " " + shown(row.at("direction"));
      }
    }
    if (count == 0) continue;
    out += fmt::format("\nagainst {} {}: geometric mean {:.2f}x over {} shapes, least {:.2f}x ({})",
                       printable(name), shown(version), std::exp(logs / static_cast<double>(count)), count,
                       least, where);
  }
  return out.empty() ? out : out + "\n";
}

Json joined_reports(const std::vector<Json>& reports, const std::vector<std::string>& names) {
  Json joined = reports[0];
  for (size_t i = 0; i < reports.size(); ++i) {
    try {
      header_text(reports[i]);
      for (const Json& row : reports[i].at("shapes").items()) {
        check_row(row);
        if (i > 0) joined["shapes"].push_back(row);
      }
      for (const auto& [name, version] : reports[i].at("rivals").members()) joined["rivals"][name] = version;
      MH_CHECK(reports[i].at("threads") == joined.at("threads"), FormatError, "it was taken with ",
               reports[i].at("threads").as_int(), " threads, ", names[0], " with ",
               joined.at("threads").as_int());
    } catch (const FormatError& error) {
      throw FormatError(concat(names[i], ": not a report of bench attention: ", error.what()));
    }
  }
  return joined;
}

}  // namespace multihead::cli
