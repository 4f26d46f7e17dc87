"""Every flag of --help, given to every way of working of every verb: it is refused, or it changes the result.

    tests/cli/flags.py PATH/TO/multihead

What is neither lies in SAME, with the reason. A flag that a way accepts and drops is found the day it is declared.
"""

import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
COMMON = {"quiet", "threads", "float32-matmul-precision", "config", "json"}

TEXT = "the cat sat on a mat and saw nine dogs run home .\nthe red sea at night , a green sun\n" * 30
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on a mat ##s red sun sea green night".split()
FILES = {
    "text.txt": TEXT,
    "special.txt": "<|endoftext|> the cat\n" * 20,
    "lines.txt": "the cat sat on the red mat at night\nred sun\n",
    "quoted.txt": 'label\ttext\n"the cat"\tred sun\n',
    "labels.tsv": "the cat sat on a mat\tlow\nred sun\thigh\nthe dog sat\tlow\ngreen sea at night\thigh\n" * 4,
    "many.tsv": "the cat sat on a mat\tred sun\nthe dog\tgreen sea at night\na mat\tred night\nthe cats\tsea\n",
    "judged.tsv": "the cat\ta mat\t1\nthe cat\tred sun\t0\nthe dog\tgreen sea\t2\nthe dog\ta mat\t0.5\n",
    "tagged.conll": "the O\ncat B-NAME\nsat O\n\nred B-NAME\nsun I-NAME\n",
    "schema.json": '{"type": "object"}',
    "grammar.gbnf": 'root ::= "the" " cat"+',
}
LM = ("--layers 2 --heads 2 --width 16 --ff 20 --context 16 --batch 4 --steps 60 --warmup 5 --eval-every 0 "
      "--lr 0.02 --vocab-size 280")
PAIRS = ("--encoder-layers 1 --decoder-layers 1 --heads 2 --width 16 --ff 20 --batch-tokens 64 --steps 150 "
         "--warmup 10 --eval-every 0 --tokenizer char --lr 0.02 --schedule constant --dropout 0")
TUNED = "--steps 3 --warmup 1 --eval-every 2 --batch 4 --lr 0.01"

