// The module of png-inl.h, by libpng's simplified interface.
#include <png.h>

#include <memory>
#include <string>

#include "multihead/embed/images/png-inl.h"

extern "C" void multihead_read_png(const multihead::embed::PngRequest& request, std::string& problem) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> held(&image, png_image_free);
  if (png_image_begin_read_from_memory(&image, request.bytes.data(), request.bytes.size()) == 0) {
    problem = image.message;
    return;
  }
  if ((image.format & PNG_FORMAT_FLAG_LINEAR) != 0) {
    problem = "its PNG has 16 bits a colour, expected 8";
    return;
  }
  image.format = PNG_FORMAT_RGBA;
  uint8_t* rows = request.room(image.height, image.width);
  if (png_image_finish_read(&image, nullptr, rows, 0, nullptr) == 0) problem = image.message;
}
