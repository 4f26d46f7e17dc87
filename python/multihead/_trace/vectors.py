"""Functions of whole vectors of traced values: shapes and reductions."""

import math

import numpy as np

from .functions import add, logical, product
from .values import Symbol, Traced, Vector, cast, common, lift, objects


def _items(graph, value):
    """Its elements as a NumPy array of symbols."""
    if isinstance(value, Traced) and not isinstance(value, Symbol):
        return value.expand().items
    return objects((), [lift(graph, value)])


def _vector(graph, items):
    return Vector(graph, items) if items.ndim else items.item()


def _axis(items, axis):
    count = max(items.ndim, 1)
    if not -count <= axis < count:
        raise IndexError(f"axis {axis} of a traced value must be in [{-count}, {count - 1}]")
    return axis % count


def _reduce(graph, input, dim, keepdim, combine, empty):
    items = _items(graph, input)
    axes = [dim] if isinstance(dim, int) else list(dim or range(items.ndim))  # all for None and (), as in PyTorch
    places = sorted({_axis(items, axis) for axis in axes})
    if len(places) < len(axes):
        graph.refuse(f"an axis of a traced value is named twice, in {dim}")
    axes = places
    kept = [axis for axis in range(items.ndim) if axis not in axes]
    rows = np.transpose(items, kept + axes).reshape([items.shape[a] for a in kept] + [-1])
    out = []
    for row in rows.reshape(-1, rows.shape[-1]):
        total = empty if len(row) == 0 else row[0]
        for x in row[1:]:
            total = combine(graph, total, x)
        out.append(total)
    shape = [1 if a in axes else n for a, n in enumerate(items.shape)] if keepdim else [items.shape[a] for a in kept]
    return _vector(graph, objects(shape, out))


def _truths(name, combine):
    def f(graph, input, dim=None, keepdim=False):
        def convert(x):
            return cast(graph, lift(graph, x), "b")

        items = _items(graph, input)
        truths = _vector(graph, objects(items.shape, [convert(x) for x in items.reshape(-1)]))
        result = _reduce(graph, truths, dim, keepdim, combine, convert(name == "all"))
        if items.size and items.reshape(-1)[0].kind == "u8":
            graph.refuse(f"'{name}' of uint8 cannot be traced; compare it with 0")
        return result

    return f


def _sum(graph, input, dim=None, keepdim=False):
    items = _items(graph, input)
    kind = common(graph, *items.reshape(-1))
    if kind in ("f16", "bf16"):
        graph.refuse("'sum' of 16-bit numbers cannot be traced; convert them with .float()")
    kind = kind if kind in ("f32", "f64") else "i64"
    items = objects(items.shape, [cast(graph, x, kind) for x in items.reshape(-1)])
    return _reduce(graph, _vector(graph, items), dim, keepdim, add, cast(graph, 0, kind))


def _dot(graph, input, other):
    a, b = _items(graph, input), _items(graph, other)
    if a.ndim != 1 or a.shape != b.shape:
        graph.refuse(f"'dot' takes two vectors of one length, got shapes {list(a.shape)} and {list(b.shape)}")
    if {x.kind for x in (*a, *b)} - {"f32", "f64"}:
        graph.refuse("'dot' takes 32- and 64-bit numbers")
    products = [product(graph, x, y) for x, y in zip(a, b)]
    return _sum(graph, Vector(graph, objects(a.shape, products)))


def _reshaped(change):
    def f(graph, input, *args, **kwargs):
        return _vector(graph, change(_items(graph, input), *args, **kwargs))

    return f


def _squeeze(items, dim=None):
    if dim is None:
        return items.reshape([n for n in items.shape if n != 1])
    place = _axis(items, dim)
    return items.reshape([n for a, n in enumerate(items.shape) if a != place or n != 1])


def _shape_argument(shape):
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


TABLE = {
    "any": _truths("any", logical("or_i")),
    "all": _truths("all", logical("and_i")),
    "sum": _sum,
    "dot": _dot,
    "unsqueeze": _reshaped(lambda items, dim: np.expand_dims(items, dim)),
    "squeeze": _reshaped(_squeeze),
    "reshape": _reshaped(lambda items, *shape: items.reshape(_shape_argument(shape))),
    "view": _reshaped(lambda items, *shape: items.reshape(_shape_argument(shape))),
    "dim": lambda graph, input: _items(graph, input).ndim,
    "numel": lambda graph, input: math.prod(_items(graph, input).shape),
    "is_floating_point": lambda graph, input: all(
        x.kind in ("f16", "bf16", "f32", "f64") for x in _items(graph, input).reshape(-1)
    ),
    "size": lambda graph, input, dim=None: (
        _items(graph, input).shape if dim is None else _items(graph, input).shape[dim]
    ),
}
