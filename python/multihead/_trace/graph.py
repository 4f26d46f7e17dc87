"""Instructions and tables of a program that is being traced."""

import sys

import numpy as np

from .. import _core
from . import kinds


class Code:
    """Instructions with common subexpressions merged.

    `elementwise`, `of_vectors`: the functions that can be traced, by name; the latter take whole vectors.

    `typed`: values have PyTorch's dtypes and are rounded to them. Otherwise numbers have the dtype of the
    computation. `gradients`: captured tensors that require a gradient get one.
    """

    def __init__(self, who, elementwise, of_vectors, score="f32", typed=False, gradients=False):
        self.elementwise, self.of_vectors = elementwise, of_vectors
        self.who, self.score, self.typed, self.gradients = who, score, typed, gradients
        self.code, self.tables, self.learnt = [], [], {}
        self._known = {}
        self._table_ids = {}
        self._kept = []  # keeps captured arrays alive, so that ids stay unique
        self.outside_tapes = False

    @property
    def default(self):
        """The float type of a converted integer."""
        torch = sys.modules.get("torch")
        return kinds.of_dtype(torch.get_default_dtype(), self.who) if self.typed and torch else self.score

    def emit(self, op, *args, number=0.0, table=-1, kind="any"):
        args = tuple(args) + (-1,) * (4 - len(args))
        key = (op, args, number, str(number), table, kind)  # -0.0 == 0.0
        if key not in self._known:
            self._known[key] = len(self.code)
            self.code.append((op, *args, float(number), table, kind))
        return self._known[key]

    def names(self):
        return ", ".join(sorted({*self.elementwise, *self.of_vectors}))

    def refuse(self, text):
        raise TypeError(f"{self.who}: {text}")

    def table(self, array):
        """The index of the table that holds a captured array."""
        learns = self.gradients and bool(getattr(array, "requires_grad", False)) and 0 not in array.shape
        is_torch = callable(getattr(array, "data_ptr", None))
        if learns:
            self._check_gradient(array, is_torch)
        key = (id(array), learns)
        if isinstance(array, np.ndarray):
            key = (array.__array_interface__["data"][0], array.shape, array.strides, str(array.dtype))
        elif isinstance(array, _core.Tensor):
            key = (array._identity, array.shape, array.strides, array.dtype, learns)
        if is_torch:
            key = (array.data_ptr(), tuple(array.shape), array.stride(), str(array.dtype), learns)
        if key not in self._table_ids:
            self._kept.append(array)
            self._table_ids[key] = len(self.tables)
            if learns:
                self.learnt[len(self.tables)] = array
            kind = kinds.of_dtype(array.dtype, self.who)
            if 0 in array.shape:  # never read, but the kernel's tables have elements
                array, is_torch = np.zeros(1, np.float32 if kind in kinds.FLOATS else np.int32), False
            if kind in kinds.WRAPS:  # the kernel's integers have 32 bits
                array = array.int() if is_torch else np.asarray(array).astype(np.int32)
            self.tables.append(array.detach().contiguous() if is_torch else array)
        return self._table_ids[key]

    def _check_gradient(self, array, is_torch):
        """Whether the captured tensor's gradient will reach it."""
        if is_torch != self.typed:
            self.refuse(
                "a captured PyTorch tensor that requires a gradient gets one in multihead.torch.flex_attention only; "
                "pass detach() of it"
                if is_torch
                else "a captured Tensor that requires a gradient gets none from PyTorch; capture a PyTorch tensor"
            )
        if not is_torch and not array.is_leaf and self.outside_tapes:
            self.refuse(
                "a captured tensor was computed from tensors that require a gradient, which would be lost: index those "
                "themselves and compute with the traced values, or compute it under the Tape of the step and trace the "
                "function there"
            )
