#!/usr/bin/env python3
"""Checks every variant against PyTorch in float64 and measures both.

    examples/variants/run.py [NAME...] [--length 1024] [--compiled] [--json FILE]

Prints the largest error of results and gradients in f64 and f32 over several lengths, full and causal, relative to the largest
number; milliseconds of forward, and of forward and backward; the memory held for the backward, beside eager PyTorch and, with
--compiled, torch.compile; and the most memory that forward and backward take beyond the inputs at LONG tokens.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
import time
import types

import numpy as np

import multihead as mh

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
LONG = 16384  # tokens, one head of 64 numbers
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("common", "run"))


def sizes(length, batch=2, heads=4, kv_heads=2, dim=16):
    return types.SimpleNamespace(B=batch, H=heads, G=kv_heads, T=length, D=dim)


def modes(module):
    return [True] if hasattr(module, "CAUSAL_ONLY") else [False] if hasattr(module, "FULL_ONLY") else [True, False]


def weighted(results):
    rng = np.random.default_rng(1)
    return [rng.normal(size=tuple(y.shape)) for y in results]


def as_tuple(y):
    return y if isinstance(y, tuple) else (y,)


def ours(module, arrays, causal, dtype):
    """Results, and the gradients of their weighted sum."""
    given = {n: mh.tensor(x.astype(dtype), requires_grad=True) if x.dtype != bool else x for n, x in arrays.items()}
    with mh.Tape() as tape:
        results = as_tuple(module.variant(**given, causal=causal))
        loss = sum((mh.sum(y * mh.tensor(w.astype(dtype))) for y, w in zip(results, weighted(results))), 0.0)
        tape.backward(loss)
    gradients = {n: np.zeros(x.shape) if x.grad is None else x.grad.numpy() for n, x in given.items() if hasattr(x, "grad")}
    return [y.detach().numpy() for y in results], gradients


def pytorch(module, arrays, causal, dtype, plain=None):
    import torch

    kind = torch.float64 if dtype == np.float64 else torch.float32
    given = {n: torch.tensor(x) if x.dtype == bool else torch.tensor(x, dtype=kind, requires_grad=True) for n, x in arrays.items()}
    length = arrays["q"].shape[2]
    mask = torch.ones(length, length, dtype=torch.bool)
    results = as_tuple((plain or module.plain)(torch, **given, mask=mask.tril() if causal else mask))
    sum((y * torch.tensor(w, dtype=kind)).sum() for y, w in zip(results, weighted(results))).backward()
    gradients = {n: x.grad.numpy() if x.grad is not None else np.zeros(x.shape) for n, x in given.items() if x.dtype != torch.bool}
    return [y.detach().numpy() for y in results], gradients


def error(got, want):
    pairs = list(zip(got[0], want[0]))
    values = max(np.abs(a - b).max(initial=0) / max(1.0, np.abs(b).max(initial=0)) for a, b in pairs)
    scale = max(max((np.abs(x).max(initial=0) for x in want[1].values()), default=0), 1.0)
    return values, max(np.abs(got[1][n] - want[1][n]).max(initial=0) / scale for n in want[1])


def errors(module, dtype, lengths):
    """The largest errors of results and of gradients."""
    found = []
    for length in lengths:
        for causal in modes(module):
            arrays = module.inputs(np.random.default_rng(length), sizes(length))
            found.append(error(ours(module, arrays, causal, dtype), pytorch(module, arrays, causal, np.float64)))
    return [float(max(column)) for column in zip(*found)]


def milliseconds(f, rounds=3):
    f()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        f()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def held_by_us(module, arrays, causal):
    given = {n: mh.tensor(x.astype("f4"), requires_grad=True) if x.dtype != bool else x for n, x in arrays.items()}
    before = mh.memory_stats()["live_bytes"]
    with mh.Tape():
        results = module.variant(**given, causal=causal)
        bytes_held = mh.memory_stats()["live_bytes"] - before
        del results
    return bytes_held / 2**20


def held_by_pytorch(module, arrays, causal):
    import torch

    seen = {}
    given = {n: torch.tensor(x) if x.dtype == bool else torch.tensor(x.astype("f4"), requires_grad=True) for n, x in arrays.items()}
    inputs = {x.untyped_storage().data_ptr() for x in given.values()}
    length = arrays["q"].shape[2]
    mask = torch.ones(length, length, dtype=torch.bool)

    def keep(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in inputs:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        results = module.plain(torch, **given, mask=mask.tril() if causal else mask)
    del results
    return sum(seen.values()) / 2**20


def peak(module, length):
    """MiB beyond inputs and their gradients of forward and backward, in a process that did nothing else."""
    causal, s = modes(module)[0], sizes(length, 1, 1, 1, 64)
    arrays = {n: x if x.dtype == bool else x.astype("f4") for n, x in module.inputs(np.random.default_rng(0), s).items()}
    given = {n: mh.tensor(x, requires_grad=True) if x.dtype != bool else x for n, x in arrays.items()}
    before = mh.memory_stats()["live_bytes"]
    with mh.Tape() as tape:
        results = as_tuple(module.variant(**given, causal=causal))
        tape.backward(sum((mh.sum(y) for y in results), 0.0))
        del results
    gradients = sum(4 * x.size for x in arrays.values() if x.dtype != bool)
    return (mh.memory_stats()["peak_bytes"] - before - gradients) / 2**20


def peak_of(name):
    found = subprocess.run([sys.executable, __file__, name, "--peak"], capture_output=True, text=True, check=True)
    return float(found.stdout)


def measured(module, length, compiles):
    """On one thread, [1, 8, length, 64] in f32."""
    causal, s = modes(module)[0], sizes(length, 1, 8, 8, 64)
    arrays = {n: x if x.dtype == bool else x.astype("f4") for n, x in module.inputs(np.random.default_rng(0), s).items()}
    plain = {n: mh.tensor(x) if x.dtype != bool else x for n, x in arrays.items()}
    row = {"ours": [milliseconds(lambda: module.variant(**plain, causal=causal)),
                    milliseconds(lambda: ours(module, arrays, causal, np.float32))],
           "ours_mb": held_by_us(module, arrays, causal)}  # fmt: skip
    try:
        import torch
    except ImportError:
        return row
    torch.set_num_threads(1)
    given = {n: torch.tensor(x) for n, x in arrays.items()}
    mask = torch.ones(length, length, dtype=torch.bool)
    mask = mask.tril() if causal else mask
    with torch.no_grad():
        forward = milliseconds(lambda: module.plain(torch, **given, mask=mask))
    row["pytorch"] = [forward, milliseconds(lambda: pytorch(module, arrays, causal, np.float32))]
    row["pytorch_mb"] = held_by_pytorch(module, arrays, causal)
    if not compiles:
        return row
    torch._dynamo.reset()
    compiled = torch.compile(module.plain, dynamic=False)
    with torch.no_grad():
        forward = milliseconds(lambda: compiled(torch, **given, mask=mask))
    row["compiled"] = [forward, milliseconds(lambda: pytorch(module, arrays, causal, np.float32, compiled))]
    return row


def report(name, length, compiles):
    module = importlib.import_module(name)
    row = {"f64": errors(module, np.float64, (1, 37, 130)), "f32": errors(module, np.float32, (1, 37, 130))}
    return {**row, **measured(module, length, compiles), "long_mb": peak_of(name)}


def text(number, width=6):
    return f"{number:{width}.1f}" if number is not None else f"{'-':>{width}}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--json", help="write the figures to this file, which keeps those of other variants")
    parser.add_argument("--compiled", action="store_true", help="measure torch.compile too, which takes a minute each")
    parser.add_argument("--peak", action="store_true", help="print only the memory at 16384 tokens")
    options = parser.parse_args()
    mh.set_num_threads(1)
    if options.peak:
        print(peak(importlib.import_module(options.names[0]), LONG))
        return
    print(f"{'':15} {'f64':>8} {'gradient':>8} {'f32':>8} {'gradient':>8} | {'ms':>6} {'+ back':>7} {'MiB':>6} {'long':>6} | {'PyTorch':22} | compiled")
    rows = {}
    path = pathlib.Path(options.json) if options.json else None
    if path and path.exists():
        rows = json.loads(path.read_text())["rows"]
    for name in options.names or NAMES:
        row = report(name, options.length, options.compiled)
        rows[name] = {**rows.get(name, {}), **row}
        numbers = [f"{x:8.1e}" for x in row["f64"] + row["f32"]]
        ours_text = f"{row['ours'][0]:6.1f} {row['ours'][1]:7.1f} {row['ours_mb']:6.1f} {text(row['long_mb'])}"
        other = "-"
        if "pytorch" in row:
            other = f"{row['pytorch'][0]:6.1f} {row['pytorch'][1]:7.1f} {row['pytorch_mb']:6.1f}"
        if "compiled" in row:
            other += f" | {row['compiled'][0]:6.1f} {row['compiled'][1]:7.1f}"
        print(f"{name:15}", *numbers, "|", ours_text, "|", other, flush=True)
    if path:
        about = {"length": options.length, "machine": f"{mh.cpu_name()}, {mh.isa()}."}
        path.write_text(json.dumps({**about, "rows": dict(sorted(rows.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
