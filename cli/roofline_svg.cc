// The picture of `bench attention`: on the left the roofline, on the right a bar per shape.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench_report.h"

namespace multihead::cli {
namespace {

constexpr double kLeft = 64, kPlotWidth = 430, kTop = 72, kRow = 19;
constexpr double kBarsLeft = kLeft + kPlotWidth + 320, kBarsWidth = 250,
                 kWidth = kBarsLeft + kBarsWidth + 140;

constexpr const char* kStyle = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .faint { fill: #59636e; } .small { font-size: 10.5px; } .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #d1d9e0; } .roof { stroke: #1f2328; stroke-width: 1.6; fill: none; }
  .own { fill: #0969da; } .torch { fill: #d1570a; } .onnxruntime { fill: #1a7f37; }
  .number { fill: #ffffff; font-size: 8.5px; font-weight: 600; text-anchor: middle; }
  .end { text-anchor: end; } .middle { text-anchor: middle; } .page { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .faint { fill: #9198a1; } .grid { stroke: #3d444d; } .roof { stroke: #e6edf3; }
    .own { fill: #58a6ff; } .torch { fill: #f0883e; } .onnxruntime { fill: #3fb950; }
    .number { fill: #0d1117; } .page { fill: #0d1117; }
  }
</style>
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&' || c == '"') {
      out += fmt::format("&#{};", static_cast<int>(c));
    } else {
      out += static_cast<unsigned char>(c) < 32 ? ' ' : c;
    }
  }
  return out;
}

std::string text_at(double x, double y, std::string_view css, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, css, escaped(words));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, css);
}

std::string bar(double x, double y, double width, double height, std::string_view css) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"{}\"/>\n", x,
                     y, std::max(width, 0.5), height, css);
}

// Only names we know get a colour of their own; the names come from a file.
std::string css_of(const std::string& rival) {
  return rival == "torch" || rival == "onnxruntime" ? rival : "faint";
}

std::string name_of(const std::string& rival) {
  return rival == "torch" ? "PyTorch" : rival == "onnxruntime" ? "ONNX Runtime" : rival;
}

// Logarithmic axes: operations per byte, operations per second.
struct Axes {
  double height = 0, x_low = 0.25, x_high = 1024, y_low = 1, y_high = 1000;
  double x(double intensity) const {
    const double part = std::log(intensity / x_low) / std::log(x_high / x_low);
    return kLeft + kPlotWidth * std::clamp(part, 0.0, 1.0);
  }
  double y(double gflops) const {
    const double part = std::log(gflops / y_low) / std::log(y_high / y_low);
    return kTop + height * (1 - std::clamp(part, 0.0, 1.0));
  }
};

double intensity_of(const Json& row) { return row.at("flops").as_double() / row.at("bytes").as_double(); }

Axes axes_for(const Json& report, double height) {
  Axes axes;
  axes.height = height;
  const Json& c = report.at("calibration");
  double low = c.at("fma_gflops").as_double(), high = std::max(low, c.at("bf16_gflops").as_double());
  for (const Json& row : report.at("shapes").items()) {
    low = std::min(low, row.at("gflops").as_double());
    for (const auto& [name, rival] : row.at("rivals").members()) {
      if (const Json* gflops = rival.find("gflops")) low = std::min(low, gflops->as_double());
    }
    axes.x_low = std::min(axes.x_low, intensity_of(row) / 1.5);
    axes.x_high = std::max(axes.x_high, intensity_of(row) * 1.5);
  }
  axes.x_high = std::max(axes.x_high, 2 * high / c.at("read_gbps").as_double());
  axes.y_low = low / 1.6;
  axes.y_high = high * 1.5;
  return axes;
}

std::string grid(const Axes& axes) {
  std::string out;
  for (double x = 0x1p-20; x <= axes.x_high; x *= 4) {
    if (x < axes.x_low) continue;
    out += line(axes.x(x), kTop, axes.x(x), kTop + axes.height, "grid");
    out += text_at(axes.x(x), kTop + axes.height + 16, "faint small middle",
                   x < 1 ? fmt::format("1/{:.0f}", 1 / x) : fmt::format("{:.0f}", x));
  }
  for (double decade = 1e-3; decade < axes.y_high; decade *= 10) {
    for (const double y : {decade, 2 * decade, 5 * decade}) {
      if (y < axes.y_low || y > axes.y_high) continue;
      out += line(kLeft, axes.y(y), kLeft + kPlotWidth, axes.y(y), "grid");
      out += text_at(kLeft - 6, axes.y(y) + 4, "faint small end", fmt::format("{:g}", y));
    }
  }
  out += text_at(kLeft + kPlotWidth / 2, kTop + axes.height + 34, "faint small middle",
                 "useful floating-point operations per byte of operands and results");
  out += text_at(kLeft + kPlotWidth / 2, kTop + axes.height + 48, "faint small middle",
                 "(dots are moved aside where they would hide each other)");
  out += text_at(kLeft - 40, kTop - 10, "faint small", "GFLOP/s");
  return out;
}

std::string roof(const Json& c, const Axes& axes) {
  const double read = c.at("read_gbps").as_double();
  std::string out;
  const auto one = [&](double peak, const std::string& words) {
    const double ridge = peak / read, start = std::max(axes.x_low, axes.y_low / read);
    out += fmt::format("<path class=\"roof\" d=\"M{:.1f},{:.1f}L{:.1f},{:.1f}L{:.1f},{:.1f}\"/>\n",
                       axes.x(start), axes.y(start * read), axes.x(ridge), axes.y(peak), kLeft + kPlotWidth,
                       axes.y(peak));
    out += text_at(kLeft + kPlotWidth, axes.y(peak) - 5, "small end", words);
  };
  const double fma = c.at("fma_gflops").as_double(), bf16 = c.at("bf16_gflops").as_double();
  one(fma, fmt::format("f32 multiply-adds: {:.0f} GFLOP/s", fma));
  if (bf16 > 0) one(bf16, fmt::format("bf16 {}: {:.0f} GFLOP/s", c.at("bf16_unit").as_string(), bf16));
  // Above the slope, near its end, where no shape can be.
  const double ridge = fma / read,
               at = ridge * std::pow(std::max(axes.x_low, axes.y_low / read) / ridge, 0.2);
  return out + text_at(axes.x(at) - 8, axes.y(at * read) - 4, "small end",
                       fmt::format("memory reads: {:.0f} GB/s", read));
}

// Shapes of one intensity would hide each other: each moves aside to the nearest free place.
double free_place(std::vector<std::pair<double, double>>& taken, double x, double y) {
  constexpr double kApart = 13;
  for (int step = 0;; ++step) {
    const double moved = x + kApart * (step % 2 == 0 ? -(step / 2) : step / 2 + 1);
    const auto near = [&](const auto& other) {
      return std::hypot(moved - other.first, y - other.second) < kApart - 1;
    };
    const bool outside = moved < kLeft || moved > kLeft + kPlotWidth;
    if (step < 14 && (outside || std::any_of(taken.begin(), taken.end(), near))) continue;
    taken.emplace_back(moved, y);
    return moved;
  }
}

std::string dots(const Json& report, const Axes& axes) {
  std::string rivals, own;
  std::vector<std::pair<double, double>> taken;
  int number = 0;
  for (const Json& row : report.at("shapes").items()) {
    const double x = axes.x(intensity_of(row));
    for (const auto& [name, rival] : row.at("rivals").members()) {
      if (const Json* gflops = rival.find("gflops")) {
        rivals += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" opacity=\"0.8\" class=\"{}\"/>\n",
                              x, axes.y(gflops->as_double()), css_of(name));
      }
    }
    const double y = axes.y(row.at("gflops").as_double()), place = free_place(taken, x, y);
    own += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6.5\" opacity=\"0.9\" class=\"own\"/>\n",
                       place, y);
    own += text_at(place, y + 3, "number", std::to_string(++number));
  }
  return rivals + own;
}

