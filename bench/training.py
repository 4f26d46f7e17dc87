#!/usr/bin/env python3
"""Training steps of a GPT beside PyTorch's eager mode, in f32 and in bf16 (autocast): tokens per second, peak memory.

    python bench/training.py                                   # the shapes of docs/performance.md, two threads: 10 minutes
    python bench/training.py --shapes 6x8x256x256x16 --rounds 3
    python bench/training.py --multihead build/release/multihead --threads 1

A shape is layers x heads x width x context x batch [x vocabulary]. Every measurement is a process of its own, the four
take turns, medians over the rounds are printed. A step is forward, backward, clipping and AdamW. Needs torch.
"""

import argparse
import datetime
import json
import resource
import statistics
import subprocess
import sys
import time

SHAPES = ["4x4x128x64x12", "6x8x256x256x16", "12x12x768x256x4x4096"]


def torch_gpt(vocab, layers, heads, width, context):
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            qkv = self.qkv(self.norm1(x)).view(batch, length, 3, heads, width // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.layers, self.norm = nn.Sequential(*(Layer() for _ in range(layers))), nn.LayerNorm(width)

        def forward(self, ids, targets):
            x = self.layers(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])))
            logits = nn.functional.linear(self.norm(x), self.tokens.weight)
            return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Gpt()


def run_torch(sizes, precision, threads, seconds):
    import torch

    layers, heads, width, context, batch, vocab = sizes
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = torch_gpt(vocab, layers, heads, width, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids, targets = torch.randint(0, vocab, (batch, context)), torch.randint(0, vocab, (batch, context))
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 4:
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - begin)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "tokens_per_second": batch * context / statistics.median(times),
        "peak_memory_bytes": memory,
        "version": torch.__version__,
    }


def run_multihead(program, sizes, precision, threads, seconds):
    names = ["--layers", "--heads", "--width", "--context", "--batch", "--vocab-size"]
    flags = [word for name, size in zip(names, sizes) for word in (name, str(size))]
    command = [program, "bench", "train", "--json", "--quiet", "--precision", precision, "--threads", str(threads)]
    return json.loads(subprocess.check_output([*command, "--seconds", str(seconds), *flags]))


def measure(args, library, sizes, precision):
    if library == "multihead":
        return run_multihead(args.multihead, sizes, precision, args.threads, args.seconds)
    command = [sys.executable, __file__, "--child", json.dumps([sizes, precision, args.threads, args.seconds])]
    return json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))


def compare(args, shape):
    sizes = [int(size) for size in shape.split("x")]
    sizes += [96] * (6 - len(sizes))
    kinds = [(library, precision) for precision in ("f32", "bf16") for library in ("multihead", "torch")]
    runs = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind in kinds:
            runs[kind].append(measure(args, kind[0], sizes, kind[1]))
    speed = {kind: statistics.median(run["tokens_per_second"] for run in runs[kind]) for kind in kinds}
    memory = {kind: statistics.median(run["peak_memory_bytes"] for run in runs[kind]) / 1e6 for kind in kinds}
    f32, bf16 = speed["multihead", "f32"], speed["multihead", "bf16"]
    ratios = [bf16 / f32, f32 / speed["torch", "f32"], bf16 / speed["torch", "bf16"]]
    cells = [shape.replace("x", ", "), *(f"{speed[kind]:,.0f}" for kind in kinds), *(f"{ratio:.2f}" for ratio in ratios)]
    print("| " + " | ".join([*cells, " : ".join(f"{memory[kind]:,.0f}" for kind in kinds)]) + " |", flush=True)
    return runs["multihead", "f32"][0], runs["torch", "f32"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--multihead", default="multihead", help="the command")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run_torch(*json.loads(args.child))))
        return
    titles = ["layers, heads, width, context, batch", "multihead f32", "PyTorch f32", "multihead bf16", "autocast"]
    titles += ["bf16 / f32", "f32 / PyTorch", "bf16 / autocast", "peak memory of the four, MB"]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|", flush=True)
    for shape in args.shapes:
        ours, theirs = compare(args, shape)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(
        f"\nTokens per second, medians of {args.rounds} rounds: {ours['cpu']}, {ours['isa']}, {args.threads} threads, "
        f"multihead {commit}, PyTorch {theirs['version']}, {datetime.date.today()}"
    )


if __name__ == "__main__":
    main()
