// The part of `classify` that reads PNG: a module that is loaded when it is needed, so that no other verb
// pays for its library.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace multihead::cli {

struct PngRequest {
  std::string_view bytes;  ///< of the file
  /// Given height and width, says where rows of 3 bytes a pixel go; may throw instead.
  std::function<uint8_t*(int64_t height, int64_t width)> room;
};

/// Colours without alpha, over black. `problem`: what is wrong with the file, or nothing.
using ReadPng = void (*)(const PngRequest& request, std::string& problem);
/// The module and its one function.
inline constexpr const char *kPngModule = "multihead_png.so", *kReadPng = "multihead_read_png";

}  // namespace multihead::cli

extern "C" [[gnu::weak]] void multihead_read_png(const multihead::cli::PngRequest& request,
                                                 std::string& problem);
