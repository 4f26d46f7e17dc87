#include "cli/label_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "multihead/core/text/utf8.h"

namespace multihead::cli {
namespace {

using train::LabelFigures;
using train::LabelReport;

constexpr size_t kWidest = 32, kColumns = 24;  // of a name; of a matrix that is text

std::string short_name(const std::string& name) {
  std::string text = printable(name);
  if (text.size() <= kWidest) return text;
  size_t cut = kWidest - 1;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80) --cut;
  return text.substr(0, cut) + "…";
}

std::string padded(const std::string& text, size_t width) {
  const auto count = static_cast<size_t>(count_utf8(text));
  return text + std::string(width > count ? width - count : 0, ' ');
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    if (c == '<') out += "&lt;";
    if (c == '>') out += "&gt;";
    if (c == '&') out += "&amp;";
    if (c == '"') out += "&quot;";
    if (c != '<' && c != '>' && c != '&' && c != '"') out += c;
  }
  return out;
}

std::string figures(const LabelFigures& f, const char* format) {
  return fmt::format(fmt::runtime(format), f.precision, f.recall, f.f1, f.support);
}

size_t width_of(const std::vector<std::string>& names) {
  size_t width = 16;
  for (const std::string& name : names)
    width = std::max(width, static_cast<size_t>(count_utf8(short_name(name))));
  return width;
}

std::string rows_text(const std::vector<std::string>& names, const std::vector<LabelFigures>& labels,
                      const std::vector<std::pair<std::string, LabelFigures>>& means) {
  constexpr const char* kRow = "{:>11.4f}{:>9.4f}{:>9.4f}{:>9}\n";
  const size_t width = width_of(names);
  std::string out = padded("", width + 4) + "  precision   recall       F1  support\n";
  for (size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("{:>3} {}", i + 1, padded(short_name(names[i]), width)) + figures(labels[i], kRow);
  }
  for (const auto& [name, mean] : means) out += padded("    " + name, width + 4) + figures(mean, kRow);
  return out;
}

std::string matrix_text(const LabelReport& report, const std::vector<std::string>& names, size_t width) {
  if (names.size() > kColumns) return "";
  std::string out = "\n" + padded("true, predicted:", width + 4);
  for (size_t i = 0; i < names.size(); ++i) out += fmt::format("{:>6}", i + 1);
  for (size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("\n{:>3} {}", i + 1, padded(short_name(names[i]), width));
    for (const int64_t count : report.confusion[i]) out += fmt::format("{:>6}", count);
  }
  return out + "\n";
}

}  // namespace

std::string to_text(const LabelReport& report, const std::vector<std::string>& names) {
  return rows_text(names, report.labels, {{"macro mean", report.macro}, {"weighted mean", report.weighted}}) +
         matrix_text(report, names, width_of(names));
}

std::string to_text(const train::LabelSetReport& report, const std::vector<std::string>& names) {
  return rows_text(names, report.labels, {{"micro mean", report.micro}, {"macro mean", report.macro}});
}

std::string to_html(const LabelReport& report, const std::vector<std::string>& names,
                    const std::string& title) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>"
      "body{{font:14px sans-serif;margin:2em}}table{{border-collapse:collapse;margin:1em 0}}"
      "td,th{{padding:.25em .6em;border:1px solid #ccc;text-align:right}}th{{background:#f4f4f4}}"
      "th.name{{text-align:left}}th.top{{writing-mode:vertical-rl;text-align:left}}</style></head><body>\n"
      "<h1>{0}</h1>\n<p>Accuracy {1:.4f}, macro F1 {2:.4f}, weighted F1 {3:.4f}, {4} in all.</p>\n",
      escaped(title), report.accuracy, report.macro.f1, report.weighted.f1, report.macro.support);
  out += "<table><tr><th class=\"name\">Label<th>Precision<th>Recall<th>F1<th>Support\n";
  const auto row = [&](const std::string& name, const LabelFigures& f) {
    out += "<tr><th class=\"name\">" + escaped(name) + figures(f, "<td>{:.4f}<td>{:.4f}<td>{:.4f}<td>{}\n");
  };
  for (size_t i = 0; i < names.size(); ++i) row(names[i], report.labels[i]);
  row("macro mean", report.macro), row("weighted mean", report.weighted);
  out +=
      "</table>\n<h2>Confusion matrix</h2>\n<p>A row is a true label, a column what was predicted; the "
      "shade is the share of the row.</p>\n<table><tr><th>";
  for (const std::string& name : names) out += "<th class=\"top\">" + escaped(name);
  for (size_t i = 0; i < names.size(); ++i) {
    out += "\n<tr><th class=\"name\">" + escaped(names[i]);
    for (size_t k = 0; k < names.size(); ++k) {
      const int64_t count = report.confusion[i][k];
      const double share =
          static_cast<double>(count) / static_cast<double>(std::max<int64_t>(report.labels[i].support, 1));
      out += fmt::format("<td style=\"background:rgba({},{:.3f})\">{}", i == k ? "40,140,70" : "200,60,40",
                         share, count);
    }
  }
  return out + "\n</table>\n</body></html>\n";
}

}  // namespace multihead::cli
