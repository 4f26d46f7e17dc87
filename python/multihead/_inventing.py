"""Tools for those who invent an operation: its gradient in Python, its check, its comparison with a reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core
from ._types import ArrayLike, Function


def custom_op(forward: Function, backward: Function) -> Callable[..., Any]:
    """An operation with a gradient of its own: a function of Tensors or arrays.

    `forward(*inputs)` returns a Tensor or an array, or a tuple of them. `backward(d, *inputs, y)` gets the gradient of
    the result, the inputs and the result, and returns the gradient of the input, or a tuple of one per input, None
    where there is none. Of a tuple of results, d and y are tuples; d has None for results that were not used. Keyword
    arguments go to both. Nothing in either function is recorded.

        sparse_relu = mh.custom_op(lambda x: np.maximum(x, 0), lambda d, x, y: d.numpy() * (y.numpy() > 0))
    """

    def operation(*inputs: Any, **options: Any) -> Any:
        tensors = [x if isinstance(x, _core.Tensor) else _core.tensor(x) for x in inputs]
        if not tensors:
            raise TypeError("custom_op: the operation needs at least one input")
        is_tuple = False

        def results(given: Any) -> Any:
            nonlocal is_tuple
            found = forward(*given, **options)
            is_tuple = isinstance(found, tuple)
            return found if is_tuple else (found,)

        def gradients(d: Any, given: Any, y: Any) -> Any:
            ends = (tuple(d), tuple(y)) if is_tuple else (d[0], y[0])
            found = backward(ends[0], *given, ends[1], **options)
            return found if isinstance(found, tuple) else (found,)

        outputs = _core.custom_op(tensors, results, gradients)
        return tuple(outputs) if is_tuple else outputs[0]

    operation.__name__ = getattr(forward, "__name__", "custom_op")
    operation.__doc__ = getattr(forward, "__doc__", None)
    return operation


@dataclass(frozen=True)
class ScoreRows:
    """Some rows of scores, as the weights of attention_rows() get them."""

    scores: _core.Tensor
    """[B, H, rows, keys]: scale * query @ key.T, -inf for keys that the mask excludes, and for those of the last 256 that
    do not exist, which are there without a mask, too"""
    seen: _core.Tensor
    """bool [B, H, rows, keys]: the others"""
    query: _core.Tensor
    """[B, H, rows, D]"""
    first_row: int
    """the first row's index in the queries"""
    first_key: int
    """the first key's index; it and the number of keys are multiples of 256"""


def attention_rows(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    weights: Function,
    *,
    mask: _core.Mask | None = None,
    scale: float | None = None,
    inputs: Sequence[_core.Tensor] = (),
) -> _core.Tensor:
    """weights(scale * query @ key.T) @ value, where the weights are any function of whole rows of scores.

    `weights(rows, *inputs)` gets some rows at a time (ScoreRows) and returns their weights [B, H, rows, keys] by ops on
    Tensors: running sums over the keys, mixing over the heads, sorting, convolutions. Excluded keys have the weight 0
    whatever it says. It runs several times, in the backward again, so it may not draw random numbers.

        def stick_breaking(rows):
            left = mh.log_sigmoid(-rows.scores)
            return mh.exp(mh.log_sigmoid(rows.scores) + mh.cumsum(left, -1, reverse=True) - left)

        out = mh.attention_rows(q, k, v, stick_breaking, mask=mh.causal())

    Shapes    query [B, H, Tq, D], key [B, Hkv, Tk, D], value [B, Hkv, Tk, Dv] -> [B, H, Tq, Dv]
    Dtypes    float32, float64; bfloat16 and float16 as float32
    Gradient  query, key, value and `inputs`; a tensor that needs a gradient and is read otherwise is refused
    Memory    O(T): a few MiB of rows at a time
    Raises    ShapeError, DtypeError, ValueError
    """

    def call(scores: Any, seen: Any, query: Any, first_row: int, first_key: int, *given: Any) -> Any:
        return weights(ScoreRows(scores, seen, query, first_row, first_key), *given)

    return _core.attention_rows(query, key, value, call, mask, scale, list(inputs))


