"""Whether a torch.nn module computes exactly what its class says: the premise of every conversion.

A module is compared, field by field and type by type, with one that PyTorch's constructor makes from its options. What
differs is refused with its path: subclasses, hooks, pruned or parametrised weights, methods and parts that were
replaced, layers of a stack unlike the first.
"""

import math
import re

import torch
import torch.nn.functional as F

from .. import _torch_guards

_nn = torch.nn
_FUNCTIONS = [(F.relu, "relu"), (torch.relu, "relu"), (F.gelu, "gelu"), (F.silu, "silu")]
_STORES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# No result depends on these: what PyTorch's forward never reads, bookkeeping, ways to the same numbers.
_NEUTRAL = {
    "training",  # compared with the root's
    "num_layers", "nhead", "norm_type", "inplace", "enable_nested_tensor", "use_nested_tensor", "mask_check",
    "_compiled_call_impl", "_is_full_backward_hook", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
}  # fmt: skip


def _advice(module):
    """How to make permanent a weight that every call computes anew, or None."""
    own = fields(module)
    if "parametrizations" in own:
        return "make it permanent with torch.nn.utils.parametrize.remove_parametrizations()"
    if any(name.endswith("_orig") for name in own):
        return "make pruning permanent with torch.nn.utils.prune.remove(), spectral norm with remove_spectral_norm()"
    if any(name.endswith("_g") for name in own):
        return "make weight norm permanent with torch.nn.utils.remove_weight_norm()"
    return None


