#!/usr/bin/env python3
"""The ops of multihead beside PyTorch's: time, bytes per second and ratio, forward and backward.

    python bench/ops.py                                        # everything, 1 and 2 threads, 4 KB to 64 MB: an hour
    python bench/ops.py --ops 'to |contiguous' --threads 1     # conversions and copies
    python bench/ops.py --ops '^softmax$' --kb 1024 --rounds 20
    python bench/ops.py --list

Both run in this process on the same memory and take turns; a time is the least of the rounds' means, a ratio is
PyTorch's time over ours, so above 1 we are faster. A size is that of the op's first operand. GB/s counts each operand
and each result once (backward: the result's gradient as well). Results are compared before anything is timed.
"""

import argparse
import datetime
import math
import os
import re
import statistics
import sys
import time

import numpy as np

SIZES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2, "bool": 1}
TORCH = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "bool": "bool"}


class Op:
    """One operation of both libraries on `operands`: kinds of tensors, by letter.

    x, y: [batch, rows, columns]; w, b: [columns]; m: bool like x; s: a square matrix [columns, columns]; t: targets."""

    def __init__(self, name, operands, ours, theirs, dtypes=("f32",), layouts=("rows",), backward=True, loose=False):
        self.name, self.operands, self.ours, self.theirs, self.loose = name, operands, ours, theirs, loose
        self.dtypes, self.layouts, self.backward = dtypes, layouts, backward


def all_ops(mh, torch):
    F, rng = torch.nn.functional, mh.Rng(7)
    both = ("rows", "transposed")
    ops = []

    def op(name, operands, ours, theirs, **options):
        ops.append(Op(name, operands, ours, theirs, **options))

    for to, sources in {"f32": ("f16", "bf16", "f64"), "f16": ("f32",), "bf16": ("f32",), "f64": ("f32",)}.items():
        op(f"to {to}", "x", lambda x, to=TORCH[to]: x.to(to),
           lambda x, to=getattr(torch, TORCH[to]): x.to(to, memory_format=torch.contiguous_format),
           dtypes=sources, layouts=both, backward=False)
    views = {"transposed": lambda x: x.transpose(1, 2), "heads": lambda x: x.transpose(1, 2),
             "slice": lambda x: x[:, :, 3 * x.shape[2] // 8:]}
    for layout in views:
        op("contiguous", "x", lambda x: x.contiguous(), lambda x: x.contiguous(), layouts=(layout,), backward=False,
           dtypes=("f32", "f64", "bf16", "bool") if layout == "transposed" else ("f32", "bf16"))
    op("clone", "x", lambda x: x.clone(), lambda x: x.clone(), dtypes=("f32", "bf16"), backward=False)
    op("concat", "xy", lambda x, y: mh.concat([x, y], -1), lambda x, y: torch.cat([x, y], -1), layouts=both)
    op("randn", "x", lambda x: mh.randn(x.shape, rng), lambda x: torch.randn(x.shape), backward=False, loose=True)
    op("rand", "x", lambda x: mh.rand(x.shape, rng), lambda x: torch.rand(x.shape), backward=False, loose=True)
    op("dropout", "x", lambda x: mh.dropout(x, 0.1, rng), lambda x: F.dropout(x, 0.1), loose=True)
    op("zeros", "x", lambda x: mh.zeros(x.shape), lambda x: torch.zeros(x.shape), backward=False)
    op("sum", "x", mh.sum, torch.sum, layouts=both)
    op("mean", "x", mh.mean, torch.mean)
    for axis in (0, 1, 2):
        op(f"sum axis {axis}", "x", lambda x, a=axis: mh.sum(x, axis=a), lambda x, a=axis: torch.sum(x, a))
    half = ("f32", "bf16")
    for name in ("add", "sub", "mul", "div"):
        op(name, "xy", getattr(mh, name), getattr(torch, name), layouts=both, dtypes=half if name in ("add", "mul") else ("f32",))
    op("add a row", "xb", mh.add, torch.add)
    op("mul by a row", "xb", mh.mul, torch.mul)
    op("scale", "x", lambda x: mh.scale(x, 1.7), lambda x: x * 1.7)
    op("where", "mxy", mh.where, torch.where)
    for name in ("neg", "exp", "log", "sqrt", "tanh", "sigmoid", "square"):
        op(name, "p" if name in ("log", "sqrt") else "x", getattr(mh, name), getattr(torch, name))
    op("relu", "x", mh.relu, torch.relu)
    op("gelu", "x", mh.gelu, F.gelu, dtypes=half)
    op("gelu_tanh", "x", mh.gelu_tanh, lambda x: F.gelu(x, approximate="tanh"))
    op("silu", "x", mh.silu, F.silu, dtypes=half)
    op("softmax", "x", mh.softmax, lambda x: F.softmax(x, -1), layouts=both, dtypes=half)
    op("log_softmax", "x", mh.log_softmax, lambda x: F.log_softmax(x, -1))
    op("layer_norm", "xwb", mh.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), dtypes=half)
    op("rms_norm", "xw", lambda x, w: mh.rms_norm(x, w, eps=1e-5), lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), dtypes=half)
    op("cross_entropy", "xt", mh.cross_entropy, lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()))
    op("embedding", "xt", lambda x, t: mh.embedding(x.reshape(-1, x.shape[2]), t),
       lambda x, t: F.embedding(t, x.reshape(-1, x.shape[2])))
    op("linear", "xsb", mh.linear, F.linear, dtypes=("f32", "f64", "bf16"))
    op("matmul", "xs", mh.matmul, torch.matmul, dtypes=("f32", "f64", "bf16"))
    return ops, views


