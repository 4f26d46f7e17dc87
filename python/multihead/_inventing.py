"""Tools for those who invent an operation: its gradient in Python, its check, its comparison with a reference."""

import time
from collections.abc import Callable, Sequence
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
