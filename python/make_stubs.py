"""Writes _core.pyi, _settings.pyi and __init__.pyi of python/multihead from the built package: python python/make_stubs.py."""

import ast
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parent / "multihead"
TARGET = FOLDER / "_core.pyi"
ERRORS = {
    "DtypeError": "TypeError",
    "FormatError": "ValueError",
    "IoError": "OSError",
    "NumericError": "FloatingPointError",
    "ShapeError": "ValueError",
}

# What the extension takes as any object, and checks itself, by the names of the arguments; all others are arrays.
ARGUMENTS = {
    "dtype cache_dtype": "DTypeLike",
    "shape": "ShapeLike",
    "axis": "int | Sequence[int]",
    "align": "str | int | Sequence[int]",
    "attention": "type[Attention]",
    "on_token": "Callable[[int, int], Any]",
    "on_result on_text progress body make tensor_type": "Callable[..., Any]",
    "function": "Function",
    "draft": "LanguageModel | str",
    "tokenizer": "Tokenizer",
    "json_schema": "Mapping[str, Any] | bool | str",
    "capture cross_capture": "AttentionCapture",
    "memory_mask source_mask target_mask": "Mask",
    "parameters": "Any",
    "state": "Mapping[str, ArrayLike]",
    "tensors": "Mapping[str, ArrayLike]",
    "texts": "str | Sequence[str]",
    "text first second pair": "str | bytes",
    "messages": "Sequence[Mapping[str, Any]]",
    "ids prompt": "Sequence[int] | ArrayLike",
    "prompts sources": "Sequence[int] | Sequence[Sequence[int]] | ArrayLike",
    "type value traceback arg": "Any",
    "images": "Any",
    "copy": "bool",
}
MASKS = ("attention", "plan", "explain", "__call__", "decode", "attend", "features", "exclude", "ring_attention")
RESULTS = {  # functions that return any object -> what it is
    "to __enter__ keep keep_gradient edit exclude": "Self",
    "attention attention_ragged attention_packed attention_composed": "Tensor",
    "generate logprobs translate tolist model newest_checkpoint settings": "Any",
    "apply_chat_template": "list[int]",
    "mask": "Mask",
    "named_parameters": "list[tuple[str, Tensor]]",
    "state_dict load_safetensors load_gguf kept gradients": "dict[str, Tensor]",
    "shape strides __dlpack_device__": "tuple[int, ...]",
    "attention_weights gather": "list[Tensor]",
    "add_layer_norm add_rms_norm merge_attention": "tuple[Tensor, Tensor]",
    "layers cross": "list[Any]",
    "options": "CallOptions",
    "evaluate memory_stats bleu": "dict[str, Any]",
}


def table(rows):
    return {name: value for names, value in rows.items() for name in names.split()}


ARGUMENT, RESULT = table(ARGUMENTS), table(RESULTS)


def typed(line):
    """A line of the stub without `object`."""
    match = re.match(r"\s*def (\w+)\(", line)
    if not match:
        return line
    function = match[1]

    def argument(found):
        name, optional = found[1], found[2] or ""
        kind = ARGUMENT.get(name, "Index" if function in ("__getitem__", "__setitem__") else "ArrayLike")
        if name == "mask":
            kind = "Mask" if function.startswith(MASKS) else "ArrayLike"
        elif name == "value" and function.startswith(("attention", "ring_attention", "explain", "plan")):
            kind = "ArrayLike"
        elif name == "score_mod" or name == "weight" and "score_mod: " in line:
            kind = "ScoreProgram"
        return f"{name}: {kind}{optional}"

    line = re.sub(r"\b(\w+): object( \| None)?", argument, line)
    head, arrow, result = line.rpartition(" -> ")
    bare = re.match(r"(object|tuple|list|dict)\b(?!\[)( \| None)?", result)
    if arrow and bare:
        if function.startswith("__") and bare[1] == "object" and function not in RESULT:
            kind = "Tensor" if "other: " in line else "Any"
        else:
            kind = RESULT.get(function, "Any" if bare[1] == "object" else {"tuple": "tuple[Any, ...]", "list": "list[Any]",
                                                                         "dict": "dict[str, Any]"}[bare[1]])  # fmt: skip
        line = head + arrow + kind + (bare[2] or "") + result[bare.end() :]
    line = re.sub(r"\*\*(\w+)\)", r"**\1: Any)", line)
    line = re.sub(r"\*args\)", "*args: Any)", line)
    line = re.sub(r": (dict|Sequence)(?=[,)/ ])", lambda m: f": {'dict[Any, Any]' if m[1] == 'dict' else 'Sequence[Any]'}", line)
    return line.replace("os.PathLike", "os.PathLike[str]").replace("Sequence = ...", "Sequence[Any] = ...")


