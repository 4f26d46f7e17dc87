#!/usr/bin/env python3
"""Does `multihead train lm` tune a chat model as TRL does? From the same weights, on the same conversations in the same
order, the two must give the same losses, step by step.

    python3 tools/chat_parity.py PATH/TO/multihead [--init FOLDER] [--steps 50] [--batch 4] [--rows 40] [--lora-rank 8]
                                 [--completions]

FOLDER is a model whose tokenizer has the tokens <|im_start|>, <|im_end|> and <|endoftext|>, such as
SmolLM2-135M-Instruct; without it, a small Llama with random weights is made. TRL's SFTTrainer goes without packing, in
f32, with the loss of the assistant's messages only; with --completions, rows are prompts and completions and the loss
is the completions'. The order of our batches, and with --lora-rank the adapter's first weights, come from a run whose
learning rate is nothing: rows are told apart by their losses. Exit code 1 if a loss differs by more than 1e-3
(relative).

Settings that differ by default are made alike. TRL computes in bf16. It learns what the template encloses in
{% generation %}, here an answer with its end token and line break, which is what multihead learns. There is no warm-up:
that of transformers begins with a rate of 0, that of multihead does not. The pad token is another than the end token.
Needs torch, transformers, trl, datasets, peft.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import torch
from datasets import Dataset
from peft import PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>\\n' }}{% endgeneration %}{% else %}"
    "{{ message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
WORDS = "red green river stone walks quickly under seven bridges while old friends sing about rain and bread".split()


def conversations(count, completions):
    """Chats of one to three questions, of various lengths, some with a system message."""
    random.seed(7)
    rows = []
    for _ in range(count):
        messages = []
        if random.random() < 0.5:
            messages.append({"role": "system", "content": "Answer in a word or two. " + random.choice(WORDS)})
        for _ in range(random.randint(1, 3)):
            some = random.choices(WORDS, k=random.randint(2, 12))
            messages.append({"role": "user", "content": f"Turn round: {' '.join(some)}?"})
            messages.append({"role": "assistant", "content": " ".join(reversed(some)).capitalize() + "."})
        rows.append({"prompt": messages[:-1], "completion": messages[-1:]} if completions else {"messages": messages})
    return rows


def random_model(folder):
    torch.manual_seed(7)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [message["content"] for row in conversations(40, False) for message in row["messages"]]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    LlamaForCausalLM(LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.1, max_position_embeddings=512,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=True)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def prepare(init, folder):
    """Makes a copy of the model with a template that marks answers and a pad token of its own."""
    if init:
        shutil.copytree(init, folder)
    else:
        random_model(folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"chat_template": TEMPLATE, "pad_token": "<|endoftext|>"}
    path.write_text(json.dumps(config | {"eos_token": "<|im_end|>"}))


def ours(options, folder, name, batch, steps, lr, decay):
    run = folder / name
    lora = ["--lora-rank", str(options.lora_rank)] if options.lora_rank else []
    subprocess.run(
        [options.multihead, "train", "lm", "--init", folder / "init", "--data", folder / "chats.jsonl", "--out", run,
         "--validation-share", "0", "--batch", str(batch), "--steps", str(steps), "--lr", str(lr), "--warmup", "0",
         "--schedule", "linear", "--final-ratio", "0", "--weight-decay", str(decay), "--beta1", "0.9", "--beta2",
         "0.999", "--eps", "1e-8", "--clip", "1", "--dropout", "0", "--log-every", "1", "--eval-every", "0", "--quiet",
         *lora], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return run, [line["train/loss"] for line in lines if "train/loss" in line]


class Recording(SFTTrainer):
    def training_step(self, *arguments, **named):
        loss = super().training_step(*arguments, **named)
        self.losses.append(loss.item())
        return loss


def theirs(options, folder, rows, batch, steps, lr, adapter=None):
    model = AutoModelForCausalLM.from_pretrained(folder / "init", dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    tokenizer = AutoTokenizer.from_pretrained(folder / "init")
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    config = SFTConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=batch, max_steps=steps, learning_rate=lr,
        lr_scheduler_type="linear", warmup_steps=0, weight_decay=0.01, adam_beta1=0.9, adam_beta2=0.999,
        adam_epsilon=1e-8, max_grad_norm=1.0, optim="adamw_torch", packing=False, max_length=512, bf16=False,
        assistant_only_loss=not options.completions, train_sampling_strategy="sequential", report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, gradient_checkpointing=False)
    trainer = Recording(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.losses = []
    trainer.train()
    return trainer.losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("multihead")
    parser.add_argument("--init")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--completions", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(options.init, folder / "init")
        rows = conversations(options.rows, options.completions)
        (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        # One row at a time, at a rate of nothing: ours in the order of training, theirs in that of the file.
        start, seen = ours(options, folder, "start", 1, options.steps * options.batch, 1e-30, 0)
        known = theirs(options, folder, rows, 1, len(rows), 1e-30)
        order = [min(range(len(rows)), key=lambda row: abs(known[row] - loss)) for loss in seen]
        apart = max(abs(known[row] - loss) / loss for row, loss in zip(order, seen))
        print(f"{len(set(order))} rows, each by itself: largest relative difference {apart:.1e}")
        a = ours(options, folder, "run", options.batch, options.steps, options.lr, 0.01)[1]
        b = theirs(options, folder, [rows[row] for row in order], options.batch, options.steps, options.lr,
                   start if options.lora_rank else None)
    assert len(a) == len(b) == options.steps, (len(a), len(b))
    differences = [abs(x - y) / y for x, y in zip(a, b)]
    for step in sorted({0, 1, 2, 5, *range(10, options.steps, 10), options.steps - 1}):
        print(f"step {step + 1:4}: multihead {a[step]:.6f}  TRL {b[step]:.6f}  {differences[step]:.1e}")
    print(f"largest relative difference in {options.steps} steps: {max(differences):.1e}")
    sys.exit(apart > 1e-3 or max(differences) > 1e-3)


if __name__ == "__main__":
    main()
