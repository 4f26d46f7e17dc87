"""Vectors in fewer bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._types import ArrayLike

if TYPE_CHECKING:
    import numpy as np


def quantize_embeddings(embeddings: ArrayLike, precision: str, ranges: ArrayLike | None = None,
                        calibration_embeddings: ArrayLike | None = None) -> np.ndarray[Any, Any]:
    """Vectors [n, dim] in fewer bits, as sentence-transformers has them. precision: 'int8' or 'uint8', each column from
    its least number to its largest in `ranges` [2, dim], else of calibration_embeddings or these vectors themselves;
    'binary' or 'ubinary', a bit for each number, 1 for positive ones, eight in a byte. To search vectors with fewer
    bits, see VectorIndex, which needs no ranges."""
    import numpy as np

    if ranges is not None and (calibration_embeddings is not None or precision not in ("int8", "uint8")):
        raise ValueError("quantize_embeddings: ranges are for 'int8' and 'uint8', in place of calibration_embeddings")
    x = np.atleast_2d(np.asarray(embeddings, np.float32))
    if precision == "float32":
        return x
    if precision in ("binary", "ubinary"):
        bits = np.packbits(x > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if precision not in ("int8", "uint8"):
        raise ValueError(f"quantize_embeddings: precision must be 'float32', 'int8', 'uint8', 'binary' or 'ubinary', got {precision!r}")
    if ranges is None:
        known = x if calibration_embeddings is None else np.asarray(calibration_embeddings, np.float32)
        if len(x) == 0:
            return np.empty(x.shape, precision)
        if len(known) < 2:
            raise ValueError(f"quantize_embeddings: {precision} needs ranges or calibration_embeddings for a single vector")
        ranges = np.stack([known.min(0), known.max(0)])
    least, most = np.asarray(ranges, np.float32)
    steps = (most - least) / np.float32(255)
    codes = np.clip(np.floor((x - least) / np.where(steps == 0, np.float32(1), steps)), 0, 255)
    return codes.astype(np.uint8) if precision == "uint8" else (codes - 128).astype(np.int8)
