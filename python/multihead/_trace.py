"""Python score and mask functions, traced once into a small program that the kernel evaluates.

The function is called with symbols. Arithmetic, comparisons, torch, NumPy and math functions of them and captured
arrays indexed by them are recorded; Python control flow on a symbol is refused, since it has no value yet.
"""

import types

import numpy as np

from . import _core, _trace_functions, _trace_kinds as kinds  # noqa: F401: fills the table of functions
from ._trace_symbols import Graph, Symbol, Traced, cast, find, lift
from ._trace_tables import index_captured


class CapturedArray:
    """A NumPy array or Tensor that can be indexed by traced values: score + mh.captured(bias)[head]."""

    def __init__(self, array):
        learns = isinstance(array, _core.Tensor) and array.requires_grad
        self.array = array if learns else np.asarray(array)
        self.shape, self.dtype = tuple(array.shape), array.dtype

    def __getitem__(self, index):
        symbol = find(index if isinstance(index, tuple) else (index,))
        return self.array[index] if symbol is None else index_captured(symbol.graph, self.array, index)

    def item(self):
        return self.array.item()


def trace(function, who, with_score, guard=None, score="f32", typed=False, gradients=True):
    """Traces the function into an _core.ScoreProgram. `guard`: a context manager active during the call; see Graph."""
    graph = Graph(who, score, typed, gradients and with_score)
    names = ["batch", "head", "query", "key"]
    arguments = [Symbol(graph, graph.emit(name), "i64", f"the {name} index") for name in names]
    if with_score:
        emitted = graph.emit("score", kind=score if typed else "any")
        arguments.insert(0, Symbol(graph, emitted, score, "the score"))
    function = _with_captured_arrays(function)
    if guard is None:
        result = function(*arguments)
    else:
        with guard:
            result = function(*arguments)
    program = _core.score_program(_finish(graph, result, with_score), graph.tables, list(graph.learnt))
    return program, list(graph.learnt.values())


def _finish(graph, result, with_score):
    """The instructions; the last one gives the result."""
    what = "a score" if with_score else "a condition"
    if result is None:
        raise TypeError(f"{graph.who}: the function returned None; it must return {what}")
    if isinstance(result, Traced) and not isinstance(result, Symbol):
        raise TypeError(f"{graph.who}: the function returned {list(result.shape)} values; it must return {what}")
    result = lift(graph, result)
    if with_score:
        result = cast(graph, result, graph.score)
    else:
        result = cast(graph, result, "b") if not isinstance(result, Symbol) else result
        if result.kind != "b" and (graph.typed or result.kind in kinds.FLOATS):
            got = "a number" if result.kind in kinds.FLOATS else kinds.DTYPES[result.kind]
            raise TypeError(f"{graph.who}: the function must return a condition such as query >= key, got {got}")
    return graph.code[: result.register + 1]  # later ones are unused


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

    It is traced once; NumPy functions and captured arrays indexed by batch, head, query and key may be used. Numbers
    have the dtype of the computation. A captured Tensor that requires a gradient gets one and is read again by every
    call; other arrays are copied here.
    """
    return trace(function, "score_mod", True)[0]


def mask_mod(function):
    """The Mask of the pairs for which function(batch, head, query, key) is true.

    Empty and full blocks are found by interval arithmetic; empty ones are skipped, full ones run without the mask.
    """
    return trace(function, "mask_mod", False)[0].mask()
