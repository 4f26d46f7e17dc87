// Images in folders called by their labels.
#pragma once

#include <string>
#include <vector>

namespace multihead::embed {

struct LabelledFiles {
  std::vector<std::string> files, labels;
};
/// The files of `folder`'s folders, whose names are the labels, in the order of their paths. Names that begin with a
/// dot are passed over. Throws FormatError naming what is neither: a file beside the labels' folders, a folder inside
/// one, a file whose name ends in something else than .png or .ppm.
LabelledFiles list_images(const std::string& folder);

}  // namespace multihead::embed