class ModuleChecks:
    """Reads a module's fields; whatever is unexpected raises, naming `who` and the path inside the root."""

    def __init__(self, who, root):
        self.who, self.root = who, root

    def refuse(self, path, text, kind=ValueError):
        root = type(self.root).__qualname__
        at = f"'{path}' of the {root}" if path else f"the {root}"
        raise kind(f"{self.who}: {at} {text}")

    def of_type(self, module, path, kind):
        """The module, which must be a `kind` and no subclass of it."""
        if type(module) is not kind:
            text = f"must be a {_qualified(kind)}, got a {_qualified(type(module))}"
            if isinstance(module, kind):
                advice = _advice(module) or "copy its weights into one"
                text += f", a subclass that may compute something else; {advice}"
            self.refuse(path, text, TypeError)
        return module

    def part(self, module, path, name, kind):
        at = join(path, name)
        return self.of_type(fields(module).get(name), at, kind), at

    def number(self, module, path, name, kind=float):
        """A plain number: a tensor may require a gradient, and a bool is a mistake."""
        value = fields(module).get(name)
        if type(value) is int or (kind is float and type(value) is float and math.isfinite(value)):
            return value
        self.refuse(join(path, name), f"must be {'an int' if kind is int else 'a finite float'}, got {_shown(value)}")

    def flag(self, module, path, name):
        value = fields(module).get(name)
        if type(value) is not bool:
            self.refuse(join(path, name), f"must be a bool, got {_shown(value)}")
        return value

    def activation(self, function, path):
        """The name of an activation that multihead has, known by identity and not by its own name."""
        for known, name in _FUNCTIONS:
            if function is known:
                return name
        name = {_nn.ReLU: "relu", _nn.SiLU: "silu", _nn.GELU: "gelu"}.get(type(function))
        if name is None:
            self.refuse(
                path,
                f"must be relu, gelu or silu (torch.nn.functional's functions or torch.nn's modules), got "
                f"{_shown(function)}, of which nothing is known",
            )
        approximate = fields(function).get("approximate", "none")
        if approximate not in ("none", "tanh"):
            self.refuse(path, f"has approximate={approximate!r}; expected 'none' or 'tanh'")
        self.alike(function, path, _nn.GELU(approximate) if name == "gelu" else type(function)())
        return "gelu_tanh" if approximate == "tanh" else name

    def alike(self, module, path, expected):
        """Compares the module with one of PyTorch's making."""
        self.of_type(module, path, type(expected))
        own, known, cls = fields(module), fields(expected), type(module)
        for store in _STORES:
            for name in vars(module)[store]:
                if name in vars(module):  # Python finds this one first
                    self.refuse(join(path, name), "is set twice: as a plain attribute and as a registered one")
        for name in _HOOKS:
            if own[name]:
                what = name.strip("_").replace("_", " ")
                self.refuse(path, f"has {what}, which may change results; {_advice(module) or 'remove them'}")
        if own["training"] is not self.root.training:
            self.refuse(path, "is in another mode than the rest; call .train() or .eval() on the whole module")
        for name in known.keys() - own.keys():
            self.refuse(join(path, name), "is missing")
        registered = {name for store in _STORES for name in vars(module)[store]}
        for name, value in own.items():
            if name in _NEUTRAL or name in _STORES:
                continue
            if name in known:
                self._compare(value, join(path, name), known[name])
            elif value is not None and name in registered:
                advice = _advice(module) or "remove it if it is not used"
                self.refuse(join(path, name), f"is not part of a {cls.__name__}; {advice}")
            elif hasattr(cls, name):
                self.refuse(join(path, name), f"replaces {cls.__name__}.{name}: what it computes is unknown")

    def _compare(self, value, path, expected):
        if isinstance(expected, _nn.Module) and not path.endswith("activation"):
            if not isinstance(value, _nn.Module):
                self.refuse(path, f"must be a {_qualified(type(expected))}, got {_shown(value)}", TypeError)
            self.alike(value, path, expected)
        elif isinstance(expected, torch.Tensor):
            if type(value) is not type(expected):
                self.refuse(path, f"must be a {type(expected).__name__}, got {type(value).__name__}", TypeError)
            if value.shape != expected.shape:
                self.refuse(path, f"must have shape {list(expected.shape)}, got {list(value.shape)}")
        elif path.rpartition(".")[2] == "activation":
            got, want = self.activation(value, path), self.activation(expected, path)
            if got != want:
                self.refuse(path, f"must be {want} as in the first layer, got {got}")
        elif not _same(value, expected):
            self.refuse(path, f"must be {expected!r} here, got {_shown(value)}")

    def parameters(self):
        """{name: Parameter} of the root: plain dense CPU memory of one dtype, nothing shared."""
        named = dict(self.root.named_parameters(remove_duplicate=False))
        if not named:
            self.refuse("", "has no parameters")
        dtypes = {p.dtype for p in named.values()}
        if len(dtypes) > 1:
            words = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
            self.refuse("", f"must have parameters of one dtype, got {words}; convert it with .to(dtype)")
        for name, p in named.items():
            _torch_guards.plain(self.who, f"'{name}'", p)
            if p.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
                self.refuse(name, f"must be float32, float64, bfloat16 or float16, got {p.dtype}")
            if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
                self.refuse(name, "has gradient hooks, which would be lost; remove them")
        self._refuse_shared(named)
        return named

    def _refuse_shared(self, named):
        """A converted module has parameters of its own, so shared ones would no longer learn together."""
        spans = []
        for name, p in named.items():
            if p.numel():
                extent = 1 + sum((n - 1) * stride for n, stride in zip(p.shape, p.stride()))
                spans.append((p.data_ptr(), p.data_ptr() + extent * p.element_size(), name))
                if extent < p.numel():
                    self.refuse(name, "has elements that share memory; replace it by its clone()")
        spans.sort()
        for (_, end, first), (begin, _, second) in zip(spans, spans[1:]):
            if begin < end:
                self.refuse(second, f"shares its memory with '{first}', and would be a copy; untie them first")


def join(path, name):
    return f"{path}.{name}" if path else name


def fields(module):
    """The parts of a module, registered or not."""
    if not isinstance(module, _nn.Module):
        return {}
    every = dict(vars(module))
    for store in _STORES:
        every |= every.get(store, {})
    return every


def _qualified(cls):
    return re.sub(r"^torch\.nn\.modules\.\w+", "torch.nn", cls.__module__) + f".{cls.__qualname__}"


def _shown(value):
    if isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} of shape {list(value.shape)}"
    return repr(value)[:200]


def _same(value, expected):
    kinds = {type(value), type(expected)}
    return value == expected if len(kinds) == 1 or kinds == {int, float} else False