def call_options(text):
    """The keywords of attention() that a model brings to an attention of one's own."""
    arguments = re.search(r"^def attention\((.*)\) -> ", text, flags=re.M)[1]
    own = "bias score_mod weight normalise empty_row capture layout return_lse allow_binary_bias".split()
    lines = [f"    {name}: {kind.replace('ArrayLike', 'Tensor')}"
             for name, kind in re.findall(r"(\w+): (\w+)(?: \| None)? = ", arguments) if name not in own]  # fmt: skip
    about = '    """The keywords of attention() that a model brings to an attention of one\'s own. A bias is the attention\'s own."""\n'
    return "class CallOptions(TypedDict, total=False):\n" + "\n".join([about, *lines]) + "\n"


def overloads(text):
    """Functions whose result depends on an argument."""

    def by_flag(match):
        line = match[0]
        plain = line.replace("return_lse: bool = False", "return_lse: Literal[False] = False")
        pair = line.replace("return_lse: bool = False", "return_lse: Literal[True]")
        pair = re.sub(r"-> \w+:", "-> tuple[Tensor, Tensor]:", pair)
        return f"@overload\n{plain} ...\n@overload\n{pair}"

    text = re.sub(r"^def attention\(.*\) -> \w+:$", by_flag, text, flags=re.M)

    def by_prompts(match):
        line, indent = match[0], match[1]
        one = line.replace(ARGUMENT["prompts"], "Sequence[int]", 1).replace("-> Any", "-> list[int]")
        many = line.replace(ARGUMENT["prompts"], "Sequence[Sequence[int]]", 1).replace("-> Any", "-> list[list[int]]")
        return "\n".join(f"{indent}@overload\n{form} ..." for form in (one, many)) + f"\n{indent}@overload\n{line}"

    text = re.sub(r"^( +)def generate\(self, prompts: .*\) -> Any:$", by_prompts, text, flags=re.M)

    def by_tokenize(match):
        line, indent = match[0], match[1]
        ids = line.replace("tokenize: bool = True", "tokenize: Literal[True] = True")
        words = line.replace("tokenize: bool = True", "tokenize: Literal[False]").replace("-> list[int]", "-> str")
        return f"{indent}@overload\n{ids} ...\n{indent}@overload\n{words}"

    return re.sub(r"^( +)def apply_chat_template\(.*\) -> list\[int\]:$", by_tokenize, text, flags=re.M)


def methods_of(file, indent="    "):
    """The methods that the package adds to Tensor in Python, as lines of its class."""
    body = next(n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef) and n.name == "Methods").body
    lines = []
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name != "__getattr__":
            node.args.args[0].annotation = None
            doc = ast.get_docstring(node)
            lines += [f"@{ast.unparse(d)}" for d in node.decorator_list]
            ignore = "  # type: ignore[override]" if node.name in ("__eq__", "__ne__") else ""
            lines.append(f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}:{ignore}" + ("" if doc else " ..."))
            lines += ['"""' + doc + '"""', ""] if doc else [""]
            if doc:
                lines[-2] = "    " + lines[-2]
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name) and name.id not in ("__slots__", "__hash__"):
                        ignore = "  # type: ignore[override]" if name.id in ("__eq__", "__ne__") else ""
                        lines += [f"def {name.id}(self, other: Any) -> Tensor: ...{ignore}", ""]
    for name in ("exp", "log", "sqrt", "square", "tanh", "sigmoid", "relu"):
        lines += [f"def {name}(self) -> Tensor: ...", ""]
    for name in ("softmax", "log_softmax"):
        lines += [f"def {name}(self, axis: int = -1) -> Tensor: ...", ""]
    return "".join(indent + line + "\n" if line else "\n" for line in lines)


