"""Python score and mask functions, traced once into a small expression that the kernel evaluates.

The function is called with symbols. Arithmetic, comparisons, torch, NumPy and math functions of them and captured
arrays indexed by them are recorded; Python control flow on a symbol is refused, as its value is not known yet.
"""

import types

import numpy as np

from . import _core, _trace_functions  # noqa: F401: fills the table of functions
from ._trace_symbols import (
    Symbol,
    _Graph,
    _as_float,
    _find,
    _gather,
    _lift,
)


class CapturedArray:
    """A NumPy array or Tensor that can be indexed by traced values: score + mh.captured(bias)[head]."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self.shape, self.dtype = self.array.shape, self.array.dtype

    def __getitem__(self, index):
        symbol = _find(index if isinstance(index, tuple) else (index,))
        return self.array[index] if symbol is None else _gather(symbol.graph, self.array, index)

    def item(self):
        return self.array.item()


def trace(function, who, with_score, guard=None):
    """The function as an _core.ScoreProgram. `guard`: a context manager active while it is called."""
    graph = _Graph(who)
    names = ["batch", "head", "query", "key"]
    arguments = [Symbol(graph, graph.emit(name), "i", f"the {name} index") for name in names]
    if with_score:
        arguments.insert(0, Symbol(graph, graph.emit("score"), "f", "the score"))
    function = _with_captured_arrays(function)
    if guard is None:
        result = function(*arguments)
    else:
        with guard:
            result = function(*arguments)
    if result is None:
        raise TypeError(f"{who}: the function returned None; it must return {'a score' if with_score else 'a condition'}")
    result = _lift(graph, result)
    if with_score:
        result = _as_float(result)
    elif result.kind == "f":
        raise TypeError(f"{who}: the function must return a condition such as query >= key, got a number")
    # The result is the last instruction's register.
    if result.register != len(graph.code) - 1:
        if result.kind == "f":
            zero = graph.emit("const_f", number=0.0)
            graph.code.append(("add_f", result.register, zero, -1, 0.0, -1))
        else:
            zero = graph.emit("const_i", number=0)
            graph.code.append(("or_i", result.register, zero, -1, 0.0, -1))
    return _core.score_program(graph.code, graph.tables)


def _with_captured_arrays(function):
    """A copy of the function whose NumPy arrays and Tensors can be indexed by symbols."""
    if not isinstance(function, types.FunctionType):
        return function

    def wrap(value):
        return CapturedArray(value) if isinstance(value, (np.ndarray, _core.Tensor)) else value

    cells = function.__closure__ or ()
    wrapped_cells = []
    for cell in cells:
        try:
            wrapped_cells.append(types.CellType(wrap(cell.cell_contents)))
        except ValueError:  # an empty cell
            wrapped_cells.append(cell)
    used = {name: wrap(function.__globals__[name]) for name in function.__code__.co_names if name in function.__globals__}
    replaced = {name: value for name, value in used.items() if isinstance(value, CapturedArray)}
    if not replaced and not any(isinstance(c.cell_contents, CapturedArray) for c in wrapped_cells if _filled(c)):
        return function
    scope = {**function.__globals__, **replaced}
    copy = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, tuple(wrapped_cells) or None
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _filled(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def score_mod(function):
    """A score function for attention(score_mod=…): function(score, batch, head, query, key) -> score.

    It is traced once; NumPy functions and captured arrays indexed by batch, head, query and key may be used.
    """
    return trace(function, "score_mod", True)


def mask_mod(function):
    """The Mask of the pairs for which function(batch, head, query, key) is true.

    Whole blocks that are empty or full are found by interval arithmetic and cost nothing.
    """
    return trace(function, "mask_mod", False).mask()
