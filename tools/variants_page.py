#!/usr/bin/env python3
"""Writes docs/variants.md from examples/variants: what each variant is, its code, and the figures of run.py --json.

    tools/variants_page.py [--check]

With --check nothing is written; the exit status is 1 if the page is not what would be written.
"""

import ast
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
GALLERY = ROOT / "examples" / "variants"
PAGE = ROOT / "docs" / "variants.md"
HEAD = """# Attention variants

<!-- Written by tools/variants_page.py from examples/variants. -->

Published variants of attention, each in a few lines of Python. Every one is tested against its plain definition in PyTorch in
float64, results and gradients, full and causal where both exist, with shared heads of keys. `shared` of `common.py` repeats
heads of keys.

"""
TABLE = """
## Figures

Largest errors relative to the largest number, float64 and float32, lengths 1 to 130; milliseconds of forward, and of forward with
backward, and MiB held for the backward, for [1, 8, {length}, 64] in float32 on one thread, causal unless the variant is not.
{machine} PyTorch is the definition beside each variant, eager and by torch.compile ({torch}).
"At 16k" is the most memory in MiB that forward and backward take beyond inputs and their gradients at 16,384 tokens, one head of
64 numbers; a matrix of scores would take 1,024. Times were taken on a core of a machine in use.
`examples/variants/run.py` prints them.

| | f64 | gradients | f32 | gradients | ms | with backward | MiB | at 16k | PyTorch ms | with backward | MiB | compiled ms | with backward |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""


def parts(path):
    """What the variant is, its paper, and the source of variant()."""
    source = path.read_text()
    tree = ast.parse(source)
    what, paper = ast.get_docstring(tree).split(": https://")
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "variant")
    others = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name not in ("inputs", "variant", "plain")]
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    nodes = [n for n in others if n.name in names] + [function]
    lines = source.splitlines()
    code = "\n\n".join("\n".join(lines[n.lineno - 1 : n.end_lineno]) for n in nodes)
    return what, f"https://{paper.split()[0]}", code


def page():
    sections, names = [], []
    for path in sorted(GALLERY.glob("*.py")):
        if path.stem in ("common", "run"):
            continue
        what, paper, code = parts(path)
        names.append(path.stem)
        sections.append(f"## {path.stem.replace('_', ' ')}\n\n{what} ([paper]({paper})).\n\n```py\n{code}\n```\n")
    figures = json.loads((GALLERY / "figures.json").read_text())
    table = TABLE.format(**figures)
    for name in names:
        row = figures["rows"].get(name)
        if row is None:
            sys.exit(f"tools/variants_page.py: figures.json has no {name}; run examples/variants/run.py --json {GALLERY}/figures.json")
        numbers = [f"{x:.0e}" for x in row["f64"] + row["f32"]]
        figures_of = [*row["ours"], row["ours_mb"], row.get("long_mb"), *row["pytorch"], row["pytorch_mb"], *row["compiled"]]
        numbers += [f"{x:.1f}" if x is not None else "–" for x in figures_of]
        table += f"| {name.replace('_', ' ')} | " + " | ".join(numbers) + " |\n"
    return HEAD + "\n".join(sections) + table


def main():
    text = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit("docs/variants.md is not what tools/variants_page.py writes")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
