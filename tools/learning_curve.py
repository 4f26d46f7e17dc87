#!/usr/bin/env python3
"""Draws the learning curve of a training run from its metrics.jsonl: losses against steps, and a figure of its evaluations.

    tools/learning_curve.py RUN curve.svg [--figure accuracy] [--title "Sections of packages"]

The pictures of docs/fine-tuning.md are made so.
"""

import argparse
import html
import json
import pathlib

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 220, 48, 48, 30, 34
COLOURS = {"training loss": "#9aa5b1", "validation loss": "#1f6feb"}
FIGURE = "#d1700f"


def series(run, key):
    rows = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [(row["step"], row[key]) for row in rows if isinstance(row.get(key), (int, float))]


def ticks(low, high, wanted=4):
    step = next(size for power in range(-6, 9) for size in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if (high - low) / size <= wanted)
    first = int(low / step) * step
    return [round(first + i * step, 9) for i in range(wanted + 3) if low - 1e-9 <= first + i * step <= high + 1e-9]


def draw(run, figure, title):
    losses = {"training loss": series(run, "train/loss"), "validation loss": series(run, "eval/loss")}
    rates = series(run, f"eval/{figure}") if figure else []
    if figure and not rates:
        raise SystemExit(f"{run}: no evaluation has {figure}")
    points = [point for line in losses.values() for point in line]
    last, top = max(step for step, _ in points), max(value for _, value in points)
    low = min(value for _, value in points)
    low = 0 if low < 0.5 * top else low

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value, least, most):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - least) / (most - least))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11" fill="#57606a">',
           f"<title>{html.escape(title)}</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']  # fmt: skip

    def text(at, height, words, anchor="middle", fill="#57606a"):
        out.append(f'<text x="{at:.1f}" y="{height:.1f}" text-anchor="{anchor}" fill="{fill}">{html.escape(str(words))}</text>')

    def line(values, colour, least, most, width):
        where = " ".join(f"{x(step):.1f},{y(value, least, most):.1f}" for step, value in values)
        out.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    for value in ticks(low, top):
        height = y(value, low, top)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#e5e8eb"/>')
        text(LEFT - 6, height + 4, f"{value:g}", "end")
    for step in ticks(0, last, 6):
        text(x(step), HEIGHT - BOTTOM + 16, f"{step:g}")
    text(WIDTH / 2, HEIGHT - 4, "steps")
    at = LEFT
    for name, values in losses.items():
        if values:
            line(values, COLOURS[name], low, top, 1.2 if name == "training loss" else 2)
            text(at, TOP - 12, name, "start", COLOURS[name])
            at += 110
    if rates:
        line(rates, FIGURE, 0, 1, 2)
        for value in (0, 0.5, 1):
            text(WIDTH - RIGHT + 6, y(value, 0, 1) + 4, f"{value:g}", "start", FIGURE)
        text(WIDTH - RIGHT, TOP - 12, f"{figure.replace('_', ' ')} {rates[-1][1]:.3f}", "end", FIGURE)
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("out")
    parser.add_argument("--figure", help="of the evaluations, from 0 to 1")
    parser.add_argument("--title", default="Learning curve")
    options = parser.parse_args()
    pathlib.Path(options.out).write_text(draw(options.run, options.figure, options.title), "utf-8")


if __name__ == "__main__":
    main()
