// What `bench attention` found: a line per shape, a summary, a picture. All from its JSON.
#pragma once

#include <string>
#include <vector>

#include "multihead/core/json.h"

namespace multihead::cli {

/// The machine and the calibration.
std::string header_text(const Json& report);
/// One line of the table.
std::string row_text(const Json& row);
/// Geometric means and smallest ratios, a line per rival; empty without rivals.
std::string summary_text(const Json& report);

/// Checks a former report and joins several into one; the calibration is that of the first. Throws
/// FormatError.
Json joined_reports(const std::vector<Json>& reports, const std::vector<std::string>& names);

/// The roofline and, beside it, every shape's share with its rivals'. For light and dark pages.
std::string roofline_svg(const Json& report);

}  // namespace multihead::cli
