#include "multihead/embed/images/image_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/modules-inl.h"
#include "multihead/core/text/utf8.h"
#include "multihead/embed/images/png-inl.h"

namespace multihead::embed {
namespace {

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n", kSpace = " \t\r\n\v\f";

[[noreturn]] void bad_image(const std::string& path, const std::string& problem) {
  throw FormatError(concat(quote(path), ": ", problem));
}

// The bytes of an image with so many for each pixel.
size_t image_bytes(int64_t height, int64_t width, int64_t each, const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 28;
  if (height > kMost / width) bad_image(path, concat("has ", width, "x", height, " pixels, more than 2^28"));
  return static_cast<size_t>(height * width * each);
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

Image read_ppm(std::string_view rest, const std::string& path) {
  rest.remove_prefix(2);
  Image image;
  image.width = ppm_number(rest, path), image.height = ppm_number(rest, path);
  if (ppm_number(rest, path) != 255) bad_image(path, "its PPM has not 8 bits a colour (a maximum of 255)");
  const size_t bytes = image_bytes(image.height, image.width, 3, path);
  if (rest.size() < bytes + 1)
    bad_image(path, concat("ends after ", rest.size(), " of ", bytes + 1, " bytes"));
  image.pixels.assign(rest.begin() + 1, rest.begin() + 1 + static_cast<std::ptrdiff_t>(bytes));
  return image;
}

ReadPng png_reader() {
  if (multihead_read_png != nullptr) return multihead_read_png;
  const auto paths = find_modules(kPngModule);
  MH_CHECK(!paths.empty(), ValueError, "PNG images need ", kPngModule,
           " beside this program or in lib/multihead; it is built where libpng is "
           "(Debian: libpng-dev, pkg-config)");
  return reinterpret_cast<ReadPng>(  // NOLINT(*-reinterpret-cast): as dlsym is meant
      module_function(paths.front(), kReadPng));
}

// A colour of this opacity over white, as PIL's alpha_composite() rounds it.
uint8_t over_white(uint8_t colour, uint8_t alpha) {
  const uint32_t sum = (colour * alpha + 255U * (255U - alpha) + 128U) << 7U;
  return static_cast<uint8_t>((((sum >> 8U) + sum) >> 8U) >> 7U);
}

Image read_png(std::string_view bytes, const std::string& path, bool on_white) {
  static const ReadPng read = png_reader();
  Image image;
  std::vector<uint8_t> rows;
  const auto room = [&](int64_t height, int64_t width) {
    image.height = height, image.width = width;
    rows.resize(image_bytes(height, width, 4, path));
    return rows.data();
  };
  std::string problem;
  read({bytes, room}, problem);
  if (!problem.empty()) bad_image(path, printable(problem));
  for (size_t i = 0; i < rows.size(); i += 4)
    for (size_t c = i; c < i + 3; ++c)
      image.pixels.push_back(on_white ? over_white(rows[c], rows[i + 3]) : rows[c]);
  return image;
}

Image grey(const Image& image) {
  Image out = {.height = image.height, .width = image.width, .channels = 1};
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    const uint8_t* p = &image.pixels[i];
    const uint32_t luma = 19595U * p[0] + 38470U * p[1] + 7471U * p[2];  // of 65,536
    out.pixels.push_back(static_cast<uint8_t>((luma + 0x8000U) >> 16U));
  }
  return out;
}

double triangle(double x) { return std::max(0.0, 1 - std::abs(x)); }

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

// The pixels that a new pixel is a sum of, and their weights as fractions of 2^22.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights = {};
};
constexpr int kFraction = 22;

std::vector<Taps> taps_of(int64_t from, int64_t to, int64_t resample) {
  const auto filter = resample == 2 ? triangle : cubic;
  const double ratio = static_cast<double>(from) / static_cast<double>(to), width = std::max(ratio, 1.0),
               reach = (resample == 2 ? 1 : 2) * width, inverse = 1 / width;
  std::vector<Taps> all;
  for (int64_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * ratio;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(std::floor(centre - reach + 0.5))),
               end = std::min(from, static_cast<int64_t>(std::floor(centre + reach + 0.5)));
    std::vector<double> weights;
    double total = 0;
    for (int64_t at = first; at < end; ++at) {
      weights.push_back(filter((static_cast<double>(at) - centre + 0.5) * inverse));
      total += weights.back();
    }
    Taps& taps = all.emplace_back(Taps{.first = first});
    for (const double weight : weights) {
      const double fraction = weight * (1 / total) * (1 << kFraction);
      taps.weights.push_back(static_cast<int32_t>(fraction + (fraction < 0 ? -0.5 : 0.5)));
    }
  }
  return all;
}

// A line of pixels that lie `step` bytes apart.
void resample_line(const uint8_t* in, uint8_t* out, const std::vector<Taps>& taps, int64_t step) {
  for (const Taps& tap : taps) {
    int32_t sum = 1 << (kFraction - 1);
    const uint8_t* at = in + tap.first * step;
    for (const int32_t weight : tap.weights) {
      sum += *at * weight;
      at += step;
    }
    *out = static_cast<uint8_t>(std::clamp(sum >> kFraction, 0, 255));
    out += step;
  }
}

}  // namespace

Image read_image(const std::string& path, int64_t channels, bool on_white) {
  MH_CHECK(channels == 3 || channels == 1, ValueError, "files have 3 channels or 1, the model takes ",
           channels);
  const std::string bytes = read_file(path, uint64_t{1} << 28);
  const bool is_png = bytes.starts_with(kPng);
  if (!is_png && !bytes.starts_with("P6")) bad_image(path, "is neither PNG nor binary PPM (P6)");
  Image image = is_png ? read_png(bytes, path, on_white) : read_ppm(bytes, path);
  return channels == 1 ? grey(image) : image;
}

Image resized(const Image& image, int64_t height, int64_t width, int64_t resample) {
  MH_CHECK(resample == 2 || resample == 3, ValueError,
           "images are resized by 2 (bilinear) or 3 (bicubic), got ", resample);
  const int64_t channels = image.channels;
  Image across = image;
  if (width != image.width) {
    across.width = width;
    across.pixels.resize(static_cast<size_t>(image.height * width * channels));
    const std::vector<Taps> taps = taps_of(image.width, width, resample);
    for (int64_t row = 0; row < image.height; ++row) {
      for (int64_t c = 0; c < channels; ++c) {
        resample_line(image.pixels.data() + row * image.width * channels + c,
                      across.pixels.data() + row * width * channels + c, taps, channels);
      }
    }
  }
  if (height == image.height) return across;
  Image out = {.height = height, .width = width, .channels = channels};
  out.pixels.resize(static_cast<size_t>(height * width * channels));
  const std::vector<Taps> taps = taps_of(image.height, height, resample);
  for (int64_t i = 0; i < width * channels; ++i)
    resample_line(across.pixels.data() + i, out.pixels.data() + i, taps, width * channels);
  return out;
}

void copy_planes(const Image& image, uint8_t* out) {
  for (int64_t channel = 0; channel < image.channels; ++channel) {
    for (size_t i = static_cast<size_t>(channel); i < image.pixels.size();
         i += static_cast<size_t>(image.channels))
      *out++ = image.pixels[i];
  }
}

}  // namespace multihead::embed
