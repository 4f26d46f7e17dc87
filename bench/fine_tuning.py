#!/usr/bin/env python3
"""CPU time of a step of every recipe of docs/fine-tuning.md beside PyTorch's eager mode, one thread each, in f32.

    tools/corpora/package_descriptions.py sections data/sections      and pairs, chats; digit_images.py data/digits;
    tools/corpora/changelog_entities.py data/tags.jsonl data/tags-test.jsonl; gettext_catalogues.py --language de --out data
    python bench/fine_tuning.py data --minilm MINILM --smollm2 SMOLLM2 [--rows classifier chat] [--rounds 2]

The models are folders (SmolLM2's of `multihead convert`). Every measurement is a process of its own; the two take turns,
medians are printed (the table of docs/fine-tuning.md: --rounds 1). Ours is the processor time of a run less that of a run of one step, so with the choice of batches and
their padding; theirs is that of forward, backward, clipping and AdamW alone, on batches that were padded before, from the
model that our run of one step saved. Needs torch, transformers, sentence-transformers, peft.
"""

import argparse
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple


class Row(NamedTuple):
    kind: str
    data: str
    flags: str
    batch: int
    steps: int  # that are measured


ROWS = {
    "classifier": Row("classifier", "sections/train.tsv", "--init {minilm} --max-length 64 --batch 32", 32, 20),
    "embedder": Row("embedder", "pairs/train.tsv", "--init {minilm} --max-length 64 --batch 32 --chunk 64", 32, 16),
    "tagger": Row("tagger", "tags.jsonl", "--init {minilm} --max-length 64 --batch 16", 16, 40),
    "images": Row("images", "digits/train", "--batch 32", 32, 300),
    "translator": Row("seq2seq", "gettext-en-de.train.tsv", "--preset tiny --batch-tokens 2048", 0, 60),
    "chat": Row("lm", "chats/train.jsonl", "--init {smollm2} --batch 4 --validation-share 0", 4, 8),
    "chat-lora": Row("lm", "chats/train.jsonl", "--init {smollm2} --batch 4 --validation-share 0 --lora-rank 8", 4, 8),
}


def ours(options, row, run, steps):
    """Processor seconds of a whole run."""
    flags = row.flags.format(minilm=options.minilm, smollm2=options.smollm2).split()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [options.multihead, "train", row.kind, "--data", options.data / row.data, "--out", run, "--threads", "1", "--quiet",
         "--steps", str(steps), "--eval-every", "0", *flags], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def padded(rows, value):
    import torch

    ids = torch.full((len(rows), max(map(len, rows))), value)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids


def encoded(rows):
    """The folders' padding is token 0."""
    import torch

    return {"input_ids": padded(rows, 0), "attention_mask": padded([[1] * len(row) for row in rows], 0).to(torch.long)}


def drawn(items, row):
    """Batches, as many as steps and one to begin with."""
    items = list(items)
    return [random.sample(items, row.batch) for _ in range(row.steps + 1)]


