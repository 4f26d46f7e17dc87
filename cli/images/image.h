// Images from files.
#pragma once

#include <cstdint>
#include <string>

#include "multihead/core/tensor/tensor.h"

namespace multihead::cli {

/// Reads a PNG (colours without alpha, over black) or binary PPM (P6, 8 bits) of exactly `side` x `side`
/// pixels: [1, channels, side, side] f32, 0 to 255. One channel: the luma of ITU-R 601, as PIL's "L". Throws
/// InputError.
Tensor read_image(const std::string& path, int64_t side, int64_t channels = 3);

}  // namespace multihead::cli
