"""Python score and mask functions, traced once into a small program that the kernel evaluates.

The function is called with symbols. Arithmetic, comparisons, torch, NumPy and math functions of them and captured
arrays indexed by them are recorded; Python control flow on a symbol is refused, since it has no value yet.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from typing import Sequence

from .. import _core
from .._core import Mask, ScoreProgram
from .._types import Function
from . import activations, draws, functions, kinds, types, vectors
from .arrays import with_captured_arrays
from .values import NO_INDEX, Graph, Symbol, Traced, cast, find, index_captured, lift

_ELEMENTWISE = {**functions.TABLE, **activations.TABLE, **types.TABLE}

_now = threading.local()  # graph: that of the function being traced


def index(tensor, key):
    """tensor[key], where key holds traced values or the tensor learns; Tensor.__getitem__ calls this."""
    symbol = find(key if isinstance(key, tuple) else (key,))
    return index_captured(_now.graph if symbol is None else symbol.graph, tensor, key)


def trace(function, who, with_score, guard=None, score="f32", typed=False, gradients=True):
    """Traces the function into an _core.ScoreProgram. `guard`: a context manager active during the call, in place of one
    that refuses random numbers; see Graph.

    `typed`: as PyTorch's flex_attention, whose query index is the row. Otherwise it is the position among the keys,
    and a function that has another parameter named row is given that, too.
    """
    graph = Graph(who, _ELEMENTWISE, vectors.TABLE, score, typed, gradients and with_score)
    names = ["batch", "head", "query", "key"]
    ops = ["batch", "head", "row" if typed else "query", "key"]
    arguments = [Symbol(graph, graph.emit(op), "i64", f"the {name} index") for op, name in zip(ops, names)]
    if with_score:
        emitted = graph.emit("score", kind=score if typed else "any")
        arguments.insert(0, Symbol(graph, emitted, score, "the score"))
    extra = {}
    if not typed and _takes_row(function, len(arguments)):
        extra["row"] = Symbol(graph, graph.emit("row"), "i64", "the row")
    function = with_captured_arrays(function)
    with _tracing(graph), guard or draws.refused(who):
        try:
            result = function(*arguments, **extra)
        except IndexError as error:
            if "only integers, slices" in str(error):  # NumPy's word for an index without a number
                raise TypeError(NO_INDEX.format(who=who, what="a traced value")) from error
            raise
        except KeyError as error:
            if (symbol := find(error.args)) is not None:  # of a dict
                raise TypeError(NO_INDEX.format(who=who, what=getattr(symbol, "name", None) or "a traced value")) from error
            raise
        code = _finish(graph, result, with_score)
    return _core.score_program(code, graph.tables, list(graph.learnt)), list(graph.learnt.values())


@contextlib.contextmanager
def _tracing(graph):
    """Records what the function computes from tensors that learn, so that capturing such a result is noticed."""
    before = getattr(_now, "graph", None), _core.set_tracing(graph.gradients)
    _now.graph = graph
    graph.outside_tapes = graph.gradients and not graph.typed and not _core.has_tape()
    try:
        with _core.Tape() if graph.outside_tapes else contextlib.nullcontext():
            yield
    finally:
        _now.graph = before[0]
        _core.set_tracing(before[1])


def _takes_row(function, count):
    """Whether the function has a parameter named row beyond the usual ones."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in function
        return False
    return any(p.name == "row" and (p.kind is p.KEYWORD_ONLY or i >= count) for i, p in enumerate(parameters))


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


def score_mod(function: Function) -> ScoreProgram:
    """A score function for attention(score_mod=…): function(score, batch, head, query, key) -> score.

    It is traced once, here: what it reads besides its arguments is read now. NumPy functions and captured arrays
    indexed by batch, head, query and key may be used; numbers have the dtype of the computation. A captured Tensor that
    requires a gradient gets one and is read again by every call; other arrays are copied. `query` is the position among
    the keys (row + Tk - Tq, row + tokens held by a state, or as the mask aligns it); a parameter named `row` gets the
    row of the call.
    """
    return trace(function, "score_mod", True)[0]


def mask_mod(function: Function, align: str | int | Sequence[int] = "end") -> Mask:
    """The Mask of the pairs for which function(batch, head, query, key) is true.

    `query` is the position among the keys, aligned as in causal(); a parameter named `row` gets the row of the call.
    Empty and full blocks are found by interval arithmetic; empty ones are skipped, full ones run without the mask.
    """
    return _core.program_mask(trace(function, "mask_mod", False)[0], align)