def block_masses(
    query: ArrayLike,
    key: ArrayLike,
    block: int,
    *,
    query_block: int = 1,
    mask: _core.Mask | None = None,
    scale: float | None = None,
) -> _core.Tensor:
    """How much of each row's softmax falls on each block of keys: [B, H, ceil(Tq / query_block), ceil(Tk / block)].

    Sums over `block` keys, means over `query_block` queries, with gradients of query and key: what a selection of blocks,
    or a loss that teaches one, is made of. Never holds the scores. Rows without any key have masses of 0.
    """
    q, k = (x if isinstance(x, _core.Tensor) else _core.tensor(x) for x in (query, key))
    if block < 1 or query_block < 1:
        raise ValueError(f"block_masses: block and query_block must be >= 1, got {block} and {query_block}")
    keys = k.shape[2] if len(k.shape) == 4 else 0
    of_block = np.arange(keys)[:, None] // block == np.arange(-(-keys // block))
    value = _core.expand(_core.cast(_core.tensor(of_block), q.dtype), (*k.shape[:2], *of_block.shape))
    masses = _core.attention(q, k, value, mask=mask, scale=scale)
    if query_block == 1:
        return masses
    batch, heads, rows, blocks = masses.shape
    groups = -(-rows // query_block)
    padded = _core.pad(masses, 2, 0, groups * query_block - rows)
    sums = _core.sum(_core.reshape(padded, (batch, heads, groups, query_block, blocks)), 3)
    counts = np.minimum(query_block, rows - query_block * np.arange(groups)).astype(np.float64)
    return sums * _core.cast(_core.tensor(1 / counts[:, None]), sums.dtype)


def top_blocks(scores: ArrayLike, count: int, *, always: ArrayLike | None = None) -> _core.Tensor:
    """bool, where the `count` largest of the last axis are: the flags of mh.blocks() from the scores of blocks.

    Of equal ones the first are taken; -inf and NaN never are. `always`: bool, broadcast to scores, blocks that are
    chosen besides. No gradient.
    """
    tensor = scores if isinstance(scores, _core.Tensor) else _core.tensor(scores)
    values = np.asarray(_core.cast(tensor.detach(), "float64").numpy())
    if count < 0:
        raise ValueError(f"top_blocks: count must be >= 0, got {count}")
    values = np.where(np.isnan(values), -np.inf, values)
    best = np.argsort(-values, -1, kind="stable")[..., :count]
    flags = np.zeros(values.shape, bool)
    np.put_along_axis(flags, best, True, -1)
    flags &= values != -np.inf
    if always is not None:
        flags |= np.broadcast_to(np.asarray(always.numpy() if isinstance(always, _core.Tensor) else always, bool), flags.shape)
    return _core.tensor(flags)


def _results(given: Any) -> list[Any]:
    results = given if isinstance(given, tuple) else (given,)
    return [y if isinstance(y, _core.Tensor) else _core.tensor(y) for y in results]


def _weights(shapes: Any) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape) for shape in shapes]


def _gradients(f: Callable[..., Any], arrays: Any, dtype: Any) -> tuple[list[Any], list[Any]]:
    """The results, and the gradients of sum(weights * results), of floating arrays in `dtype`."""
    leaves = [_core.tensor(np.ascontiguousarray(x, dtype), requires_grad=True) for x in arrays]
    with _core.Tape() as tape:
        results = _results(f(*leaves))
        loss = None
        for y, w in zip(results, _weights([y.shape for y in results])):
            term = _core.sum(y * _core.tensor(w.astype(dtype)))
            loss = term if loss is None else loss + term
        if not loss.requires_grad:
            raise ValueError("gradcheck: the result depends on no input, or by operations that record no gradient")
        tape.backward(loss)
    gradients = [np.zeros(x.shape, dtype) if x.grad is None else np.array(x.grad.numpy()) for x in leaves]
    return [np.array(y.detach().numpy()) for y in results], gradients