# Each way of working, a command that succeeds. {out} is a new path, whose files belong to the result.
WAYS = {
    "language model": "eval lm --data text.txt --context 8",
    "translator": "eval mt --data many.tsv --bleu",
    "classifier of texts": "eval classifier --data labels.tsv",
    "ranks": "eval reranker --data judged.tsv",
    "recall": "eval bert --data many.tsv",
    "correlation": "eval bert --data judged.tsv",
    "entities": "eval tagger --data tagged.conll",
    "classifier of images": "eval vit --data images",
    "texts": "classify classifier --data lines.txt",
    "tagger": "classify tagger --data lines.txt",
    "images": "classify vit --image first.png second.ppm",
    "pairs": "rerank reranker --data lines.txt --query sun",
    "vectors": "embed bert --data lines.txt --out {out}.jsonl",
    "neighbours": "search bert --data lines.txt --query sun",
    "masks": "fill-mask mlm --text 'the [MASK] sat'",
    "continuation": "generate lm --prompt '<|endoftext|>the' --max-new-tokens 20 --temperature 0",
    "samples": "generate lm --prompt '<|endoftext|>the' --max-new-tokens 20 --seed 3",
    "beams": "translate mt --text 'the cats' --n-best 2",
    "sampled": "translate mt --text 'the cats' --sample --n-best 2",
    "ids": "tokenizer encode lm '<|endoftext|> the cat'",
    "places": "tokenizer encode lm '<|endoftext|> the cat' --offsets",
    "tokens": "tokenizer encode lm --data special.txt --out {out}",
    "bpe": "tokenizer train text.txt --out {out} --vocab-size 280",
    "wordpiece": "tokenizer train text.txt --out {out} --kind wordpiece --vocab-size 60",
    "unigram": "tokenizer train text.txt --out {out} --kind unigram --vocab-size 60",
    "characters": "tokenizer train text.txt --out {out} --kind char",
    "words": "tokenizer decode lm 66 67 0",
    "to a folder": "convert lm {out}",
    "to GGUF": "convert lm {out}.gguf",
    "quantised": "quantize lm --out {out} --weights q8",
    "pruned": "prune lm --out {out} --keep-ratio 0.5 --data text.txt",
    "pruned by name": "prune lm --out {out} --heads 0.1",
    "pruned translator": "prune mt --out {out} --keep-ratio 0.5 --data many.tsv",
    "sizes": "info lm",
}
# A value that is not the default, by flag; else by the kind of flag.
VALUES = {
    "format": ["text", "csv", "jsonl"], "image": ["first.png"], "init": ["lm"], "config": [], "data": [], "out": [],
    "json-schema": ["schema.json"], "grammar": ["grammar.gbnf"], "regex": ["(cat|dog) [a-z]+"], "system": ["be kind"],
    "chat-template-kwargs": ['{"a": 1}'], "prompt": ["red"], "prompt-name": ["query"], "query": ["cat"], "stop": ["a"],
    "suppress": ["s e"], "draft": ["lookup"], "prefix-cache": ["{out}.cache"], "logprobs": ["{out}.logprobs"],
    "save-translations": ["{out}.txt"], "predictions": ["{out}.tsv"], "page": ["{out}.html"], "index": ["{out}.npy"],
    "prefix": ["a"], "source-language": ["eng"], "target-language": ["deu"], "last": ["0.3"], "truncate-dim": ["5"],
    "top": ["1", "2"], "keep-ratio": ["0.25", "1"], "keep-units": ["0.5"], "heads": ["0.0"], "kv-heads": ["1"],
    "length-penalty": ["3"], "repetition-penalty": ["5"], "min-new-tokens": ["40"], "beam": ["1", "2"], "top-p": ["0.01"],
    "min-p": ["0.99"], "context": ["5"], "stride": ["3"], "past-context": ["error"], "special": [""], "min-frequency": ["40"], "n-best": ["2", "1"],
    "no-repeat-ngram": ["1"], "max-length": ["3"], "min-length": ["30"], "patience": ["5"], "top-k": ["1"],
    "temperature": ["0.001", "4"], "vocab-size": ["270", "40"], "windows": ["2"], "sequences": ["1"],
    "samples": ["3"], "pairs": ["2"], "seed": ["7", "8"], "text": ["sea"],
}
# Flags that change no result where they are used, and why.
SPEED = "how it is computed"
SAME = {
    "batch": SPEED, "batch-tokens": SPEED, "draft": SPEED, "draft-tokens": SPEED, "overwrite": "what stood there before",
    "weights": "rounding that an answer of words need not show", "weight-dtype": "the same", "kv-cache-dtype": "the same",
    "precision": "the same", "patience": "a longer search may find the same",
    "as-file": "this tokenizer.json neither truncates nor pads", "past-context": "the context is not full", "prefix-cache": "a cache beside the result",
}
# The same of one way.
SAME_IN = {
    ("neighbours", "index"): "a cache", ("neighbours", "truncate-dim"): "two lines in one order",
    ("vectors", "skip-existing"): "the file is not there",
    ("tagger", "stride"): "no text is longer than a window",
    ("beams", "scores"): "of several they are printed anyway", ("sampled", "scores"): "the same",
}


def run(argv, work, name):
    out = work / "out" / name
    argv = [word.replace("{out}", str(out)) for word in argv]
    done = subprocess.run([PROGRAM, *argv, "--threads", "1", "--quiet"], cwd=work, capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, timeout=120)
    digest = hashlib.sha256(done.stdout.replace(str(out), "OUT").encode())
    for path in sorted((work / "out").glob(name + "*")):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.name != "manifest.json":
                digest.update(str(file.relative_to(work / "out")).replace(name, "").encode() + file.read_bytes())
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return done.returncode, digest.hexdigest(), done.stderr.strip()


