#include "multihead/embed/images/labelled_files.h"

#include <algorithm>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/text/ascii-inl.h"
#include "multihead/core/text/utf8.h"

namespace multihead::embed {
namespace {

namespace fs = std::filesystem;

// Links are followed.
std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with('.')) all.push_back(entry.path());
  }
  MH_CHECK(!error, FormatError, quote(folder.string(), 400),
           ": expected a folder with a folder of PNG or PPM files for each label: ", error.message());
  std::ranges::sort(all);
  return all;
}

}  // namespace

LabelledFiles list_images(const std::string& folder) {
  LabelledFiles all;
  std::error_code ignored;
  for (const fs::path& label : sorted_entries(folder)) {
    MH_CHECK(fs::is_directory(label, ignored), FormatError, quote(label.string(), 400),
             ": lies beside the folders of the labels; expected a folder of images for each label");
    const std::vector<fs::path> files = sorted_entries(label);
    MH_CHECK(!files.empty(), FormatError, quote(label.string(), 400), ": has no image of its label");
    for (const fs::path& file : files) {
      MH_CHECK(!fs::is_directory(file, ignored), FormatError, quote(file.string(), 400),
               ": is a folder in the folder of a label, expected images");
      const std::string ending = in_lower_case(file.extension().string());
      MH_CHECK(ending == ".png" || ending == ".ppm", FormatError, quote(file.string(), 400),
               ": expected a PNG or PPM file (.png, .ppm); convert others, or take them away");
      all.files.push_back(file.string()), all.labels.push_back(label.filename().string());
    }
  }
  MH_CHECK(!all.files.empty(), FormatError, quote(folder, 400),
           ": expected a folder with a folder of PNG or PPM files for each label, it is empty");
  return all;
}

}  // namespace multihead::embed
