"""The notebooks of docs/tutorials/notebooks run from the first cell to the last; their own assertions hold."""

import json
import pathlib

import pytest

matplotlib = pytest.importorskip("matplotlib", reason="the notebooks plot with matplotlib")

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "tutorials" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LONG = {"blog", "language-model", "looking-inside", "translator"}


def notebook(path):
    return pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])


def cells(path, kind):
    return ["".join(c["source"]) for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == kind]


@pytest.mark.skipif(not FOLDER.exists(), reason="the notebooks lie in a checkout")
def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 9


@pytest.mark.parametrize("path", [notebook(path) for path in NOTEBOOKS])
def test_runs(path):
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = {"__name__": "__main__"}
    for number, source in enumerate(cells(path, "code")):
        exec(compile(source, f"{path.name}, code cell {number}", "exec"), names)
        plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_without_outputs_and_explains(path):
    stored = json.loads(path.read_text("utf-8"))["cells"]
    assert all(not c.get("outputs") and c.get("execution_count") is None for c in stored)
    assert len(cells(path, "markdown")) >= 3