def heads(options, row, run):
    """Classifiers and taggers: the model and its batches, as arguments of it."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

    tokenizer, lines = AutoTokenizer.from_pretrained(run), (options.data / row.data).read_text("utf-8").splitlines()
    cut = {"truncation": True, "max_length": 64}
    if row.kind == "tagger":
        model = AutoModelForTokenClassification.from_pretrained(run)
        batches = [encoded(batch) for batch in drawn([tokenizer(json.loads(line)["text"], **cut)["input_ids"] for line in lines], row)]
        # Every word is O, padding is none: what labels say costs nothing.
        return model, [one | {"labels": (one["attention_mask"] - 1) * 100} for one in batches], lambda m, one: m(**one).loss
    model = AutoModelForSequenceClassification.from_pretrained(run)
    rows = [(tokenizer(text, **cut)["input_ids"], model.config.label2id[label]) for text, label in (line.split("\t") for line in lines)]
    batches = []
    for batch in drawn(rows, row):
        ids, labels = zip(*batch)
        batches.append(encoded(ids) | {"labels": torch.tensor(labels)})
    return model, batches, lambda m, one: m(**one).loss


def embedder(options, row, run):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(options.minilm))
    model.max_seq_length = 64
    tokenizer = model.tokenizer
    batches = []
    pairs = [line.split("\t") for line in (options.data / row.data).read_text("utf-8").splitlines()]
    for batch in drawn(pairs, row):
        sides = [[tokenizer(text, truncation=True, max_length=64)["input_ids"] for text in side] for side in zip(*batch)]
        batches.append([encoded(side) for side in sides])
    return MultipleNegativesRankingLoss(model), batches, lambda m, one: m([dict(side) for side in one], None)


def images(options, row, run):
    import numpy as np
    import torch
    from PIL import Image
    from transformers import ViTForImageClassification

    files = sorted((options.data / row.data).glob("*/*.png"))
    pixels = {file: np.asarray(Image.open(file).convert("RGB"), "float32").transpose(2, 0, 1) / 127.5 - 1 for file in files}
    batches = [{"pixel_values": torch.tensor(np.stack([pixels[file] for file in batch])),
                "labels": torch.tensor([int(file.parent.name) for file in batch])} for batch in drawn(files, row)]  # fmt: skip
    return ViTForImageClassification.from_pretrained(run), batches, lambda m, one: m(**one).loss


def translator(options, row, run):
    import train_seq2seq_torch as marian
    from tokenizers import Tokenizer
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(run)
    pairs = marian.pairs_of(options.data / row.data, Tokenizer.from_file(f"{run}/tokenizer.json"), model.config.eos_token_id, 128)
    batches = marian.batches_of(pairs, 2048, 4, random.Random(1))[: row.steps + 1]
    return model, batches, lambda m, one: marian.loss_of(m, one, m.config, 0.1)


def chat(options, row, run):
    import peft
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(options.smollm2), AutoTokenizer.from_pretrained(options.smollm2)
    if "lora" in row.flags:
        model = peft.PeftModel.from_pretrained(model, run, is_trainable=True)
    batches = []
    for batch in drawn((options.data / row.data).read_text("utf-8").splitlines(), row):
        rows, labels = [], []
        for line in batch:
            messages = json.loads(line)["messages"]
            whole = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
            asked = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
            rows.append(whole)
            labels.append([-100] * len(asked) + whole[len(asked) :])
        batches.append(encoded(rows) | {"labels": padded(labels, -100)})
    return model, batches, lambda m, one: m(**one).loss


MODELS = {"embedder": embedder, "images": images, "seq2seq": translator, "lm": chat}


def theirs(options, row, run):
    """Processor seconds of the steps."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    model, batches, loss_of = MODELS.get(row.kind, heads)(options, row, run)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.01, fused=True)
    start = 0.0
    for number, batch in enumerate(batches):
        if number == 1:
            start = time.process_time()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return time.process_time() - start


def compare(options, name):
    row = ROWS[name]
    seconds = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as folder:
        first = f"{folder}/first"
        start = statistics.median([ours(options, row, first, 1), ours(options, row, f"{folder}/again", 1)])
        for number in range(options.rounds):
            seconds["ours"].append(ours(options, row, f"{folder}/run{number}", row.steps + 1) - start)
            command = [sys.executable, __file__, *sys.argv[1:], "--child", name, first]
            seconds["theirs"].append(json.loads(subprocess.check_output(command).splitlines()[-1]))
    each = {key: statistics.median(values) / row.steps for key, values in seconds.items()}
    load = pathlib.Path("/proc/loadavg").read_text().split()[0]
    print(f"| {name} | {each['ours'] * 1e3:.1f} | {each['theirs'] * 1e3:.1f} | {each['ours'] / each['theirs']:.2f} | {load} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--minilm", type=pathlib.Path)
    parser.add_argument("--smollm2", type=pathlib.Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--multihead", default="multihead", help="the command")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, run = options.child
        print(json.dumps(theirs(options, ROWS[name], run)))
        return
    print("| recipe | multihead, CPU ms a step | PyTorch | ratio | load |\n|---|---:|---:|---:|---:|", flush=True)
    for name in options.rows:
        compare(options, name)


if __name__ == "__main__":
    main()
