"""Writes python/multihead/_core.pyi from the built extension: python python/make_stubs.py (multihead importable)."""

import pathlib
import re
import subprocess
import sys

TARGET = pathlib.Path(__file__).parent / "multihead" / "_core.pyi"
ERRORS = {
    "DtypeError": "TypeError",
    "FormatError": "ValueError",
    "IoError": "OSError",
    "NumericError": "FloatingPointError",
    "ShapeError": "ValueError",
}

subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-m", "multihead._core", "-o", str(TARGET)], check=True)
text = TARGET.read_text()
classes = "".join(f"class {name}({base}): ...\n\n" for name, base in ERRORS.items())
text = re.sub(r"from multihead import \([^)]*\)\n", lambda _: classes, text)
TARGET.write_text(text)