def operands_of(op, kb, dtype, layout):
    """NumPy arrays, and the axes of "heads" for the layout of that name."""
    count = kb * 1024 // SIZES[dtype]
    columns = min(1024, max(64, 1 << int(math.log2(count)) // 2 - 1))
    rows = max(1, count // (4 * columns))
    random, arrays = np.random.default_rng(kb), []
    shape = {"rows": (4, rows, columns), "slice": (4, rows, columns), "transposed": (4, columns, rows),
             "heads": (4, max(1, rows * columns // 512), 8, 64)}[layout]
    number = np.float64 if dtype == "f64" else np.float32
    for kind in op.operands:
        if kind == "t":
            arrays.append(random.integers(0, columns if op.name == "cross_entropy" else 4 * rows, (4, rows)))
        elif kind == "m" or dtype == "bool":
            arrays.append(random.random(shape) < 0.5)
        else:
            sizes = {"w": (columns,), "b": (columns,), "s": (columns, columns)}.get(kind, shape)
            array = random.standard_normal(sizes, number)
            arrays.append(np.abs(array) + number(0.5) if kind == "p" or (kind == "y" and op.name == "div") else array)
    return arrays


class Case:
    """One op on operands of one size, dtype and layout: the calls of both sides and the bytes that must move."""

    def __init__(self, mh, torch, op, views, kb, dtype, layout, backward):
        arrays = operands_of(op, kb, dtype, layout)
        view = views.get(layout, lambda x: x)
        moved = lambda x, kind: view(x) if kind in "xyp" else x
        theirs = [torch.from_numpy(a) if a.dtype in (bool, np.int64) else torch.from_numpy(a).to(getattr(torch, TORCH[dtype]))
                  for a in arrays]
        ours = [mh.tensor(t) for t in theirs]  # the same memory
        floating = [kind in "xypwbs" and backward for kind in op.operands]
        self.leaves = [[x for x, f in zip(side, floating) if f] for side in (ours, theirs)]
        for x in self.leaves[0] + self.leaves[1]:
            x.requires_grad = True
        results = lambda f, side: f(*(moved(x, kind) for x, kind in zip(side, op.operands)))
        self.forward = [lambda: results(op.ours, ours), lambda: results(op.theirs, theirs)]
        self.call, self.mh, self.torch = self.forward, mh, torch
        y = results(op.theirs, theirs).detach()
        size = lambda x: x.numel() * x.element_size()
        self.shape = "x".join(map(str, moved(theirs[0], "x").shape))
        self.bytes = size(y) + sum(size(moved(x, kind)) for x, kind in zip(theirs, op.operands))
        if backward:
            self.bytes += size(y) + sum(size(x) for x in self.leaves[1])
            seed = torch.randn(y.shape, dtype=y.dtype)
            self.seeds = [mh.tensor(seed.float() if dtype in ("bf16", "f16") else seed), seed]
            self.call = [self.train_ours, self.train_theirs]
        if not op.loose:
            # PyTorch sums gradients of bf16 in bf16: they are no reference.
            self.compare(self.forward if dtype == "bf16" else self.call, 2e-2 if dtype == "bf16" else 1e-3)

    def train_ours(self):
        for x in self.leaves[0]:
            x.grad = None
        with self.mh.Tape() as tape:
            tape.backward(self.forward[0](), self.seeds[0])
        return [x.grad for x in self.leaves[0]]

    def train_theirs(self):
        for x in self.leaves[1]:
            x.grad = None
        self.forward[1]().backward(self.seeds[1])
        return [x.grad for x in self.leaves[1]]

    def compare(self, calls, tolerance):
        ours, theirs = (x if isinstance(x, (list, tuple)) else [x] for x in (call() for call in calls))
        for a, b in zip(ours, theirs):
            a, b = np.asarray(a.to("float64")), b.detach().double().numpy()
            if a.shape != b.shape or not np.allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max(initial=0))):
                sys.exit(f"ops: {self.shape}: the results differ")

    def times(self, rounds, clock, seconds=0.01):
        """The least time per call of ours and theirs."""
        counts = []
        for call in self.call:
            call()
            begin = clock()
            call()
            counts.append(max(1, min(10000, int(seconds / (clock() - begin + 1e-9)))))
        best = [math.inf, math.inf]
        for _ in range(rounds):
            for side in (0, 1):
                time.sleep(0.02)  # for so long the threads of the one who just ran may be spinning
                call = self.call[side]
                call()
                begin = clock()
                for _ in range(counts[side]):
                    call()
                best[side] = min(best[side], (clock() - begin) / counts[side])
        return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", metavar="REGEX", help="ops whose name contains a match")
    parser.add_argument("--list", action="store_true", help="print the names of the ops and stop")
    parser.add_argument("--kb", type=int, nargs="+", default=[4, 64, 1024, 8192, 65536], help="sizes of the first operand")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--layouts", nargs="+", default=["rows", "transposed", "heads", "slice"])
    parser.add_argument("--direction", choices=["forward", "training", "both"], default="both",
                        help="training is forward and backward")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, for a busy machine; one thread")
    options = parser.parse_args()
    if options.cpu_time and options.threads != [1]:
        parser.error("--cpu-time adds up the threads: give --threads 1")
    clock = time.process_time if options.cpu_time else time.perf_counter
    os.environ.setdefault("OMP_NUM_THREADS", str(max(options.threads)))
    import torch

    import multihead as mh

    ops, views = all_ops(mh, torch)
    ops = [op for op in ops if re.search(options.ops, op.name)]
    if options.list:
        return print("\n".join(dict.fromkeys(op.name for op in ops)))
    print(f"{mh.cpu_name()}, {mh.isa()}, multihead {mh.__version__} at {mh._core.git_hash() or 'an unknown commit'}, "
          f"PyTorch {torch.__version__}, {datetime.date.today()}")
    print(f"{'op':<14} {'direction':<9} {'shape':<18} {'dtype':<5} {'layout':<10} threads {'ms':>9} {'GB/s':>7} {'PyTorch':>9} {'ratio':>6}")
    rows = []
    for op in ops:
        for backward in [b for b in (False, True) if options.direction != ("forward" if b else "training")]:
            for dtype in op.dtypes:
                for layout in op.layouts:
                    if (backward and not op.backward) or dtype not in options.dtypes or layout not in options.layouts:
                        continue
                    for kb in options.kb:
                        case = Case(mh, torch, op, views, kb, dtype, layout, backward)
                        for threads in options.threads:
                            mh.set_num_threads(threads)
                            torch.set_num_threads(threads)
                            ours, theirs = case.times(options.rounds, clock)
                            rows.append((theirs / ours,
                                         f"{op.name:<14} {'training' if backward else 'forward':<9} {case.shape:<18} {dtype:<5} "
                                         f"{layout:<10} {threads:>7} {ours * 1e3:9.4f} {case.bytes / ours / 1e9:7.2f} "
                                         f"{theirs * 1e3:9.4f} {theirs / ours:6.2f}"))
                            print(rows[-1][1], flush=True)
    if rows:
        behind = sorted(row for row in rows if row[0] < 1)
        print(f"\ngeometric mean {statistics.geometric_mean(r for r, _ in rows):.2f} over {len(rows)} rows; {len(behind)} below 1:")
        print("\n".join(text for _, text in behind))


if __name__ == "__main__":
    main()
