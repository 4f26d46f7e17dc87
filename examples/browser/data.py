#!/usr/bin/env python3
"""Writes what the page holds: OUT/data.json (the trained weights and scikit-learn's digits) and OUT/page.json.

  examples/browser/data.py PROGRAM OUT       PROGRAM: the native browser_lab, which trains the repeater
"""

import json
import pathlib
import random
import subprocess
import sys

from sklearn.datasets import load_digits

STEPS, TEXT = 3000, "the cat sat. the cat s"


def digits():
    """A line per image: its digit, then 64 letters from a (0) to q (16), in an order that mixes the writers."""
    images, labels = load_digits(return_X_y=True)
    lines = [str(digit) + "".join(chr(ord("a") + int(shade)) for shade in image) + "\n" for image, digit in zip(images, labels)]
    random.Random(0).shuffle(lines)
    return "".join(lines)


def main(program, out):
    requests = [{"do": "train", "steps": STEPS}, {"do": "weights"}, {"do": "page", "text": TEXT}]
    asked = "".join(json.dumps(request) + "\n" for request in requests)
    answers = subprocess.run([program], input=asked, capture_output=True, text=True, check=True).stdout.splitlines()
    loss, weights, page = map(json.loads, answers)
    print(f"the repeater's mean loss over {STEPS} steps: {loss['loss']:.3f}")
    out = pathlib.Path(out)
    (out / "data.json").write_text(json.dumps({"weights": weights["weights"], "lines": digits()}))
    (out / "page.json").write_text(json.dumps(page))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
