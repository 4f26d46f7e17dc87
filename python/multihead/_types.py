"""Types of arguments, for signatures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, Sequence, Union

import numpy as np

if TYPE_CHECKING:
    from types import EllipsisType

    from ._core import Tensor


class SupportsDlpack(Protocol):
    """PyTorch's and JAX's arrays, and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsArray(Protocol):
    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


# What functions take as an array.
ArrayLike = Union[
    "Tensor", SupportsDlpack, SupportsArray, np.generic, memoryview, bytearray, bool, int, float, Sequence[Any]
]
DTypeLike = Union[str, np.dtype[Any], type, Any]  # a name, NumPy's, PyTorch's
ShapeLike = Union[int, Sequence[int]]
Index = Union[
    int, slice, "EllipsisType", None, ArrayLike, tuple[Union[int, slice, "EllipsisType", None, ArrayLike], ...]
]
PathLike = Union[str, bytes, "os.PathLike[Any]"]
