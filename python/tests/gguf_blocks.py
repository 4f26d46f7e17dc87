"""Random matrices in formats that the package `gguf` reads, but does not write."""

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")


def k_blocks(kind, shape, rng):
    """Random blocks of a K format, which the package does not quantise to, of numbers around 0.05."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    if kind.name == "Q6_K":  # scale * (-128 .. 127) * (-32 .. 31)
        data[..., -2:] = np.array([4e-5], np.float16).view(np.uint8)
    else:  # scale * (0 .. 63) * (0 .. 15 or 31) - minimum * (0 .. 63), whose means are equal
        largest = 15 if kind.name == "Q4_K" else 31
        data[..., :4] = np.array([2e-4 / largest * 15, 2e-4 * 7.5], np.float16).view(np.uint8)
    return data.reshape(*shape[:-1], -1)
