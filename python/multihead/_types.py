"""Types of arguments, for signatures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Protocol, Sequence, Union

import numpy as np

if TYPE_CHECKING:
    from types import EllipsisType

    from typing_extensions import Concatenate

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

if TYPE_CHECKING:  # any function; the numbers of arguments tell a checker that those of a lambda are Any, not unknown
    Function = Union[
        Callable[Concatenate[Any, ...], Any],
        Callable[Concatenate[Any, Any, ...], Any],
        Callable[Concatenate[Any, Any, Any, ...], Any],
        Callable[Concatenate[Any, Any, Any, Any, ...], Any],
        Callable[Concatenate[Any, Any, Any, Any, Any, ...], Any],
    ]
else:
    Function = Callable[..., Any]