// Share of what bounds the shape: the FMA peak, or the read rate.
std::string bars(const Json& report) {
  std::string out;
  const double rows = static_cast<double>(report.at("shapes").size());
  for (int tenth = 0; tenth <= 10; tenth += 2) {
    const double x = kBarsLeft + kBarsWidth * tenth / 10;
    out += line(x, kTop - 4, x, kTop + rows * kRow, "grid");
    out += text_at(x, kTop - 10, "faint small middle", fmt::format("{:.1f}", tenth / 10.0));
  }
  double y = kTop;
  int number = 0;
  for (const Json& row : report.at("shapes").items()) {
    const bool memory = row.at("memory_bound").as_bool();
    const double share = row.at(memory ? "share_of_read_rate" : "share_of_peak").as_double();
    const double gflops = row.at("gflops").as_double();
    const std::string& direction = row.at("direction").as_string();
    out += text_at(kBarsLeft - 8, y + 12.5, "end",
                   fmt::format("{}{}{}", row.at("shape").as_string(),
                               direction == "forward" ? "" : " " + direction, memory ? " (of reads)" : ""));
    out += text_at(kBarsLeft - 290, y + 12.5, "faint small end", std::to_string(++number));
    const auto width = [&](double s) { return kBarsWidth * std::min(s, 1.05); };
    out += bar(kBarsLeft, y + 2, width(share), 7, "own");
    double remark = kBarsLeft + kBarsWidth * 1.05 + 8;
    out += text_at(remark, y + 12.5, "small", fmt::format("{:.2f}", share));
    double below = y + 9.5;
    for (const auto& [name, rival] : row.at("rivals").members()) {
      if (!rival.contains("ratio")) continue;
      out += bar(kBarsLeft, below, width(share * rival.at("gflops").as_double() / gflops), 3, css_of(name));
      remark += 44;
      out += text_at(remark, y + 12.5, "small", fmt::format("{:.1f}×", rival.at("ratio").as_double()));
      below += 3.5;
    }
    y += kRow;
  }
  return out;
}

