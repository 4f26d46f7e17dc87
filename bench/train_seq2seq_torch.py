"""The recipe of a `multihead train seq2seq` run in PyTorch eager: same sizes, initialisation, tokenizer, batching
by tokens, optimiser and learning rates; other random numbers.

    multihead train seq2seq --data T.tsv --valid V.tsv --out RUN --steps 400
    python3 bench/train_seq2seq_torch.py RUN --data T.tsv --valid V.tsv --steps 400 [--threads 2]

Prints the validation loss in nats per token and the target tokens per second, without start and validation.
Flags that differ from the preset must be given here, too. Needs torch, transformers, tokenizers.
"""

import argparse
import math
import pathlib
import random
import time

import torch
from tokenizers import Tokenizer
from transformers import MarianConfig, MarianMTModel
from transformers.models.marian.modeling_marian import MarianAttention


def pairs_of(path, tokenizer, eos, longest):
    pairs = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        source, target = (tokenizer.encode(side, add_special_tokens=False).ids + [eos] for side in line.split("\t"))
        if longest is None or max(len(source), len(target)) <= longest:
            pairs.append((source, target))
    return pairs


def batches_of(pairs, batch_tokens, bucket, shuffle):
    """Pairs sorted by the bucket of their longer side, cut where rows times width would exceed batch_tokens."""
    def width(pair):
        return -(-max(map(len, pair)) // bucket) * bucket

    order = sorted(shuffle.sample(pairs, len(pairs)), key=width)
    batches = [[]]
    for pair in order:
        if batches[-1] and (len(batches[-1]) + 1) * width(pair) > batch_tokens:
            batches.append([])
        batches[-1].append(pair)
    return shuffle.sample(batches, len(batches))


def tensors_of(batch, config):
    def padded(rows, value):
        ids = torch.full((len(rows), max(map(len, rows))), value)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return ids

    sources, targets = zip(*batch)
    labels = padded(targets, -100)
    mask = torch.arange(max(map(len, sources)))[None] < torch.tensor([len(s) for s in sources])[:, None]
    inputs = padded([[config.decoder_start_token_id] + t[:-1] for t in targets], config.pad_token_id)
    return dict(input_ids=padded(sources, config.pad_token_id), attention_mask=mask.long(),
                decoder_input_ids=inputs), labels


def initialize(model, config):
    """Projections Xavier (queries, keys and values of a self-attention as one matrix), biases 0."""
    size = config.d_model
    for name, parameter in model.named_parameters():
        if "embed_positions" in name:
            continue
        if "embed_tokens" in name or "shared" in name:
            parameter.data.normal_(0, config.init_std)
        elif parameter.dim() == 2:
            torch.nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            parameter.data.zero_()
    for module in model.modules():
        if isinstance(module, MarianAttention):
            for projection in (module.q_proj, module.k_proj, module.v_proj):
                bound = math.sqrt(6 / (3 * size + size))
                projection.weight.data.uniform_(-bound, bound)


def loss_of(model, batch, config, smoothing):
    inputs, labels = tensors_of(batch, config)
    logits = model(**inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)


def validate(model, pairs, config):
    model.eval()
    total = count = 0
    pairs = sorted(pairs, key=lambda pair: max(map(len, pair)))
    with torch.inference_mode():
        for begin in range(0, len(pairs), 32):
            batch = pairs[begin : begin + 32]
            tokens = sum(len(target) for _, target in batch)
            total += tokens * loss_of(model, batch, config, 0).item()
            count += tokens
    return total / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--valid")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--decay-steps", type=int, help="steps of the cosine, if not --steps")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--bucket", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    shuffle = random.Random(options.seed)

    config = MarianConfig.from_pretrained(options.run)
    model = MarianMTModel(config)
    initialize(model, config)
    tokenizer = Tokenizer.from_file(str(pathlib.Path(options.run) / "tokenizer.json"))
    training = pairs_of(options.data, tokenizer, config.eos_token_id, options.max_tokens)
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=options.weight_decay), dict(params=plain, weight_decay=0)],
        lr=options.lr, betas=(0.9, 0.98), eps=1e-8)
    final, end = 0.1, options.decay_steps or options.steps

    def rate(step):
        if step < options.warmup:
            return options.lr * (step + 1) / options.warmup
        done = min(1, (step - options.warmup) / max(1, end - options.warmup))
        return options.lr * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)

    model.train()
    batches, tokens, seconds = [], 0, 0.0
    for step in range(options.steps):
        if not batches:
            batches = batches_of(training, options.batch_tokens, options.bucket, shuffle)
        batch = batches.pop()
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        loss_of(model, batch, config, options.label_smoothing).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= min(5, options.steps - 1):  # the first ones warm up
            seconds += time.perf_counter() - begin
            tokens += sum(len(target) for _, target in batch)
    print(f"PyTorch eager, {options.threads} threads: {tokens / seconds:,.0f} target tokens/s", flush=True)
    if options.valid:
        held_out = pairs_of(options.valid, tokenizer, config.eos_token_id, None)
        print(f"validation loss {validate(model, held_out, config):.4f} after {options.steps} steps")


if __name__ == "__main__":
    main()
