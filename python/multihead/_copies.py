"""How pickle and copy make the package's objects again. Masks, captures and modules know it themselves."""

import copyreg

import numpy as np

from . import _core


def _tensor(array, dtype, requires_grad):
    return _core.tensor(array, dtype=dtype, requires_grad=requires_grad)


def _reduce_tensor(tensor):
    if not tensor.is_leaf:
        raise TypeError("Tensor: a result that a Tape has recorded cannot be pickled; pickle tensor.detach()")
    wide = tensor.to("float32") if tensor.dtype == "bfloat16" else tensor  # NumPy has no bfloat16
    return _tensor, (np.array(wide.detach().numpy()), tensor.dtype, tensor.requires_grad)


# Functions of the extension cannot be pickled by their names: these can.


def mask_of(recipes):
    return _core.mask_of(recipes)


def capture_of(wanted, captured):
    return _core.capture_of(wanted, captured)


def _program(code, tables, learnt):
    return _core.score_program(code, tables, learnt)


def _reduce_program(program):
    return _program, (program.instructions, program.tables, program.learnt)


def _fields(names):
    def reduce(value):
        return _from_fields, (type(value), {name: getattr(value, name) for name in names})

    return reduce


def _from_fields(kind, fields):
    return kind(**fields)


def _settable(kind):
    return [name for name, value in vars(kind).items() if isinstance(value, property) and value.fset is not None]


def install():
    copyreg.pickle(_core.Tensor, _reduce_tensor)
    copyreg.pickle(_core.ScoreProgram, _reduce_program)
    copyreg.pickle(_core.Rng, lambda rng: (_core.Rng, (rng.seed, rng.drawn)))
    copyreg.pickle(_core.RotaryTable, lambda table: (_core.RotaryTable, (table.cos, table.sin, table.layout)))
    for kind in vars(_core).values():
        if isinstance(kind, type) and (kind.__name__.endswith("Config") or kind is _core.RotaryScaling):
            copyreg.pickle(kind, _fields(_settable(kind)))
