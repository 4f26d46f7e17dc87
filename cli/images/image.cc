#include "cli/images/image.h"

#include <charconv>

#include "cli/images/png.h"
#include "cli/module.h"
#include "cli/verb.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"

namespace multihead::cli {
namespace {

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n", kSpace = " \t\r\n\v\f";

[[noreturn]] void bad_image(const std::string& path, const std::string& problem) {
  throw InputError(concat(quote(path), ": ", problem));
}

// The next number of a PPM's header; comments run from # to the end of their line.
int64_t ppm_number(std::string_view& rest, const std::string& path) {
  for (;;) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
    if (!rest.starts_with('#')) break;
    rest.remove_prefix(std::min(rest.find('\n'), rest.size()));
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc() || value < 1) bad_image(path, "its PPM header holds what is no positive number");
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  return value;
}

using Room = std::function<uint8_t*(int64_t height, int64_t width)>;

void read_ppm(std::string_view rest, const std::string& path, const Room& room) {
  rest.remove_prefix(2);
  const int64_t width = ppm_number(rest, path), height = ppm_number(rest, path);
  if (ppm_number(rest, path) != 255) bad_image(path, "its PPM has not 8 bits a colour (a maximum of 255)");
  uint8_t* rows = room(height, width);
  const size_t bytes = 3 * static_cast<size_t>(height) * static_cast<size_t>(width);
  if (rest.size() < bytes + 1)
    bad_image(path, concat("ends after ", rest.size(), " of ", bytes + 1, " bytes"));
  std::copy_n(rest.data() + 1, bytes, rows);
}

void read_png(std::string_view bytes, const std::string& path, const Room& room) {
  static const auto read =
      held_or_loaded<ReadPng>(multihead_read_png, kPngModule, kReadPng, "PNG images need",
                              "it is built where libpng is (Debian: libpng-dev)");
  std::string problem;
  read({bytes, room}, problem);
  if (!problem.empty()) bad_image(path, printable(problem));
}

}  // namespace

Tensor read_image(const std::string& path, int64_t side, int64_t channels) {
  const std::string bytes = reading([&] { return read_file(path, uint64_t{1} << 28); });
  std::vector<uint8_t> rows;
  const Room room = [&](int64_t height, int64_t width) {
    if (height != side || width != side) {
      bad_image(path, concat("has ", width, "x", height, " pixels; the model takes ", side, "x", side,
                             ", and nothing is resized here"));
    }
    rows.resize(3 * static_cast<size_t>(side) * static_cast<size_t>(side));
    return rows.data();
  };
  if (bytes.starts_with(kPng)) {
    read_png(bytes, path, room);
  } else if (bytes.starts_with("P6")) {
    read_ppm(bytes, path, room);
  } else {
    bad_image(path, "is neither PNG nor binary PPM (P6)");
  }
  Tensor image = Tensor::empty({1, channels, side, side}, Dtype::f32);
  float* at = image.data<float>();
  for (size_t i = 0; channels == 1 && i < rows.size(); i += 3) {
    const uint32_t luma = 19595U * rows[i] + 38470U * rows[i + 1] + 7471U * rows[i + 2];  // of 65,536
    *at++ = static_cast<float>((luma + 0x8000U) >> 16U);
  }
  if (channels == 1) return image;
  for (size_t channel = 0; channel < 3; ++channel) {
    for (size_t i = channel; i < rows.size(); i += 3) *at++ = rows[i];
  }
  return image;
}

}  // namespace multihead::cli
