"""Writes python/multihead/_core.pyi from the built extension: python python/make_stubs.py (multihead importable)."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TARGET = pathlib.Path(__file__).parent / "multihead" / "_core.pyi"
ERRORS = {
    "DtypeError": "TypeError",
    "FormatError": "ValueError",
    "IoError": "OSError",
    "NumericError": "FloatingPointError",
    "ShapeError": "ValueError",
}

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
TARGET.write_text(text)
