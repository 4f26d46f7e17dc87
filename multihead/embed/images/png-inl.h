// The module that reads PNG: loaded when it is needed, so that nobody else pays for its library.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace multihead::embed {

struct PngRequest {
  std::string_view bytes;  ///< of the file
  /// Given height and width, says where rows of 4 bytes a pixel go: colours and alpha; may throw instead.
  std::function<uint8_t*(int64_t height, int64_t width)> room;
};

/// `problem`: what is wrong with the file, or nothing.
using ReadPng = void (*)(const PngRequest& request, std::string& problem);
/// The module and its one function.
inline constexpr const char *kPngModule = "multihead_png.so", *kReadPng = "multihead_read_png";

}  // namespace multihead::embed

extern "C" [[gnu::weak]] void multihead_read_png(const multihead::embed::PngRequest& request,
                                                 std::string& problem);
