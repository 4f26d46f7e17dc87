"""The site's generated pages: tools/command_page.py reads every flag, the Python reference has every public name."""

import importlib
import importlib.util
import pathlib
import sys
import types

import pytest

import multihead as mh

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / "tools" / "command_page.py"
if not TOOL.exists():
    pytest.skip("the tool lies in a checkout", allow_module_level=True)


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


command_page = load(TOOL)

HELP = """
  DIR                          model folder
  --out DIR                    folder to write (required)
  --qk-norm true|false         normalise queries and keys
  --scale-embeddings true|false multiply embeddings by sqrt(width)
  --float32-matmul-precision WORD highest, high
  --resume                     continue
      from the newest checkpoint
  -h, --help                   show this help
"""


def test_entries():
    assert command_page.entries(HELP) == [
        ("DIR", "model folder"),
        ("--out DIR", "folder to write (required)"),
        ("--qk-norm true|false", "normalise queries and keys"),
        ("--scale-embeddings true|false", "multiply embeddings by sqrt(width)"),
        ("--float32-matmul-precision WORD", "highest, high"),
        ("--resume", "continue from the newest checkpoint"),
        ("-h, --help", "show this help"),
    ]


def test_a_page_names_common_flags_once_and_escapes_bars():
    flags = [("--json", "results as JSON"), ("--on true|false", "a | b"), ("-h, --help", "show this help")]
    verbs = {
        "one": ("does one", "multihead one [flags]", flags, ""),
        "two": ("does two", "multihead two", [flags[0], flags[2]], "  x"),
    }
    text = command_page.page(verbs)
    assert text.count("results as JSON") == 1
    assert "| <code>--on true\\|false</code> | a \\| b |" in text
    assert "[`two`](#multihead-two)" in text and "## multihead two" in text


def test_the_reference_has_every_public_name(monkeypatch):
    converter = types.ModuleType("latex2mathml.converter")
    converter.convert = None  # formulas, which this test does not touch
    monkeypatch.setitem(sys.modules, "latex2mathml", types.ModuleType("latex2mathml"))
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", converter)
    hooks = load(ROOT / "docs" / "site" / "hooks.py")
    page = (ROOT / "docs" / "api" / "python.md").read_text("utf-8")
    for name in ("__init__", "nn", "models", "optim", "text", "io", "train", "lens", "embed", "onnx", "distributed"):
        module = mh if name == "__init__" else importlib.import_module(f"multihead.{name}")
        public = {n for n in module.__all__ if not isinstance(getattr(module, n), types.ModuleType)}
        assert set(hooks._public_names(name)) == public, name
        assert f"\nnames of {name}\n" in page
    path = hooks._public_names("__init__")["score_mod"]
    assert path == "multihead._trace.score_mod"
