"""Type checkers accept every Python block of README.md and docs/*.md as it stands, and the package's signatures say nothing vague."""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest

import multihead as mh
from test_documents import BLOCK_NEEDS, READER, ROOT, blocks, pages

PACKAGE = pathlib.Path(mh.__file__).parent
FOREIGN = ["torch", "transformers", "sentence_transformers", "langchain_core", "llama_index", "onnx", "matplotlib", "openai", "sklearn", "dask", "distributed", "pandas", "ray"]
CONFIG = f"""[mypy]
strict = True
disallow_subclassing_any = False
[mypy-{",".join(f"{name}.*" for name in FOREIGN)}]
follow_imports = skip
ignore_missing_imports = True
"""
# What a block imports for the next ones; what follows from types of others, which need not be installed.
UNUSED = ["reportUnusedImport", "reportDuplicateImport"]
UNKNOWN = ["reportMissingImports", "reportMissingTypeStubs", "reportUntypedBaseClass", *(f"reportUnknown{kind}Type" for kind in ("Member", "Variable", "Argument", "Parameter", "Lambda"))]


def assigned(source):
    """The imports of earlier code, with what they bind, and the other names that it binds."""
    imports, names = [], []
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append((ast.unparse(node), [a.asname or a.name.partition(".")[0] for a in node.names]))
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        else:
            names += [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return imports, names


def others(source):
    """The names that imports of packages of others bind."""
    found = ["torch", "mt"]  # multihead.torch takes tensors of PyTorch
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            found += [a.asname or a.name for a in node.names] if (module or "").partition(".")[0] in FOREIGN else []
    return found


def checked_files(folder):
    """A file for each block: what earlier ones import, what else they bind as Any, and the block."""
    for page in (p.values[0] for p in pages("python")):
        before = READER.get(page.name, "")
        for number, block in enumerate(blocks(page, "python")):
            needs = "".join(code for word, code in BLOCK_NEEDS.items() if word in block)
            imports, names = assigned(before + "\n" + needs)
            bound = {n for n in names if not re.search(rf"^(?:import|from) .*\b{n}\b|^class {n}\b|^def {n}\b", block, re.M)}
            used = [line for line, bind in imports if re.search(rf"\b({'|'.join(bind)})\b", block)]
            lines = ["from typing import Any", *dict.fromkeys(used), *(f"{n}: Any = None" for n in sorted(bound)), block]
            file = folder / f"{page.relative_to(ROOT).as_posix().replace('/', '_').removesuffix('.md')}_{number}.py"
            text = "\n".join(lines)
            if re.search(rf"\b({'|'.join(others(text))})\b", block):
                text = f"# pyright: {', '.join(f'{rule}=false' for rule in UNKNOWN)}\n{text}"
            file.write_text(text)
            before += "\n" + needs + "\n" + block
            yield file


@pytest.mark.skipif(not ROOT.joinpath("docs").exists(), reason="the documents lie in a checkout")
def test_mypy_accepts_every_block(tmp_path):
    pytest.importorskip("mypy")
    files = list(checked_files(tmp_path))
    (tmp_path / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary", "--scripts-are-modules", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert len(files) > 25 and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not ROOT.joinpath("docs").exists(), reason="the documents lie in a checkout")
def test_pyright_accepts_every_block(tmp_path):
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright"]
    if subprocess.run([*command, "--version"], capture_output=True).returncode:
        pytest.skip("pyright loads its program from the net")
    files = list(checked_files(tmp_path))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", **dict.fromkeys(UNUSED, "none")}))
    done = subprocess.run([*command, "--pythonpath", sys.executable], cwd=tmp_path, capture_output=True, text=True)
    assert len(files) > 25 and done.returncode == 0, done.stdout + done.stderr


def test_no_signature_takes_or_gives_an_object():
    stub = (PACKAGE / "_core.pyi").read_text()
    assert not re.findall(r"(?:: |-> )object\b", re.sub(r'""".*?"""', "", stub, flags=re.S))
    assert "def sum(self" in stub and "class LanguageModelSettings" in (PACKAGE / "_settings.pyi").read_text()
