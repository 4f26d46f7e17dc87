"""What modules, configurations, optimisers and the objects around a model print."""

from . import _core


def tree(module, name):
    """The parameters of a module as an indented tree with shapes and counts; layers that are alike share a line."""
    root = {}
    for path, tensor in module.named_parameters():
        *folders, leaf = path.split(".")
        branch = root
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[leaf] = tensor.shape
    if not root:
        return f"{name}()"
    packed = getattr(module, "packed_dtype", None)
    beside = f", and matrices packed as {packed}" if packed else ""
    return "\n".join([f"{name}: {_count(root):,} parameters{beside}", *_lines(root, module, "  ")])


def _count(branch):
    if not isinstance(branch, dict):
        product = 1
        for size in branch:
            product *= size
        return product
    return sum(_count(part) for part in branch.values())


def _lines(branch, owner, indent):
    lines = []
    names = list(branch)
    while names:
        name = names.pop(0)
        part, label = branch[name], name
        if name.isdigit():  # a run of layers that are alike
            last = name
            while names and names[0].isdigit() and branch[names[0]] == part:
                last = names.pop(0)
            label = name if last == name else f"{name}-{last}"
        inner = _part(owner, name)
        if isinstance(part, dict):
            kind = f" ({type(inner).__name__})" if inner is not None and not isinstance(inner, (list, tuple, dict)) else ""
            each = " each" if label != name else ""
            lines.append(f"{indent}{label}{kind}: {_count(part):,}{each}")
            lines += _lines(part, inner, indent + "  ")
        else:
            lines.append(f"{indent}{label} {list(part)}")
    return lines


def _part(owner, name):
    if owner is None:
        return None
    if isinstance(owner, dict):
        return next((item for key, item in owner.items() if str(key) == name), None)
    if name.isdigit():
        return owner[int(name)] if isinstance(owner, (list, tuple)) and int(name) < len(owner) else None
    return getattr(owner, name, None)


def _fields(config):
    return [name for name, value in vars(type(config)).items() if isinstance(value, property) and value.fset is not None]


def config_repr(config):
    """The call that makes it: fields that differ from a new one's."""
    fresh = type(config)()
    changed = [f"{name}={getattr(config, name)!r}" for name in _fields(config) if getattr(config, name) != getattr(fresh, name)]
    return f"{type(config).__name__}({', '.join(changed)})"


def config_str(config):
    """All fields, a line each, with the default where it is another."""
    fresh, lines = type(config)(), [f"{type(config).__name__}:"]
    for name in _fields(config):
        value, default = getattr(config, name), getattr(fresh, name)
        lines.append(f"  {name} = {value!r}" + ("" if value == default else f"    (default {default!r})"))
    return "\n".join(lines)


def _optimizer_repr(optimizer):
    return f"{type(optimizer).__name__}(lr={optimizer.lr:g}, steps={optimizer.steps})"


def _state_repr(state):
    return f"DecodeState({len(state.layers())} layers, lengths {state.lengths}, {state.nbytes:,} bytes)"


def _capture_repr(capture):
    names = ("weights", "key_mass", "entropy", "top_weights", "top_keys")
    captured = [f"{name}: {list(getattr(capture, name).shape)}" for name in names if getattr(capture, name) is not None]
    return f"AttentionCapture({', '.join(captured) or 'nothing yet'})"


def _points_repr(points):
    return f"Points(kept: {', '.join(points.kept) or 'nothing yet'})"


def _encoding_repr(encoding):
    return f"Encoding({len(encoding)} tokens: {' '.join(encoding.tokens[:8])}{' …' if len(encoding) > 8 else ''})"


def _classifier_repr(classifier):
    labels = classifier.labels
    return f"{type(classifier).__name__}({', '.join(labels[:6])}{f', … {len(labels)} labels' if len(labels) > 6 else ''})"


def _generator_repr(generator):
    return f"Generator({generator.running} running, {generator.waiting} waiting, {generator.bytes:,} bytes)"


def _translator_repr(translator):
    sizes = [f"{tokenizer.vocab_size:,}" for tokenizer in (translator.source_tokenizer, translator.target_tokenizer)]
    return f"Translator({translator.model.parameter_count():,} parameters, {' to '.join(sizes)} tokens)"


def _sizes_repr(sizes):
    names = [name for name, value in vars(type(sizes)).items() if isinstance(value, property)]
    return f"AttentionSizes({', '.join(f'{name}={getattr(sizes, name)!r}' for name in names)})"


def install():
    for kind in vars(_core).values():
        if not isinstance(kind, type):
            continue
        if hasattr(kind, "named_parameters"):
            kind.__repr__ = lambda self: tree(self, type(self).__name__)
        elif kind.__name__.endswith("Config") or kind is _core.RotaryScaling:
            kind.__repr__, kind.__str__ = config_repr, config_str
    _core.Optimizer.__repr__ = _optimizer_repr
    _core.DecodeState.__repr__ = _state_repr
    _core.AttentionCapture.__repr__ = _capture_repr
    _core.Points.__repr__ = _points_repr
    _core.AttentionSizes.__repr__ = _sizes_repr
    _core.Encoding.__repr__ = _encoding_repr
    _core.Generator.__repr__ = _generator_repr
    _core.Translator.__repr__ = _translator_repr
    for kind in (_core.ImageClassifier, _core.TextClassifier, _core.TokenClassifier):
        kind.__repr__ = _classifier_repr