def gradcheck(
    f: Function, inputs: Sequence[ArrayLike], *, step: float = 2e-3, atol: float = 1e-8, rtol: float = 1e-6
) -> float:
    """The largest error of f's gradients against central differences in float64.

    `f` takes Tensors and returns one, or a tuple; `inputs`: floating arrays or Tensors, all of which are checked, element
    by element (differences at step and step / 2 are combined, so that the error falls with the fourth power). Raises
    ValueError, which names the input and the element, where |gradient - differences| > atol + rtol * |differences|.
    """
    arrays = [np.array(x.detach().numpy() if isinstance(x, _core.Tensor) else x, np.float64) for x in inputs]
    results, gradients = _gradients(f, arrays, np.float64)
    weights = _weights([y.shape for y in results])

    def value() -> float:
        with _core.NoTape():
            return sum(float((y.numpy() * w).sum()) for y, w in zip(_results(f(*map(_core.tensor, arrays))), weights))

    worst = 0.0
    for n, (x, gradient) in enumerate(zip(arrays, gradients)):
        for at in np.ndindex(*x.shape):
            kept, found = x[at], []
            for h in (step, step / 2):
                values = []
                for moved in (kept + h, kept - h):
                    x[at] = moved
                    values.append(value())
                found.append((values[0] - values[1]) / (2 * h))
            x[at] = kept
            expected = (4 * found[1] - found[0]) / 3
            error = abs(gradient[at] - expected)
            if not error <= atol + rtol * abs(expected):
                raise ValueError(
                    f"gradcheck: input {n} at {at}: the gradient is {gradient[at]:.10g}, differences give {expected:.10g}"
                )
            worst = max(worst, error)
    return worst


def _best_seconds(f: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        f()
        times.append(time.perf_counter() - begin)
    return min(times)


def compare(
    f: Function,
    reference: Function,
    shapes: Sequence[Sequence[int]],
    *,
    dtype: str = "float32",
    seed: int = 0,
    rounds: int = 3,
) -> dict[str, list[float]]:
    """Compares f with a reference on random normal inputs of these shapes; prints a table and returns it as a dict.

    Both take Tensors and return one, or a tuple. The reference runs in float64, f in `dtype` and in float64: the largest
    errors of the results and of the gradient of each input, relative to the largest number of each; seconds of forward and
    forward with backward of both in `dtype`; bytes of tensors that f holds for its backward.
    """
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    truth = _gradients(reference, arrays, np.float64)
    table = {}
    for name in ("float64", dtype) if dtype != "float64" else ("float64",):
        found = _gradients(f, arrays, np.dtype(name))
        for what, got, expected in zip(("results", "gradients"), found, truth):
            if len(got) != len(expected) or any(a.shape != b.shape for a, b in zip(got, expected)):
                raise _core.ShapeError(
                    f"compare: {what} must be {[list(b.shape) for b in expected]} as the reference's, got "
                    f"{[list(a.shape) for a in got]}"
                )
            table[f"{what} in {name}"] = [
                float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-300)) for a, b in zip(got, expected)
            ]
    leaves = [_core.tensor(x.astype(dtype), requires_grad=True) for x in arrays]
    for name, function in (("f", f), ("reference", reference)):
        table[f"seconds of {name}"] = [
            _best_seconds(lambda: function(*leaves), rounds),
            _best_seconds(lambda: _gradients(function, arrays, np.dtype(dtype)), rounds),
        ]
    before = _core.memory_stats()["live_bytes"]
    with _core.Tape():
        held = f(*leaves)
        table["bytes for the backward"] = [_core.memory_stats()["live_bytes"] - before]
        del held
    for name, numbers in table.items():
        print(f"{name:24}", *(f"{x:.3g}" for x in numbers))
    return table
