#!/usr/bin/env python3
"""Is the recipe of `multihead train seq2seq` PyTorch's? From the same weights, on the same batch, without dropout,
the two must give the same losses, step by step.

    python3 tools/training_parity.py PATH/TO/multihead --data PAIRS.tsv [--pairs 40] [--steps 60] [--precision bf16]

Trains twice on the first pairs of the file, which make one batch: with a learning rate of nothing, for the initial
weights, and in earnest; then lets PyTorch (transformers' Marian, AdamW, the script bench/train_seq2seq_torch.py) go
from those weights, in f32 and in f64, and prints the losses. Rounding grows from step to step, and how fast is seen
between PyTorch's two: exit code 1 if the first ten losses differ by more than 1e-5 (relative), or any by more than
twice what PyTorch's differ. With --precision bf16 PyTorch goes under its autocast instead: exit code 1 if a loss
differs by more than 1 %.
Needs torch, transformers, tokenizers.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from tokenizers import Tokenizer
from transformers import MarianMTModel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from train_seq2seq_torch import loss_of, pairs_of  # noqa: E402

WARMUP, LR, DECAY, SMOOTHING = 10, 2e-3, 0.01, 0.1


def ours(options, folder, name, *flags):
    run = folder / name
    subprocess.run(
        [options.multihead, "train", "seq2seq", "--preset", "tiny", "--data", folder / "pairs.tsv", "--out", run,
         "--vocab-size", "300", "--batch-tokens", "65536", "--max-tokens", "510", "--dropout", "0", "--log-every", "1",
         "--eval-every", "0", "--warmup", str(WARMUP), "--quiet", *flags], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return run, [line["train/loss"] for line in lines if "train/loss" in line]


def theirs(run, data, steps, dtype, autocast=False):
    model = MarianMTModel.from_pretrained(run).to(dtype).train()
    config = model.config
    assert config.dropout == config.attention_dropout == config.activation_dropout == 0
    for module in model.modules():  # the first token of a target is the padding's; it learns here, too
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    for name, parameter in model.named_parameters():  # sinusoids, which transformers 5.24 would train
        parameter.requires_grad_("embed_positions" not in name)
    bias = model._buffers.pop("final_logits_bias")  # Marian keeps it as it is, multihead trains it
    model.final_logits_bias = torch.nn.Parameter(bias[0].clone())
    batch = pairs_of(data, Tokenizer.from_file(str(run / "tokenizer.json")), config.eos_token_id, 510)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [dict(params=[p for p in parameters if p.dim() > 1], weight_decay=DECAY),
         dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0)], betas=(0.9, 0.98), eps=1e-8)
    losses = []
    for step in range(steps):
        done = (step - WARMUP) / (steps - WARMUP)
        rate = (step + 1) / WARMUP if step < WARMUP else 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
        for group in optimizer.param_groups:
            group["lr"] = LR * rate
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(model, batch, config, SMOOTHING)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_autocast(ours, theirs):
    differences = [abs(x - y) / y for x, y in zip(ours, theirs)]
    for step in range(0, len(ours), 10):
        print(f"step {step + 1:4}: multihead bf16 {ours[step]:.5f}  PyTorch autocast {theirs[step]:.5f}  {differences[step]:.1e}")
    print(f"largest relative difference in {len(ours)} steps: {max(differences):.1e}, last {differences[-1]:.1e}")
    return max(differences) > 0.01


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("multihead")
    parser.add_argument("--data", required=True)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lines = pathlib.Path(options.data).read_text(encoding="utf-8").splitlines(keepends=True)[: options.pairs]
        (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
        start, _ = ours(options, folder, "start", "--steps", "1", "--lr", "1e-30", "--weight-decay", "0")
        _, a = ours(options, folder, "run", "--steps", str(options.steps), "--lr", str(LR), "--precision",
                    options.precision)
        if options.precision == "bf16":
            b = theirs(start, folder / "pairs.tsv", options.steps, torch.float32, autocast=True)
            return sys.exit(compare_autocast(a, b))
        b = theirs(start, folder / "pairs.tsv", options.steps, torch.float32)
        c = theirs(start, folder / "pairs.tsv", options.steps, torch.float64)
    assert len(a) == len(b) == options.steps, (len(a), len(b))
    differences = [abs(x - y) / y for x, y in zip(a, c)]
    rounding = [abs(x - y) / y for x, y in zip(b, c)]
    for step in sorted({0, 1, 2, 5, 10, 20, 30, 40, 50, 100, 200, options.steps - 1}):
        if step < options.steps:
            print(f"step {step + 1:4}: multihead {a[step]:.6f}  PyTorch f64 {c[step]:.6f}  "
                  f"{differences[step]:.1e} (PyTorch f32 {rounding[step]:.1e})")
    print(f"largest relative difference in {options.steps} steps: {max(differences):.1e}, PyTorch's own {max(rounding):.1e}")
    sys.exit(max(differences[:10]) > 1e-5 or max(differences) > 2 * max(rounding) + 1e-4)


if __name__ == "__main__":
    main()
