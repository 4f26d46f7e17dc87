// Images from files.
#pragma once

#include <cstdint>
#include <string>

#include "multihead/core/tensor/tensor.h"

namespace multihead::cli {

/// Reads a PNG (colours without alpha, over black) or binary PPM (P6, 8 bits) of exactly `side` x `side`
/// pixels: [1, 3, side, side] f32, 0 to 255. Throws InputError.
Tensor read_image(const std::string& path, int64_t side);

}  // namespace multihead::cli
