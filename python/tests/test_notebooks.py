"""The lessons of docs/tutorials/notebooks run, give the outputs that they are stored with, and their exercises have solutions."""

import importlib.util
import json
import pathlib
import re

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib", reason="the notebooks plot with matplotlib")

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / "tools" / "lessons.py"
if not TOOL.exists():
    pytest.skip("the notebooks lie in a checkout", allow_module_level=True)
spec = importlib.util.spec_from_file_location("lessons", TOOL)
lessons = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lessons)

NOTEBOOKS = lessons.lessons()
LONG = {"language-model", "modern", "translator"}  # half a minute or more
TEXTS = {"labml", "blog", "lecture", "decoder", "d2l"}


def notebook(path):
    return pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in LONG else [])


def cells(path, kind):
    return [lessons.source(c) for c in lessons.read(path)["cells"] if c["cell_type"] == kind]


each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_eleven_lessons():
    assert len(NOTEBOOKS) == 11


@pytest.mark.parametrize("path", [notebook(path) for path in NOTEBOOKS])
def test_gives_what_is_stored_and_its_solutions_hold(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = lessons.Run(path)
    assert lessons.check(path, run) == []
    for number, solution in enumerate(lessons.solutions(lessons.read(path))):
        run.code(solution, f"{path.name}, solution {number + 1}")


@each
def test_opens_by_hand_and_ends_with_exercises(path):
    text = cells(path, "markdown")
    assert re.search(r"^## Three tokens.* by hand", text[0], re.M)
    assert text[-1].startswith("## Exercises")
    questions = re.findall(r"^\*\*\d\.\*\*", text[-1], re.M)
    solutions = lessons.SOLUTION.findall(text[-1])
    assert 3 <= len(questions) == len(solutions) <= 5
    assert all("assert" in solution and len(solution.splitlines()) <= 18 for solution in solutions)


def test_the_decoder_that_looks_ahead_takes_under_fifteen_lines():
    solution = lessons.solutions(lessons.read(lessons.FOLDER / "decoder.ipynb"))[0]
    assert "train(mh.window(-1, 2))" in solution and "maps(" in solution and len(solution.splitlines()) < 15


@each
def test_outputs_are_stored_and_small(path):
    stored = lessons.read(path)["cells"]
    assert path.stat().st_size < 200_000
    for cell in stored:
        if cell["cell_type"] == "code":
            assert cell["execution_count"]
            assert cell["outputs"] or not re.search(r"^print\(|^plt\.show|^maps\(", lessons.source(cell), re.M)
            for output in cell["outputs"]:
                assert "image/png" not in output.get("data", {})
                assert sum(map(len, output.get("data", {}).get("image/svg+xml", []))) < 70_000


def test_pictures_are_drawn_by_one_helper():
    assert len({next(cell for cell in cells(path, "code") if "def maps(" in cell) for path in NOTEBOOKS}) == 1


@each
def test_every_picture_has_a_title_and_labels(path):
    for cell in lessons.read(path)["cells"]:
        for output in cell.get("outputs", []):
            if "image/svg+xml" in output.get("data", {}):
                for axes in "".join(output["data"]["text/plain"]).split(" | ")[1:]:
                    assert axes.partition(":")[0].count(",") >= 2 or axes.count(", ") >= 2, axes


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_names_its_text(name):
    opening = cells(lessons.FOLDER / f"{name}.ipynb", "markdown")[0]
    assert "licence" in opening.lower() and "(../texts.md)" in opening


def test_runs_alone_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = lessons.FOLDER / "lecture.ipynb"
    printed = [lessons._text(outputs) for _, _, outputs in lessons.Run(path).cells(lessons.read(path))]
    assert "lecture.safetensors is missing: put examples/data/lecture.safetensors" in "\n".join(printed)


def test_storing_twice_gives_the_same_bytes(tmp_path):
    kept = {"cells": [{"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None,
                       "source": ["import matplotlib.pyplot as plt\n", "plt.plot([1, 2.123456])\n", "plt.show()\n", "print(0.5)"]}]}  # fmt: skip
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps(kept))
    lessons.store(path)
    once = path.read_bytes()
    lessons.store(path)
    assert path.read_bytes() == once
    picture, printed = lessons.read(path)["cells"][0]["outputs"]
    assert "".join(picture["data"]["text/plain"]) == "picture | : line 1 to 2.12, mean 1.56"
    assert printed["text"] == ["0.5\n"]


def stream(text):
    return [{"name": "stdout", "output_type": "stream", "text": [text]}]


@pytest.mark.parametrize("stored, made, tags, differ", [
    ("loss 1.00", "loss 1.001", [], False),
    ("loss 1.00", "loss 1.05", [], True),
    ("loss 1.00", "cost 1.00", [], True),
    ("loss 1.00", "loss 1.00 and more", [], True),
    ("loss 1.00", "loss 1.15", ["trained"], False),
    ("loss 1.00", "loss 1.60", ["trained"], True),
    ("took 1 s", "took 9 s", ["measured"], False),
    ("1,024 bytes", "2,048 bytes", [], True),
    ("weights [0.1 nan]", "weights [0.1 0.2]", [], True),
])  # fmt: skip
def test_differences(stored, made, tags, differ):
    assert bool(lessons.differences(stream(stored), stream(made), tags)) is differ


def test_a_picture_differs_by_its_numbers():
    import matplotlib.pyplot as plt

    def line(height):
        figure, axis = plt.subplots()
        axis.plot([0, height])
        axis.set(title="t", xlabel="x", ylabel="y")
        text = lessons.summary(figure)
        plt.close(figure)
        return stream(text)

    assert not lessons.differences(line(1), line(1.0001))
    assert lessons.differences(line(1), line(np.float64(2)))