# The extension as it is built: the package adds methods in Python.
sys.path.pop(0)  # this folder, with the package that is not built
extension = pathlib.Path(importlib.util.find_spec("multihead._core").origin)
with tempfile.TemporaryDirectory() as folder:
    bare = pathlib.Path(folder) / "multihead"
    bare.mkdir()
    (bare / "__init__.py").touch()
    for file in extension.parent.glob("*.so*"):
        (bare / file.name).symlink_to(file)
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "-m", "multihead._core", "-o", str(TARGET)]
    subprocess.run(stubgen, check=True, env={**os.environ, "PYTHONPATH": folder})
text = TARGET.read_text()
classes = "".join(f"class {name}({base}): ...\n\n" for name, base in ERRORS.items())
text = re.sub(r"from multihead import \([^)]*\)\n", lambda _: classes, text)
text = "\n".join(typed(line) for line in text.split("\n"))
text = text.replace(classes, classes + call_options(text))
text = overloads(text)
# A property that can be read and set and has no text of its own is a plain attribute.
text = re.sub(r"    @property\n    def (\w+)\(self\) -> (.*): \.\.\.\n\n    @\1\.setter\n    def \1\(self, arg: \2, /\) -> None: \.\.\.\n",
              r"    \1: \2\n", text)  # fmt: skip
text = re.sub(r"(?m)^(    \w+: .*)\n\n(?=    \w+: )", r"\1\n", text)
text = re.sub(r"(?m)^class Tensor:\n(    \"\"\".*?\"\"\"\n)", lambda m: m[0] + "\n" + methods_of(FOLDER / "_tensor_methods.py"), text, count=1, flags=re.S)
text = text.replace("from collections.abc import Mapping, Sequence", "from collections.abc import Callable, Iterator, Mapping, Sequence")
text = text.replace("from typing import overload", "from typing import Any, Literal, TypedDict, overload\n\nfrom typing_extensions import Self\n\n"
                    "from ._types import ArrayLike, DTypeLike, Function, Index, ShapeLike\nfrom .nn import Attention")  # fmt: skip
TARGET.write_text(text)

import multihead as mh  # noqa: E402

FIELDS = {}
for function in [f for name, f in vars(mh.train).items() if name.endswith("_settings")]:
    values = function(*["tiny"] * function.__code__.co_argcount)
    FIELDS[function.__name__.removesuffix("_settings").title().replace("_", "")] = {
        field: "float" if isinstance(value, float) else type(value).__name__ for field, value in values.items()}  # fmt: skip
FIELDS["LanguageModel"]["attention"] = "str | type[Attention]"
shared = dict(set.intersection(*(set(fields.items()) for fields in FIELDS.values())))
lines = ['"""The settings of complete training runs; train.language_model_settings(preset) and the like give their values."""\n',
         "from typing import TypedDict\n\nfrom .nn import Attention\n"]  # fmt: skip
for name, fields in {"Run": FIELDS["LanguageModel"], **FIELDS}.items():
    base = "TypedDict" if name == "Run" else "RunSettings"
    lines.append(f"\nclass {name}Settings({base}, total=False):")
    lines += [f"    {field}: {kind}" for field, kind in fields.items() if (field in shared) == (name == "Run")]
    lines.append("")
(FOLDER / "_settings.pyi").write_text("\n".join(lines).rstrip() + "\n")

# Type checkers know nothing of a computed __all__: names are exported one by one.
lines = ["from . import torch as torch"]
for node in ast.parse((FOLDER / "__init__.py").read_text()).body:
    if isinstance(node, ast.ImportFrom):
        public = [alias.name for alias in node.names if not alias.name.startswith("_") or alias.name == "__version__"]
        if public:
            source = "." * node.level + (node.module or "")
            lines.append(f"from {source} import (\n" + "".join(f"    {name} as {name},\n" for name in public) + ")")
(FOLDER / "__init__.pyi").write_text("\n".join(lines) + "\n")
