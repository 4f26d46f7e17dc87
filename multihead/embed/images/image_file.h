// Images from files, and at another size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace multihead::embed {

/// Pixels of 8 bits, row by row, the channels of a pixel side by side.
struct Image {
  int64_t height = 0, width = 0, channels = 3;
  std::vector<uint8_t> pixels = {};
};

/// Reads a PNG or binary PPM (P6) of 8 bits a colour. Three channels: as PIL's "RGB", that is, without alpha, or
/// blended with white; one: as its "L", the luma of ITU-R 601. Throws IoError, FormatError; ValueError (other channels,
/// no module for PNG).
Image read_image(const std::string& path, int64_t channels = 3, bool on_white = false);

/// The image with other sides, bit for bit as PIL makes it: by a triangle (2, bilinear) or a cubic (3, bicubic) that
/// is as wide as a pixel of the smaller image, along rows, then along columns; Pillow 13 takes upright images in the
/// other order, where less is computed so. Throws ValueError for other filters.
Image resized(const Image& image, int64_t height, int64_t width, int64_t resample = 2);

/// Its channels one after another, as models take them.
void copy_planes(const Image& image, uint8_t* out);

}  // namespace multihead::embed
