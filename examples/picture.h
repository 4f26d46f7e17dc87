// `--picture FILE`: a program's attention weights as a small SVG, the pictures of docs/tutorials.
#pragma once

#include <cstring>
#include <fstream>

#include "multihead/multihead.h"

namespace examples {

/// One panel per head: [H, Tq, Tk], queries down, keys across, shade = weight, hatched = 0, which a mask excludes.
struct Panels {
  const char* caption;
  multihead::Tensor weights;
};

namespace svg {

constexpr int kCell = 18, kLeft = 44, kMargin = 30, kGap = 42, kLine = 18;

/// Every second position, written below or beside a panel.
inline std::string ticks(int count, bool across, int left, int top) {
  std::string text;
  for (int i = 0; i < count; i += 2) {
    const int x = across ? left + i * kCell + kCell / 2 : left - 4;
    const int y = across ? top + 12 : top + i * kCell + kCell / 2 + 4;
    text += multihead::concat("<text class=\"t\" x=\"", x, "\" y=\"", y, "\" text-anchor=\"",
                              across ? "middle" : "end", "\">", i, "</text>\n");
  }
  return text;
}

/// Cells, one path per tenth: those of (almost) the same weight share it.
inline std::string cells(const multihead::Tensor& weights, int head, int left, int top) {
  std::vector<std::string> shades(11);
  std::string excluded;
  for (int q = 0; q < weights.size(1); ++q) {
    for (int k = 0; k < weights.size(2); ++k) {
      const double weight = weights.at({head, q, k});
      const auto shade = static_cast<size_t>(std::lround(10 * weight));
      (weight == 0 ? excluded : shades[std::min<size_t>(shade, 10)]) +=
          multihead::concat("M", left + k * kCell, " ", top + q * kCell, "h18v18h-18z");
    }
  }
  std::string body;
  if (!excluded.empty()) body = multihead::concat("<path class=\"x\" d=\"", excluded, "\"/>\n");
  for (size_t s = 1; s < shades.size(); ++s) {
    if (shades[s].empty()) continue;
    body += multihead::concat("<path fill-opacity=\"", static_cast<double>(s) / 10, "\" d=\"", shades[s],
                              "\"/>\n");
  }
  return body;
}

inline std::string panel(const multihead::Tensor& weights, int head, int left, int top) {
  const int queries = static_cast<int>(weights.size(1)), keys = static_cast<int>(weights.size(2));
  const int width = keys * kCell, height = queries * kCell;
  return cells(weights, head, left, top) +
         multihead::concat("<rect class=\"b\" x=\"", left, "\" y=\"", top, "\" width=\"", width,
                           "\" height=\"", height, "\"/>\n<text class=\"t\" x=\"", left, "\" y=\"", top - 5,
                           "\">head ", head, "</text>\n<text class=\"t\" x=\"", left + width / 2, "\" y=\"",
                           top + height + 26, "\" text-anchor=\"middle\">key</text>\n") +
         ticks(queries, false, left, top) + ticks(keys, true, left, top + height);
}

/// What a shade means: from 0 to 1, and 0 itself.
inline std::string scale(int left, int top) {
  std::string body =
      multihead::concat("<text class=\"t\" x=\"", left, "\" y=\"", top + 10, "\">weight 0</text>\n");
  for (int s = 0; s <= 10; ++s) {
    body += multihead::concat("<path fill-opacity=\"", s / 10.0, "\" d=\"M", left + 56 + s * 12, " ", top,
                              "h12v12h-12z\"/>\n");
  }
  return body + multihead::concat("<rect class=\"b\" x=\"", left + 56, "\" y=\"", top,
                                  "\" width=\"132\" height=\"12\"/>\n<text class=\"t\" x=\"", left + 194,
                                  "\" y=\"", top + 10, "\">1</text>\n<path class=\"x\" d=\"M", left + 220,
                                  " ", top, "h12v12h-12z\"/>\n<text class=\"t\" x=\"", left + 238, "\" y=\"",
                                  top + 10, "\">excluded</text>\n");
}

}  // namespace svg

inline void picture(int argc, char** argv, const std::vector<Panels>& rows) {
  if (argc != 3 || std::strcmp(argv[1], "--picture") != 0) return;
  std::string body;
  int width = 360, top = 8;
  for (const Panels& row : rows) {
    body += multihead::concat("<text x=\"6\" y=\"", top + 12, "\">", row.caption, "</text>\n");
    top += 2 * svg::kLine;
    const int step = static_cast<int>(row.weights.size(2)) * svg::kCell + svg::kMargin;
    for (int h = 0; h < row.weights.size(0); ++h) {
      body += svg::panel(row.weights, h, svg::kLeft + h * step, top);
    }
    const int middle = top + static_cast<int>(row.weights.size(1)) * svg::kCell / 2;
    body += multihead::concat("<text class=\"t\" transform=\"translate(16 ", middle,
                              ")rotate(-90)\" text-anchor=\"middle\">query</text>\n");
    width = std::max(width, svg::kLeft + static_cast<int>(row.weights.size(0)) * step);
    top += static_cast<int>(row.weights.size(1)) * svg::kCell + svg::kGap;
  }
  body += svg::scale(svg::kLeft, top);
  std::ofstream(argv[2])
      << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << top + 20
      << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
      << "<style>path{fill:#1452b8}text{fill:#333}.t{font-size:11px}.b{fill:none;stroke:#999}"
      << "path.x{fill:url(#x)}#x path{fill:none;stroke:#bbb}"
      << "@media(prefers-color-scheme:dark){path{fill:#7aacff}text{fill:#ddd}#x path{stroke:#666}}</style>\n"
      << "<pattern id=\"x\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
      << "<path d=\"M-1 1l2-2M0 6l6-6M5 7l2-2\"/></pattern>\n"
      << body << "</svg>\n";
}

}  // namespace examples
