// The module of png.h, by libpng's simplified interface.
#include <png.h>

#include <memory>
#include <string>

#include "cli/images/png.h"

extern "C" void multihead_read_png(const multihead::cli::PngRequest& request, std::string& problem) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> held(&image, png_image_free);
  if (png_image_begin_read_from_memory(&image, request.bytes.data(), request.bytes.size()) == 0) {
    problem = image.message;
    return;
  }
  image.format = PNG_FORMAT_RGB;
  uint8_t* rows = request.room(image.height, image.width);
  const png_color black = {0, 0, 0};
  if (png_image_finish_read(&image, &black, rows, 0, nullptr) == 0) problem = image.message;
}
