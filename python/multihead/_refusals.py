"""Finds the argument of a call that does not fit, from the text that lists all signatures."""

import ast
import difflib
import re

_TEXT = re.compile(r"(\w*)\(\): incompatible function arguments\..*?supported:\n(.*?)\n+Invoked with types: ?(.*)", re.S)
_KEYWORDS = re.compile(r"(?:^|, )kwargs = \{ (.*?),? \}$", re.S)
_WORDS = {"object": "an object", "float": "a number", "int": "an integer", "str": "a string", "bool": "True or False"}
_RENAMED = {
    ("Generator", "remembered"): "cached_prompts",
    ("Generator", "remembered_bytes"): "prompt_cache_bytes",
    ("Generator", "rows"): "max_batch",
    ("sum", "keep_axis"): "keepdims",
}
_CALLED = {"torch_forward": "scaled_dot_product_attention"}  # what the user has called
_FITTING = {  # types that an annotation takes besides its own
    "float": {"int", "bool"},
    "Sequence": {"list", "tuple", "ndarray", "range"},
    "Mapping": {"dict"},
    "PathLike": {"str", "bytes", "Path", "PosixPath"},
}


def explain(text):
    """The message of an error, as short as that of a Python function."""
    match = _TEXT.match(text)
    if match is None:
        return text
    name, listed, given = match.groups()
    functions = [_parse(line.split(". ", 1)[1]) for line in listed.splitlines() if re.match(r"\s+\d+\. ", line)]
    positional, keywords = _given(given)
    if not functions or None in functions:
        return text
    first = functions[0].args.posonlyargs + functions[0].args.args
    if first and first[0].arg == "self" and positional:
        owner = positional[0].rsplit(".", 1)[-1]
        name = owner if name in ("", "__init__", "__call__") else f"{owner}.{name}"
    for old in keywords:
        if (name, old) in _RENAMED:
            return f"{name}: '{old}' is called '{_RENAMED[name, old]}' now"
    problems = [_problem(f, positional, keywords) for f in functions]
    # The overload that went furthest is the one that was meant.
    return f"{_CALLED.get(name, name)}: {max(problems)[1]}"


def _parse(signature):
    signature = signature.removeprefix("def ")
    name = "setter" if signature.startswith("(") else ""
    try:
        return ast.parse(f"def {name}{signature}: ...").body[0]
    except SyntaxError:
        return None


def _given(text):
    """Types of the positional arguments, and of keywords by name."""
    keywords = {}
    match = _KEYWORDS.search(text)
    if match:
        keywords = dict(item.split(": ", 1) for item in match.group(1).split(", ") if item)
        text = text[: match.start()]
    return [item for item in text.split(", ") if item], keywords


def _problem(function, positional, keywords):
    """(how many arguments fitted, what is wrong with the next)."""
    parameters = function.args.posonlyargs + function.args.args
    named = {p.arg: p for p in parameters + function.args.kwonlyargs}
    known = [p.arg for p in parameters + function.args.kwonlyargs if p.arg != "self"]
    if len(positional) > len(parameters) and function.args.vararg is None:
        most, count = len(parameters) - ("self" in named), len(positional) - ("self" in named)
        return 0, f"takes {most or 'no'} positional argument{'' if most == 1 else 's'}, got {count}; {_list(known)}"
    for name in keywords:
        if name not in named and function.args.kwarg is None:
            near = difflib.get_close_matches(name, known, 1, 0.7)  # "scale" is not meant as "value"
            hint = f"; did you mean '{near[0]}'?" if near else ""
            return 0, f"no argument '{name}'{hint}{'' if near else '; ' + _list(known)}"
    given = {p.arg: kind for p, kind in zip(parameters, positional)}
    for name in keywords:
        if name in given:
            return 0, f"{name} is given twice"
    given.update({name: kind for name, kind in keywords.items() if name in named})
    fitted = 0
    for name, kind in given.items():
        if name != "self" and not _fits(named[name].annotation, kind):
            wanted = _words(named[name].annotation)
            name = "the value of an attribute" if name == "arg" else name
            if wanted == "an object":
                return fitted, f"{name} must not be None"
            return fitted, f"{name} must be {wanted}, got {_short(kind)}{_hint(kind)}"
        fitted += 1
    defaults = len(function.args.defaults)
    required = parameters[: len(parameters) - defaults] if defaults else parameters
    required += [p for p, value in zip(function.args.kwonlyargs, function.args.kw_defaults) if value is None]
    for p in required:
        if p.arg not in given and p.arg != "self":
            return fitted, f"{p.arg} is missing; {_list(known)}"
    integers = [name for name, kind in given.items() if _short(kind) == "int" and _fits(named[name].annotation, "int")]
    for name in given:
        if "Sequence" in (wanted := _words(named[name].annotation)) or "Mapping" in wanted:
            other = f"{_either(integers)} out of range, or " if integers else ""
            return fitted, f"{other}{name} must be {wanted}, got other elements"
    got = ", ".join(f"{name} {_short(kind)}" for name, kind in given.items() if name != "self")
    return fitted, f"a value is out of range, among {got or 'no arguments'}"


def _either(names):
    return f"{names[0]} is" if len(names) == 1 else f"one of {', '.join(names)} is"


def _list(names):
    return f"it takes {', '.join(names)}" if names else "it takes none"


def _short(kind):
    return "None" if kind == "NoneType" else kind.rsplit(".", 1)[-1]


def _hint(kind):
    return " that requires a gradient; pass its number (item()) to have a constant" if _short(kind) == "Tensor" else ""


def _alternatives(annotation):
    """The names of the types that an annotation allows, without modules and elements."""
    text = "object" if annotation is None else ast.unparse(annotation)
    return [part.split("[")[0].rsplit(".", 1)[-1].strip("'\" ") for part in text.split(" | ")]


def _fits(annotation, kind):
    kind = _short(kind)
    for allowed in _alternatives(annotation):
        if kind == allowed or (allowed == "object" and kind != "None"):
            return True
        if kind in _FITTING.get(allowed, ()):
            return True
        if allowed == "float" and re.fullmatch(r"(float|u?int)\d+|longdouble", kind):
            return True
        if allowed == "int" and re.fullmatch(r"u?int\d+|bool", kind):
            return True
    return False


def _words(annotation):
    if annotation is None:
        return "an object"
    parts = [part.strip() for part in ast.unparse(annotation).split(" | ")]
    shown = []
    for part in parts:
        plain = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", part).strip("'\"")
        shown.append(_WORDS.get(plain, plain))
    return " or ".join(shown)
