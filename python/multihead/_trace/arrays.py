"""Copies of traced functions whose NumPy arrays can be indexed by traced values.

Tensors can be indexed so themselves, and PyTorch's under a mode. NumPy's own arrays ask an index for its number: those
that the function reaches by its closure, globals, defaults, arguments of partial() and plain containers are views of a
class that does not.
"""

import functools
import types

import numpy as np

from .values import find, index_captured

_MOST_ITEMS = 1000  # of a container that is looked through


class CapturedArray(np.ndarray):
    """A NumPy array that can be indexed by traced values."""

    def __getitem__(self, index):
        symbol = find(index if isinstance(index, tuple) else (index,))
        if symbol is None:
            return super().__getitem__(index)
        return index_captured(symbol.graph, self.view(np.ndarray), index)


def with_captured_arrays(function):
    if not isinstance(function, (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)):
        call = getattr(type(function), "__call__", None)
        if isinstance(call, types.FunctionType):  # an object with a method of its own
            return types.MethodType(_wrap(call, {}), function)
    return _wrap(function, {})


def _wrap(value, seen):
    """The value with its arrays replaced, or the value itself if it has none."""
    kind = type(value)
    if kind is np.ndarray:
        return value.view(CapturedArray)
    if kind not in _WRAPPERS:
        return value
    if id(value) not in seen:
        seen[id(value)] = value  # what contains itself stays as it is
        seen[id(value)] = _WRAPPERS[kind](value, seen)
    return seen[id(value)]


def _wrap_all(values, seen):
    """The values, and whether any was replaced."""
    wrapped = [_wrap(value, seen) for value in values]
    return wrapped, any(new is not old for new, old in zip(wrapped, values))


def _wrap_items(value, seen):
    if len(value) > _MOST_ITEMS:
        return value
    wrapped, changed = _wrap_all(list(value), seen)
    return type(value)(wrapped) if changed else value


def _wrap_dict(value, seen):
    if len(value) > _MOST_ITEMS:
        return value
    wrapped, changed = _wrap_all(list(value.values()), seen)
    return dict(zip(value, wrapped)) if changed else value


def _wrap_partial(value, seen):
    wrapped, changed = _wrap_all([value.func, value.args, value.keywords], seen)
    return functools.partial(wrapped[0], *wrapped[1], **wrapped[2]) if changed else value


def _wrap_method(value, seen):
    function = _wrap(value.__func__, seen)
    return value if function is value.__func__ else types.MethodType(function, value.__self__)


def _names(code):
    """The names of globals that the code and the functions defined in it may read."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _contents(cell):
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _wrap_function(function, seen):
    scope, cells = function.__globals__, function.__closure__ or ()
    names = [name for name in _names(function.__code__) if name in scope]
    globals_, changed = _wrap_all([scope[name] for name in names], seen)
    inner, inner_changed = _wrap_all([_contents(cell) for cell in cells], seen)
    defaults, defaults_changed = _wrap_all([function.__defaults__, function.__kwdefaults__], seen)
    if not (changed or inner_changed or defaults_changed):
        return function
    closure = tuple(
        cell if new is _contents(cell) else types.CellType(new) for cell, new in zip(cells, inner)
    )
    copy = types.FunctionType(
        function.__code__, {**scope, **dict(zip(names, globals_))}, function.__name__, defaults[0], closure or None
    )
    copy.__kwdefaults__ = defaults[1]
    return copy


_WRAPPERS = {
    types.FunctionType: _wrap_function,
    types.MethodType: _wrap_method,
    functools.partial: _wrap_partial,
    dict: _wrap_dict,
    list: _wrap_items,
    tuple: _wrap_items,
}