std::string legend(const Json& report) {
  double x = kBarsLeft - 282;
  std::string out = bar(x, 30, 10, 10, "own") + text_at(x + 15, 39, "", "multihead");
  x += 95;
  for (const auto& [name, version] : report.at("rivals").members()) {
    const std::string words =
        name_of(name) + " " + version.as_string().substr(0, version.as_string().find('+'));
    out += bar(x, 30, 10, 10, css_of(name)) + text_at(x + 15, 39, "", words);
    x += 40 + 6.6 * static_cast<double>(words.size());
  }
  return out +
         text_at(kBarsLeft - 282, kTop - 10, "faint small", "share of the limit, and how many times faster");
}

}  // namespace

std::string roofline_svg(const Json& report) {
  const double rows = static_cast<double>(report.at("shapes").size()) * kRow;
  const Axes axes = axes_for(report, std::clamp(rows - 54, 260.0, 620.0));
  const double height = kTop + std::max(rows, axes.height + 54) + 16;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" "
      "height=\"{:.0f}\" "
      "role=\"img\" aria-label=\"Attention on a CPU: roofline\">\n",
      kWidth, height, kWidth, height);
  out += kStyle;
  out += fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" class=\"page\"/>\n", kWidth, height);
  const int64_t threads = report.at("threads").as_int();
  out += text_at(kLeft - 40, 24, "title",
                 fmt::format("Attention, {} thread{}", threads, threads == 1 ? "" : "s"));
  out += text_at(kLeft - 40, 41, "faint small",
                 fmt::format("{}, {}, {}", report.at("cpu").as_string(), report.at("isa").as_string(),
                             report.at("date").as_string()));
  out += grid(axes) + roof(report.at("calibration"), axes) + dots(report, axes);
  return out + legend(report) + bars(report) + "</svg>\n";
}

}  // namespace multihead::cli
