#!/usr/bin/env python3
"""Trains a small language model with each attention of this folder, and checks what the library promises of it.

    tools/corpora/austen.py --out data
    examples/own_attention/run.py data/austen.txt [NAME...] [--steps 300] [--out FOLDER]

For every attention: a run of train_language_model; the same run stopped half way and resumed, whose weights must have the same
bits; in a new process the saved model, whose text from the cache must be that without it, token by token; and its check.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NAMES = {path.stem: path for path in sorted(HERE.glob("*.py")) if path.stem != "run"}
PROMPT = "She was "


def attention_of(name):
    """The class of a file, which its definition makes known to models."""
    import multihead as mh

    spec = importlib.util.spec_from_file_location(f"own_attention_{name}", NAMES[name])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(x for x in vars(module).values() if isinstance(x, type) and issubclass(x, mh.nn.Attention))


def train(name, text, folder, steps, stop_at=None, resume=False, **settings):
    import multihead as mh

    def callback(event, fields):
        if event == "step" and fields["step"] == stop_at:
            raise KeyboardInterrupt

    attention = attention_of(name) if name != "multi-head" else None
    if attention:
        settings |= {"attention": attention}
    return mh.train.train_language_model(
        text, folder, tokenizer="char", steps=steps, log_every=1, resume=resume, callback=callback, **settings
    )


def without_cache(model, prompt, count):
    """What generate() should give: each token from the whole text before it."""
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(int(model([text[-model.config.context :]]).numpy()[0, -1].argmax()))
    return text[len(prompt) :]


def use(name, folder):
    """In a new process: prints the text, and fails unless the cache changes nothing."""
    import multihead as mh

    if name != "multi-head":
        attention_of(name)
    model = mh.models.LanguageModel.load(folder)
    tokenizer = mh.Tokenizer.load(folder)
    prompt = tokenizer.encode(PROMPT)
    count = model.config.context - len(prompt)
    fresh = model.generate([prompt], max_new_tokens=count, temperature=0)[0]
    assert fresh == without_cache(model, prompt, count), "the cache changes the text"
    # A model of a few thousand weights may not learn the check's tokens by heart.
    checks = mh.train.check_language_model(model)
    failed = [check for check in checks if not check["passed"] and check["name"] != "overfit"]
    assert not failed, failed
    print(PROMPT + tokenizer.decode(fresh))


def run(name, text, out, steps):
    whole, parts = out / name, out / f"{name}-resumed"
    begin = time.perf_counter()
    summary = train(name, text, whole, steps)
    seconds = time.perf_counter() - begin
    try:
        train(name, text, parts, steps, stop_at=steps // 2)
    except KeyboardInterrupt:
        train(name, text, parts, steps, resume=True)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (whole, parts)]
    assert weights[0] == weights[1], "the resumed run has other weights"
    written = subprocess.run([sys.executable, __file__, "--use", name, whole], check=True, capture_output=True, text=True)
    print(f"{name:14}{summary['validation']['loss']:8.4f} nats {1000 * seconds / steps:8.1f} ms/step   {written.stdout.strip()!r}")


def main():
    if sys.argv[1:2] == ["--use"]:
        return use(*sys.argv[2:4])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("names", nargs="*", default=["multi-head", *NAMES])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            run(name, arguments.text, arguments.out or pathlib.Path(folder), arguments.steps)


if __name__ == "__main__":
    main()
