"""tools/command_page.py reads every flag of a help text."""

import importlib.util
import pathlib

import pytest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "command_page.py"
if not TOOL.exists():
    pytest.skip("the tool lies in a checkout", allow_module_level=True)
spec = importlib.util.spec_from_file_location("command_page", TOOL)
command_page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(command_page)

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
