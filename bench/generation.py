"""Greedy continuation by a model of GPT-2's size beside transformers' generate: tokens per second.

    python3 bench/generation.py [--threads 2] [--rounds 3]

12 layers of 768, 50,257 words, random weights, f32; prompts of 8 tokens, 16 new ones. Every measurement is a process
of its own, the programs take turns, medians over the rounds are printed. Needs multihead, torch, transformers.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT, NEW = list(range(1, 9)), 16


def multihead(folder, threads):
    import multihead as mh

    mh.set_num_threads(threads)
    model = mh.models.LanguageModel.load(folder)
    return lambda batch: model.generate([PROMPT] * batch, max_new_tokens=NEW, temperature=0.0)


def transformers(folder, threads):
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    model = GPT2LMHeadModel.from_pretrained(folder).eval()

    def generate(batch):
        tokens = torch.tensor([PROMPT] * batch)
        with torch.inference_mode():
            model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, min_new_tokens=NEW,
                           do_sample=False)

    return generate


PROGRAMS = {"multihead": multihead, "transformers": transformers}


def measure(name, folder, batch, threads):
    """Tokens per second, the reading of the prompts counted."""
    generate = PROGRAMS[name](folder, threads)
    generate(batch)
    start = time.perf_counter()
    generate(batch)
    return batch * NEW / (time.perf_counter() - start)


def alone(name, folder, batch, threads):
    """In a process of its own: idle workers of one library would spin beside the next one's."""
    command = [sys.executable, __file__, "--measure", name, folder, str(batch), "--threads", str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)


def make_model(folder):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--measure", nargs=3, metavar=("NAME", "FOLDER", "BATCH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, folder, batch = options.measure
        return print(json.dumps(measure(name, folder, int(batch), options.threads)))
    with tempfile.TemporaryDirectory() as root:
        folder = str(pathlib.Path(root) / "gpt2")
        make_model(folder)
        for batch in options.batches:
            rates = {name: [] for name in PROGRAMS}
            for _ in range(options.rounds):
                for name in PROGRAMS:
                    rates[name].append(alone(name, folder, batch, options.threads))
            ours, theirs = (statistics.median(rates[name]) for name in PROGRAMS)
            print(f"batch {batch:2}  multihead {ours:6.1f}  transformers {theirs:6.1f} tokens/s  x{ours / theirs:.2f}",
                  flush=True)


if __name__ == "__main__":
    main()
