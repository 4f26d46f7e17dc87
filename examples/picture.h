// `--picture FILE`: a program's attention weights as a small SVG, the pictures of docs/tutorials.
#pragma once

#include <cstring>
#include <fstream>

#include "multihead/multihead.h"

namespace examples {

/// One panel per head: [H, Tq, Tk], queries down, keys across, shade = weight.
struct Panels {
  const char* caption;
  multihead::Tensor weights;
};

inline void picture(int argc, char** argv, const std::vector<Panels>& rows) {
  if (argc != 3 || std::strcmp(argv[1], "--picture") != 0) return;
  constexpr int kCell = 12, kGap = 14, kLine = 18;
  std::string body;
  int width = 0, top = kGap;
  for (const Panels& row : rows) {
    const int heads = static_cast<int>(row.weights.size(0)), queries = static_cast<int>(row.weights.size(1)),
              keys = static_cast<int>(row.weights.size(2));
    body += multihead::concat("<text x=\"", kGap, "\" y=\"", top + 8, "\">", row.caption, "</text>\n");
    top += kLine;
    for (int h = 0; h < heads; ++h) {
      const int left = kGap + h * (keys * kCell + kGap);
      body += multihead::concat("<rect class=\"b\" x=\"", left, "\" y=\"", top, "\" width=\"", keys * kCell,
                                "\" height=\"", queries * kCell, "\"/>\n");
      // One path per shade: cells of (almost) the same weight share it.
      std::vector<std::string> shades(11);
      for (int q = 0; q < queries; ++q) {
        for (int k = 0; k < keys; ++k) {
          const auto shade = static_cast<size_t>(std::lround(10 * row.weights.at({h, q, k})));
          shades[std::min<size_t>(shade, 10)] +=
              multihead::concat("M", left + k * kCell, " ", top + q * kCell, "h12v12h-12z");
        }
      }
      for (size_t s = 1; s < shades.size(); ++s) {
        if (shades[s].empty()) continue;
        body += multihead::concat("<path fill-opacity=\"", static_cast<double>(s) / 10, "\" d=\"", shades[s],
                                  "\"/>\n");
      }
      width = std::max(width, left + keys * kCell + kGap);
    }
    top += queries * kCell + kGap;
  }
  std::ofstream(argv[2]) << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << std::max(width, 420)
                         << "\" height=\"" << top << "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                         << "<style>path{fill:#1452b8}text{fill:#333}.b{fill:none;stroke:#999}"
                         << "@media(prefers-color-scheme:dark){path{fill:#7aacff}text{fill:#ddd}}</style>\n"
                         << body << "</svg>\n";
}

}  // namespace examples