def keep_first_label(folder):
    """Makes a reranker of a classifier: the first row of its head is all that stays."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data, at = json.loads(raw[8:8 + length]), b"", 0
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        part = raw[8 + length + begin:8 + length + end]
        if name.startswith("classifier."):
            part, info["shape"] = part[:len(part) // info["shape"][0]], [1, *info["shape"][1:]]
        data, info["data_offsets"], at = data + part, [at, at + len(part)], at + len(part)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"], config["label2id"] = {"0": "LABEL_0"}, {"LABEL_0": 0}
    (folder / "config.json").write_text(json.dumps(config))


def make_models(work):
    (work / "out").mkdir()
    for name, content in FILES.items():
        (work / name).write_text(content)
    for name, source in {"bert": "encoders/bert", "mlm": "encoders/bert_masked_lm", "tagger": "encoders/bert_tokens",
                         "vit": "images/vit_classifier"}.items():
        shutil.copytree(DATA / source, work / name)
    for name in "first.png", "second.ppm":
        shutil.copy(DATA / "images" / name, work / name)
    for number, label in enumerate(("cat", "dog")):
        (work / "images" / label).mkdir(parents=True)
        shutil.copy(DATA / "images" / ("first.png", "second.ppm")[number], work / "images" / label)
    for name in "bert", "mlm", "tagger":
        (work / name / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    for line in (["train", "lm", "--data", "text.txt", "--out", "lm", *LM.split()],
                 ["train", "seq2seq", "--data", "many.tsv", "--out", "mt", *PAIRS.split()],
                 ["train", "classifier", "--init", "bert", "--data", "labels.tsv", "--out", "classifier", *TUNED.split()]):
        code, _, error = run(line, work, "model")
        assert code == 0, (line, error)
    shutil.copytree(work / "classifier", work / "reranker")
    keep_first_label(work / "reranker")


def flags_of(verb):
    """Name, kind of value, choices and default, as --help has them."""
    text = subprocess.run([PROGRAM, *verb, "--help"], capture_output=True, text=True, check=True).stdout
    for name, value, about in re.findall(r"^  --([a-z0-9-]+)(?: ([^ ]+))? +(.*)$", text, re.M):
        if name in COMMON:
            continue
        default = (re.findall(r"\[([^\]]*)\]$", about) or [""])[0]
        choices = about.split(" [")[0].rsplit(": ", 1)[-1].split(", ") if value == "NAME" else []
        yield name, value, [c for c in choices if c != default], default


def values_of(name, value, choices):
    if name in VALUES:
        return VALUES[name]
    if choices:
        return choices[-1:]
    return {"": [""], "N": ["3"], "X": ["0.37"], "true|false": ["true", "false"]}.get(value, ["3"])


def main():
    work = pathlib.Path(tempfile.mkdtemp())
    make_models(work)
    jobs, wrong, counts = [], [], {"refused": 0, "has an effect": 0, "changes nothing, as known": 0}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for way, line in WAYS.items():
            argv = shlex.split(line)
            verb = argv[:2] if argv[0] in ("tokenizer", "train") else argv[:1]
            base = pool.submit(run, argv, work, f"base{len(jobs)}-")
            for name, value, choices, default in flags_of(verb):
                if "--" + name in argv and value in ("", "FILE", "DIR"):
                    continue
                for given in values_of(name, value, choices):
                    if argv[argv.index("--" + name) + 1:][:1] == [given] if "--" + name in argv else False:
                        continue
                    if "--" + name in argv:
                        at = argv.index("--" + name)
                        tried = argv[:at] + ["--" + name, given] + argv[at + 2:]
                    else:
                        tried = argv + ["--" + name] + ([given] if given else [])
                    jobs.append((way, name, base, tried, pool.submit(run, tried, work, f"job{len(jobs)}-")))
        effects = {}
        for way, name, base, tried, job in jobs:
            code, digest, error = base.result()
            if code != 0:
                wrong.append(f"{way}: {error}")
            got, other, error = job.result()
            known = name in SAME or (way, name) in SAME_IN
            effect = "refused" if got in (2, 3, 4) else "failed" if got != 0 else "has an effect" if other != digest else "none"
            effects.setdefault((way, name, known), []).append((effect, " ".join(tried), error))
    for (way, name, known), results in effects.items():
        kinds = {effect for effect, _, _ in results}
        if "failed" in kinds:
            wrong.append(f"{way}: --{name} failed: {results}")
        elif kinds != {"none"}:
            counts["refused" if kinds == {"refused"} else "has an effect"] += 1
        elif known:
            counts["changes nothing, as known"] += 1
        else:
            wrong.append(f"{way}: --{name} is accepted and changes nothing: {results[0][1]}")
    shutil.rmtree(work)
    print(f"{len(jobs)} command lines: {counts}")
    for line in sorted(set(wrong)):
        print("FAIL:", line)
    return 1 if wrong else 0


sys.exit(main())
