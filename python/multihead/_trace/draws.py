"""Random numbers of traced functions."""

from __future__ import annotations

import contextlib
import operator
import random as _python
import sys
from typing import Any

import numpy as np

from .. import _core
from . import kinds
from .values import Symbol, Traced, cast, find, lift

_LARGEST_KEY = 2**53


def random(key: int, *indices: Any) -> Any:
    """A random number in [0, 1) with 24 bits that depends on the key and one to four integers alone.

    In functions for mask_mod() and score_mod() the integers are some of batch, head, query and key, or made of them: the
    number belongs to that place, however many threads, chunks or steps with a cache the call is split into. DropKey is
    `mh.mask_mod(lambda b, h, i, j: mh.random(step, b, h, i, j) >= 0.2)`. Another key, from 0 to 2**53 - 1, gives other
    numbers, so take a new one at every step. No gradient passes through. Elsewhere, integers or integer arrays, which
    broadcast, give a float32 Tensor of the same numbers.
    """
    key = _checked_key(key)
    if not 1 <= len(indices) <= 4:
        raise TypeError(f"random: one to four integers come after the key, got {len(indices)}")
    symbol = find(indices)
    return _eager(key, indices) if symbol is None else _traced(symbol.graph, key, indices)


def _checked_key(key):
    if isinstance(key, Traced):
        key.graph.refuse("random: the key is a plain integer, the same for all scores; indices come after it")
    try:
        number = None if isinstance(key, (bool, np.bool_)) else operator.index(key)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"random: the key must be an integer, got {type(key).__name__}")
    if not 0 <= number < _LARGEST_KEY:
        raise ValueError(f"random: the key must be from 0 to 2**53 - 1, got {number}")
    return number


def _traced(graph, key, indices):
    symbols = []
    for index in indices:
        if isinstance(index, Traced) and not isinstance(index, Symbol):
            graph.refuse("random: an index is one integer, not several")
        x = lift(graph, index)
        kind = x.kind if isinstance(x, Symbol) else ("b", "i64", "a number")[kinds.category_of_number(x)]
        if kind not in kinds.INTEGERS:
            what = getattr(x, "name", None) or ("a condition" if kind == "b" else "a number with a fraction")
            graph.refuse(f"random: an index is an integer such as batch, head, query or key, not {what}")
        symbols.append(cast(graph, x, kind))
    return graph.number("random_f", "f32" if graph.typed else graph.score, *symbols, number=float(key))


def _eager(key, indices):
    arrays = [np.asarray(index) for index in indices]
    for array in arrays:
        if array.dtype.kind not in "iu":
            raise TypeError(f"random: an index is an integer or an array of integers, got {array.dtype}")
        if array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
            raise ValueError("random: an index is from -2**31 to 2**31 - 1")
    arrays = np.broadcast_arrays(*arrays)
    flat = np.stack([array.reshape(-1).astype(np.int32) for array in arrays])
    return _core.reshape(_core.random_numbers(key, flat), arrays[0].shape)


def refuse(who, name):
    """Raises where PyTorch would draw one number for all scores."""
    raise TypeError(
        f"{who}: '{name}' would be drawn once, for all scores; use multihead.random(key, batch, head, query, key), whose numbers "
        "belong to their places"
    )


NAMES = frozenset(
    "rand randn randint randperm normal poisson multinomial bernoulli rand_like randn_like randint_like dropout "
    "feature_dropout alpha_dropout uniform_ normal_ bernoulli_ random_ exponential_ geometric_ cauchy_ log_normal_".split()
)


@contextlib.contextmanager
def refused(who):
    """Raises where the function that is traced inside draws by PyTorch's functions, or changes the state of NumPy's or
    Python's global generator. Generators of its own are not seen."""
    before = _states()
    with _torch_mode(who):
        yield
    for name, state in _states().items():
        if state != before[name]:
            refuse(who, name)


def _states():
    _, key, *rest = np.random.get_state()
    return {"numpy.random": (key.tobytes(), rest), "random": _python.getstate()}


def _torch_mode(who):
    torch = sys.modules.get("torch")
    if torch is None:
        return contextlib.nullcontext()

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", None) in NAMES:
                refuse(who, func.__name__)
            return func(*args, **(kwargs or {}))

    return Mode()
