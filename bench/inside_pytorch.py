#!/usr/bin/env python3
"""multihead inside PyTorch: attention and GPT steps under patch(), and flex_attention with functions of one's own.

    python bench/inside_pytorch.py steps | flex [--threads 2]
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

import multihead.torch as mt


def medians(runs, rounds=11, target=0.03):
    """Microseconds of each function, taking turns."""
    counts, times = {}, {name: [] for name in runs}
    for name, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        counts[name] = max(1, int(target / (time.perf_counter() - start)))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                run()
            times[name].append((time.perf_counter() - start) / counts[name] * 1e6)
    return {name: statistics.median(t) for name, t in times.items()}


class Gpt(torch.nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.embed, self.head = torch.nn.Embedding(512, width), torch.nn.Linear(width, 512)
        self.layers = torch.nn.ModuleList()
        for _ in range(2):
            parts = {
                "norm1": torch.nn.LayerNorm(width),
                "qkv": torch.nn.Linear(width, 3 * width),
                "out": torch.nn.Linear(width, width),
                "norm2": torch.nn.LayerNorm(width),
                "up": torch.nn.Linear(width, 4 * width),
                "down": torch.nn.Linear(4 * width, width),
            }
            self.layers.append(torch.nn.ModuleDict(parts))

    def forward(self, tokens):
        x = self.embed(tokens)
        for p in self.layers:
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in p["qkv"](p["norm1"](x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
            x = x + p["out"](a.transpose(1, 2).flatten(2))
            x = x + p["down"](F.gelu(p["up"](p["norm2"](x))))
        return self.head(x)


def attention_step(batch, length, width, heads, dropout):
    shape = (batch, heads, length, width // heads)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    grad = torch.randn(shape)

    def run():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        torch.autograd.grad(out, (q, k, v), grad)

    return run


def gpt_step(batch, length, width, heads, dropout):
    model = Gpt(width, heads, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 512, (batch, length + 1))

    def run():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def steps():
    print("| Batch, tokens, width, heads | attention | with dropout 0.1 | step | with dropout |\n|---|---:|---:|---:|---:|")
    for sizes in [(1, 8, 64, 4), (1, 32, 64, 4), (1, 64, 64, 4), (8, 64, 128, 4), (4, 128, 256, 8), (8, 256, 256, 4), (1, 1024, 256, 4)]:
        cells = []
        for make in (attention_step, gpt_step):
            for dropout in (0.0, 0.1):
                run = make(*sizes, dropout)
                run()
                theirs, ours = [], []
                for _ in range(5):
                    theirs.append(medians({"t": run}, 3, 0.01)["t"])
                    with mt.patch():
                        ours.append(medians({"m": run}, 3, 0.01)["m"])
                a, b = statistics.median(theirs), statistics.median(ours)
                cells.append(f"{a / b:.2f}x ({b:.0f} us)" if b < 1e3 else f"{a / b:.2f}x")
        print(f"| {', '.join(map(str, sizes))} | {' | '.join(cells)} |", flush=True)


SLOPES = torch.tensor([2.0 ** -(i + 1) for i in range(8)])
TABLE = torch.randn(8, 4096) * 0.1
DOCUMENTS = torch.arange(2048) // 300


def causal(b, h, q, k):
    return q >= k


GALLERY = {  # name: (score function, mask function, built in)
    "ALiBi, causal": (lambda s, b, h, q, k: s + SLOPES[h] * (k - q), causal, True),
    "soft-cap 20, causal": (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), causal, True),
    "causal, window 256": (None, lambda b, h, q, k: (q >= k) & (q - k < 256), True),
    "relative position, causal": (lambda s, b, h, q, k: s + (q - k), causal, True),
    "distance, every pair": (lambda s, b, h, q, k: s - SLOPES[h] * (q - k).abs(), None, False),
    "documents, causal": (None, lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k), False),
    "prefix 128": (None, lambda b, h, q, k: (q >= k) | (k < 128), False),
    "polynomial, causal": (lambda s, b, h, q, k: s + 0.1 * s * s - 0.01 * s * s * s, causal, False),
    "tanh of position and score, causal": (
        lambda s, b, h, q, k: 3 * torch.tanh((s - SLOPES[h] * (q - k).abs()) / 3) + 0.1 * s,
        causal,
        False,
    ),
    "sigmoid gate, every pair": (lambda s, b, h, q, k: s * torch.sigmoid(s), None, False),
    "table by head and distance, causal": (lambda s, b, h, q, k: s + TABLE[h, q - k + 2047], causal, False),
    "every third key, causal": (None, lambda b, h, q, k: (q >= k) & ((q - k) % 3 == 0), False),
}


def flex(length):
    from torch.nn.attention import flex_attention as theirs

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    for name, (score, mask, built_in) in GALLERY.items():
        torch._dynamo.reset()
        compiled = torch.compile(theirs.flex_attention)
        n = length
        their_mask = theirs.create_block_mask(mask, None, None, n, n, device="cpu") if mask else None
        our_mask = mt.create_block_mask(mask) if mask else None
        runs = {
            "theirs": lambda: compiled(q, k, v, score, block_mask=their_mask),
            "ours": lambda: mt.flex_attention(q, k, v, score, our_mask),
        }
        with torch.no_grad():
            error = float((runs["theirs"]() - runs["ours"]()).abs().max())
            yield name, built_in, error, runs


def compare_flex(length):
    print("| function | ours, ms | compiled, ms | ratio | apart by |\n|---|---:|---:|---:|---:|")
    for name, built_in, error, runs in flex(length):
        with torch.no_grad():
            t = medians(runs, 7, 0.02)
        ours, theirs = t["ours"] / 1e3, t["theirs"] / 1e3
        mark = "" if built_in else " *"
        print(f"| {name}{mark} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f}x | {error:.0e} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "flex"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    steps() if arguments.what == "steps" else compare_flex(arguments.length)


if __name__ == "__main__":
    main()
