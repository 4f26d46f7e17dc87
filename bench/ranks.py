#!/usr/bin/env python3
"""Training on several ranks of one machine, beside PyTorch's DistributedDataParallel with gloo: tokens per second.

    python bench/ranks.py --multihead build/release/multihead          # GPT 6/8/256/256, some minutes on two cores

Every configuration trains the same number of sequences a step, 16: on one rank with two threads, on two ranks with one
thread each, and on eight ranks. They take turns; medians of the rounds. Needs mpirun, and torch for its rows.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from training import torch_gpt

LAYERS, HEADS, WIDTH, CONTEXT, SEQUENCES, VOCAB = 6, 8, 256, 256, 16, 96
ENVIRONMENT = dict(
    os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1"
)


def run_multihead(args, ranks, threads, shards):
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        letters = [chr(33 + i) for i in range(VOCAB - 2)]
        with open(text, "w", encoding="utf-8") as file:
            file.write("".join(random.Random(1).choices(letters, k=200_000)))
        command = [args.multihead, "train", "lm", "--data", text, "--out", folder + "/run", "--layers", str(LAYERS)]
        command += ["--heads", str(HEADS), "--width", str(WIDTH), "--context", str(CONTEXT), "--tokenizer", "char"]
        command += ["--batch", str(SEQUENCES // shards), "--shards", str(shards), "--steps", str(args.steps), "--quiet", "--json"]
        command += ["--eval-every", "0", "--eval-windows", "1", "--validation-share", "0", "--warmup", "2"]
        launcher = ["mpirun", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
        environment = dict(ENVIRONMENT, MULTIHEAD_NUM_THREADS=str(threads))
        return json.loads(subprocess.check_output(launcher + command, env=environment))["tokens_per_second"]


def ddp_rank(rank, ranks, threads, steps, port):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = torch_gpt(VOCAB, LAYERS, HEADS, WIDTH, CONTEXT)
    parallel = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch, times = SEQUENCES // ranks, []
    ids, targets = torch.randint(0, VOCAB, (batch, CONTEXT)), torch.randint(0, VOCAB, (batch, CONTEXT))
    for _ in range(steps):
        begin = time.perf_counter()
        loss = parallel(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - begin)
    if rank == 0:
        print(SEQUENCES * CONTEXT / statistics.mean(times[2:]))
    dist.destroy_process_group()


def run_ddp(args, ranks, threads):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [[str(w) for w in (rank, ranks, threads, args.steps, port)] for rank in range(ranks)]
    commands = [[sys.executable, __file__, "--rank", *w] for w in words]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for c in commands]
    return float([process.communicate()[0] for process in running][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--multihead", default="multihead")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rank", nargs=5, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return ddp_rank(*args.rank)
    kinds = {
        "1 rank x 2 threads, 1 shard": lambda: run_multihead(args, 1, 2, 1),
        "1 rank x 2 threads, 2 shards": lambda: run_multihead(args, 1, 2, 2),
        "2 ranks x 1 thread, 2 shards": lambda: run_multihead(args, 2, 1, 2),
        "1 rank x 2 threads, 8 shards": lambda: run_multihead(args, 1, 2, 8),
        "8 ranks x 1 thread, 8 shards": lambda: run_multihead(args, 8, 1, 8),
    }
    try:
        import torch

        kinds[f"PyTorch {torch.__version__}, DDP, gloo, 2 ranks x 1 thread"] = lambda: run_ddp(args, 2, 1)
    except ImportError:
        pass
    runs = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, measure in kinds.items():
            runs[kind].append(measure())
    print("| configuration | tokens/s |\n|---|---:|")
    for kind, speeds in runs.items():
        print(f"| {kind} | {statistics.median(speeds):,.0f} |")


if __name__ == "__main__":
    main()
