#!/usr/bin/env python3
"""Runs the lessons of docs/tutorials/notebooks and stores their outputs: text, and pictures as small SVGs.

    tools/lessons.py [NAME...]            run and store; twice gives the same bytes
    tools/lessons.py --check [NAME...]    run and compare with what is stored; exit status 1 where they differ
    tools/lessons.py --measure NAME...    run and store, measured times too

Needs the package and matplotlib. A picture is stored with a line of text that sums up what it plots; it is this line
that is compared, so another version of matplotlib changes nothing. Two tags of a cell say what may differ elsewhere:
`trained` (numbers after a training, and words that a model wrote) and `measured` (times, stored once, never compared).
"""

import argparse
import ast
import contextlib
import io
import json
import pathlib
import re
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "notebooks"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf")
STYLE = {"svg.hashsalt": "multihead", "svg.fonttype": "none", "figure.dpi": 72, "font.size": 9, "path.simplify_threshold": 0.3,
         "axes.titlesize": 10, "figure.facecolor": "white"}  # fmt: skip


# What Matplotlib writes and no reader needs, in the order in which it goes.
SHORTER = [(re.compile(pattern, re.S), short) for pattern, short in (
    (r"<!--.*?-->|<metadata>.*?</metadata>", ""),
    (r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d{2,}", lambda n: f"{float(n[0]):.1f}", tag[0])),
    (r"\.0(?=[ )\"])", ""),
    (r' id="(figure|axes|patch|text|[xy]tick|line2d|matplotlib\.axis|image|QuadMesh|LineCollection|legend)[^"]*"', ""),
    (r"font-family: [^;\"]*", "font-family: sans-serif"),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"\n\s*", "\n"),
    (r'(?<= d=")[^"]*', lambda match: " ".join(match[0].split())),
    (r"(?<=base64,)\n", ""),
)]  # fmt: skip


def lessons(names=()):
    return [FOLDER / f"{name}.ipynb" for name in names] if names else sorted(FOLDER.glob("*.ipynb"))


def read(path):
    return json.loads(path.read_text("utf-8"))


def source(cell):
    return "".join(cell["source"])


def tags(cell):
    return cell["metadata"].get("tags", [])


def _spread(values):
    values = np.ma.masked_invalid(np.asarray(values, float))
    return f"{values.min():.3g} to {values.max():.3g}, mean {values.mean():.3g}" if values.count() else "empty"


def _axes_summary(axis):
    parts = []
    for line in axis.get_lines():
        name = "" if line.get_label().startswith("_") else f" {line.get_label()}"
        parts.append(f"line{name} {_spread(line.get_ydata())}")
    parts += [
        f"map {'×'.join(map(str, image.get_array().shape))} {_spread(image.get_array())}"
        for image in axis.get_images()
    ]
    bars = [patch.get_width() if horizontal else patch.get_height() for group in axis.containers
            for horizontal in [getattr(group, "orientation", "") == "horizontal"] for patch in getattr(group, "patches", [])]  # fmt: skip
    parts += [f"bars {_spread(bars)}"] if bars else []
    labels = ", ".join(filter(None, (axis.get_title(), axis.get_xlabel(), axis.get_ylabel())))
    return f"{labels}: {'; '.join(parts)}" if parts else ""


def summary(figure):
    return "picture | " + " | ".join(filter(None, (_axes_summary(axis) for axis in figure.axes)))


def svg(figure):
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for pattern, short in SHORTER:
        text = pattern.sub(short, text)
    grouped = ""
    while grouped != text:
        grouped, text = text, re.sub(r"<g>\n([^\n]*)\n</g>", r"\1", text)
    return text


class Run:
    """The names of one lesson, and its cells run in them."""

    def __init__(self, path):
        matplotlib.use("Agg")
        self.path, self.names = path, {"__name__": "__main__"}
        self.shown = []

    def _show(self):
        for number in plt.get_fignums():
            figure = plt.figure(number)
            data = {"image/svg+xml": svg(figure).splitlines(keepends=True), "text/plain": [summary(figure)]}
            self.shown.append({"data": data, "metadata": {}, "output_type": "display_data"})
        plt.close("all")

    def _flush(self, printed):
        text = printed.getvalue()
        if text:
            self.shown.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
        printed.seek(0)
        printed.truncate()

    def code(self, text, name, number=None):
        """Runs a piece of code and returns its outputs as a notebook stores them."""
        self.shown, printed = [], io.StringIO()

        def show(*_, **__):
            self._flush(printed)
            self._show()

        tree = ast.parse(text)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        plain, plt.show = plt.show, show
        try:
            with contextlib.redirect_stdout(printed), matplotlib.rc_context(STYLE):
                exec(compile(tree, name, "exec"), self.names)
                value = eval(compile(ast.Expression(last.value), name, "eval"), self.names) if last else None
                show()
        finally:
            plt.show = plain
            plt.close("all")
        if value is not None:
            self.shown.append(
                {
                    "data": self._data(value),
                    "execution_count": number,
                    "metadata": {},
                    "output_type": "execute_result",
                }
            )
        return self.shown

    @staticmethod
    def _data(value):
        page = value._repr_html_() if hasattr(value, "_repr_html_") else None
        plain = {"text/plain": [f"a page: {type(value).__name__}"] if page else repr(value).splitlines(keepends=True)}
        return plain | ({"text/html": page.splitlines(keepends=True)} if page else {})

    def cells(self, notebook):
        """Yields every code cell with its outputs."""
        number = 0
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                yield number, cell, self.code(source(cell), f"{self.path.name}, code cell {number}", number)


def store(path, measure=False):
    notebook = read(path)
    for number, cell, outputs in Run(path).cells(notebook):
        cell["execution_count"] = number
        if measure or "measured" not in tags(cell) or not cell["outputs"]:
            cell["outputs"] = outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _text(outputs):
    """What can be compared of a cell's outputs."""
    return "\n".join(
        "".join(o["text"] if o["output_type"] == "stream" else o["data"]["text/plain"]).strip() for o in outputs
    )


def differences(stored, made, kind=()):
    """What differs between two cells' outputs, in words; numbers may differ by what other processors' rounding explains."""
    if "measured" in kind:
        return [] if stored else ["no stored output"]
    relative, absolute = (0.2, 0.2) if "trained" in kind else (0.01, 2e-3)
    before, after = _text(stored), _text(made)
    if "trained" not in kind and NUMBER.sub("#", before) != NUMBER.sub("#", after):
        return [f"stored {before!r}, now {after!r}"]
    pairs = zip(NUMBER.findall(before), NUMBER.findall(after))
    numbers = [(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs]
    return [f"stored {a}, now {b} in {after!r}" for a, b in numbers
            if "words" not in kind and not np.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)]  # fmt: skip


def check(path, run=None):
    """Runs a lesson and returns what differs from its stored outputs."""
    return [f"{path.stem}, code cell {number}: {what}" for number, cell, outputs in (run or Run(path)).cells(read(path))
            for what in differences(cell["outputs"], outputs, tags(cell))]  # fmt: skip


SOLUTION = re.compile(r"<details>\s*<summary>Solution</summary>\s*```python\n(.*?)```\s*</details>", re.S)


def solutions(notebook):
    return [
        text
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown"
        for text in SOLUTION.findall(source(cell))
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    found = []
    for path in lessons(arguments.names):
        print(path.stem, flush=True)
        if arguments.check:
            found += check(path)
        else:
            store(path, arguments.measure)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
