#!/usr/bin/env python3
"""GGUF files beside llama.cpp: tokens per second of a prompt of 512, of one sequence and of eight at once.

    python bench/gguf_files.py F16.gguf Q8_0.gguf Q4_0.gguf              # two threads, three rounds
    python bench/gguf_files.py model.gguf --threads 1 --rounds 5 --memory

Each program reads each file in a process of its own; the two of a file take turns, medians over the rounds are printed.
Tokens are the most probable ones. --memory prints the peak memory after all that. Needs multihead and
llama-cpp-python.
"""

import argparse
import datetime
import json
import pathlib
import resource
import sys
import time

from turns import Program, medians, serve

PROMPT, NEW, MANY = 512, 32, 8


def seconds(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def multihead(path, threads):
    import multihead as mh

    mh.set_num_threads(threads)
    model = mh.models.LanguageModel.load(path, packed=True)
    ids = [7 + 11 * i % 20000 for i in range(PROMPT)]

    def generate(prompts, new):
        return seconds(lambda: model.generate(prompts, max_new_tokens=new, temperature=0.0))

    def after_first(count):
        prompts = [ids[i:i + 8] for i in range(count)]
        return count * NEW / (generate(prompts, NEW + 1) - generate(prompts, 1))

    return {"prompt": lambda: PROMPT / generate([ids], 1), "one": lambda: after_first(1),
            "eight": lambda: after_first(MANY)}


def llama_cpp(path, threads):
    import llama_cpp as lib
    import numpy as np

    llama_cpp.silent = lib.llama_log_callback(lambda *_: None)  # must live as long as the library
    lib.llama_log_set(llama_cpp.silent, None)
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    parameters = lib.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch, parameters.n_seq_max = 8192, PROMPT, PROMPT, MANY
    parameters.n_threads = parameters.n_threads_batch = threads
    context = lib.llama_init_from_model(model, parameters)
    words = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    ids = [7 + 11 * i % 20000 for i in range(PROMPT)]

    def decode(rows):  # (token, position, sequence, wants logits)
        batch = lib.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, logits
            batch.seq_id[i][0] = sequence
        if lib.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        best = [int(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (words,)).argmax())
                for i, row in enumerate(rows) if row[3]]
        lib.llama_batch_free(batch)
        return best

    def clear():
        lib.llama_memory_clear(lib.llama_get_memory(context), True)

    def prompt():
        clear()
        return PROMPT / seconds(lambda: decode([(id, i, 0, i == PROMPT - 1) for i, id in enumerate(ids)]))

    def tokens(count):
        clear()
        best = [decode([(id, i, s, i == 7) for i, id in enumerate(ids[s:s + 8])])[0] for s in range(count)]

        def run():
            nonlocal best
            for step in range(NEW):
                best = decode([(token, 8 + step, s, True) for s, token in enumerate(best)])

        return count * NEW / seconds(run)

    return {"prompt": prompt, "one": lambda: tokens(1), "eight": lambda: tokens(MANY)}


PROGRAMS = {"multihead": multihead, "llama.cpp": llama_cpp}
WAYS = ("prompt", "one", "eight")


def load(name, path, threads):
    """A function that answers each question: a way with its tokens per second, "memory" with the peak in MB."""
    ways = PROGRAMS[name](path, threads)
    for run in ways.values():
        run()
    ways["memory"] = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return lambda question: ways[question]()


def start(name, path, threads):
    program = Program([__file__, path, "--threads", str(threads), "--serve", name], OMP_NUM_THREADS=str(threads))
    if program.error is not None:
        sys.exit(f"{name}: {program.error[-500:]}")
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="also the peak memory")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(lambda: load(options.serve, options.files[0], options.threads))
    report = {}
    if not options.json:
        print(f"{options.threads} threads, {datetime.date.today()}; tokens/s multihead : llama.cpp (ratio)")
    for path in options.files:
        programs = {name: start(name, path, options.threads) for name in PROGRAMS}
        row = medians(programs, WAYS, options.rounds)
        for name, program in programs.items():
            row[name]["memory_mb"] = program.ask("memory")
            program.close()
        report[path] = row
        if options.json:
            continue
        shown = WAYS + ("memory_mb",) if options.memory else WAYS
        ours, theirs = row["multihead"], row["llama.cpp"]
        cells = (f"{way} {ours[way]:.0f} : {theirs[way]:.0f} ({ours[way] / theirs[way]:.2f})" for way in shown)
        print(f"{pathlib.Path(path).name:14}" + "   ".join(cells), flush=True)
    if options.json:
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
