#!/usr/bin/env python3
"""Compares the WebAssembly lab under Node with the native program on the baseline instruction set: all answers, bit for bit.

  examples/browser/compare.py PROGRAM MODULE.js DATA.json
"""

import json
import os
import pathlib
import subprocess
import sys


def main(program, module, data):
    held = json.loads(pathlib.Path(data).read_text())
    off = {"off": ["0.1", "1.2"], "cut": []}
    requests = [
        {"do": "train", "steps": 20}, {"do": "weights"}, {"do": "set", "weights": held["weights"]},
        {"do": "text", "text": "the cat sat. the cat", "off": [], "cut": []},
        {"do": "text", "text": "one two. one tw", "off": ["1.0"], "cut": [[0, 1, 5, 4]]},
        {"do": "digits", "lines": held["lines"]}, {"do": "train_digits", "steps": 40}, {"do": "digit_weights"},
        {"do": "digit", "text": "7", **off}, {"do": "digit", "text": "300", **off},
    ]  # fmt: skip
    asked = "".join(json.dumps(request) + "\n" for request in requests)
    node = ["node", str(pathlib.Path(__file__).with_name("node.js")), module]
    environment = os.environ | {"MULTIHEAD_ISA": "baseline"}
    native, wasm = (
        subprocess.run(command, input=asked, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
        for command in ([program], node)
    )
    if len(native) != len(requests) or len(wasm) != len(requests):
        sys.exit(f"compare: {len(requests)} requests, {len(native)} and {len(wasm)} answers")
    weights = 0
    for request, here, there in zip(requests, native, wasm):
        if here != there:
            sys.exit(f"compare: {request['do']} differs:\n{here[:300]}\n{there[:300]}")
        weights += len(json.loads(here).get("weights", "")) // 8
    print(f"{len(requests)} answers are equal, {sum(map(len, native))} bytes of JSON, among them {weights} trained weights")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
