"""Wrong data files: every kind of training names the file and the line, exits with 3 and writes nothing.

    tests/cli/wrong_data.py PATH/TO/multihead

Each file is given as the training data and, where the kind takes such, as the validation data beside good ones.
"""

import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on a mat ##s red sun sea green night".split()
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

# What training needs of a kind, and data that it takes.
KINDS = {
    "classifier": ("--init bert", "good.tsv", "the cat\tlow\nred sun\thigh\n" * 20),
    "tagger": ("--init bert", "good.conll", "the O\ncat B-NAME\n\nred B-NAME\n\n" * 20),
    "embedder": ("--init bert --batch 2", "good.tsv", "the cat\tred sun\nthe dog\tgreen sea\n" * 20),
    "reranker": ("--init bert", "good.tsv", "the cat\tred sun\t1\nthe cat\tgreen sea\t0\n" * 20),
    "seq2seq": ("--width 16 --heads 2 --tokenizer char", "good.tsv", "ab\tAB\nba\tBA\n" * 20),
    "lm": ("--init chat", "good.jsonl", '{"prompt": "the cat", "completion": "sat"}\n' * 20),
}
SHORT = "--steps 1 --warmup 0 --quiet --threads 1"

# Kind, ending of the file's name, its content, the line that is wrong, further flags.
FILES = [
    ("classifier", "tsv", "the cat\n", 1),
    ("classifier", "tsv", "the cat\tlow\nred sun\thigh\nsea\n", 3),
    ("classifier", "tsv", "the cat\tlow\nred sun\t\n", 2),
    ("classifier", "tsv", "the cat\tlow\n\nred sun\t \n", 3),
    ("classifier", "tsv", "the cat\tlow\nred\tsun\tsea\thigh\n", 2),
    ("classifier", "tsv", "text\tlabel\tlabels\nthe cat\tlow\tlow\n", 1),
    ("classifier", "tsv", b"the cat\tlow\nred \xff sun\thigh\n", 2),
    ("classifier", "tsv", '"text"\t"label"\n"the cat"\t"low"\n', 1),
    ("classifier", "tsv", 'the cat\tlow\n"the ""red"" sun"\thigh\n', 2),
    ("classifier", "csv", 'the cat,low\n"red sun,high\nsea,low\n', 2),
    ("classifier", "csv", 'the cat,low\n"red" sun,high\n', 2),
    ("classifier", "csv", 'text,label\n"the\ncat",low\nred sun,high,sea\n', 4),
    ("classifier", "jsonl", '{"text": "the cat", "label": "low"}\n{"text": "red sun"\n', 2),
    ("classifier", "jsonl", '{"text": "the cat", "label": "low"}\n["red sun", "high"]\n', 2),
    ("classifier", "jsonl", '{"text": "the cat", "label": "low"}\n{"text": "red sun"}\n', 2),
    ("classifier", "jsonl", '{"text": "the cat", "label": "low"}\n{"text": 7, "label": "high"}\n', 2),
    ("classifier", "jsonl", '{"text": "the cat", "label": "low"}\n{"text": "red sun", "label": {"a": 1}}\n', 2),
    ("classifier", "tsv", "the cat\t1.5\nred sun\tmuch\n", 2, "--regression true"),
    ("classifier", "tsv", "the cat\t1.5\nred sun\tinf\n", 2, "--regression true"),
    ("classifier", "jsonl", '{"text": "the cat", "label": ["low"]}\n{"text": "red sun", "label": [1.5]}\n', 2, "--multi-label true"),
    ("classifier", "jsonl", '{"text": "the cat", "labels": [-1, 2]}\n{"text": "red sun", "labels": [true]}\n', 2, "--multi-label true"),
    ("tagger", "conll", "the O\ncat NAME\n", 2),
    ("tagger", "conll", "the\tO\ncat B-NAME\n", 2),
    ("tagger", "conll", "the O\n# text = cat O\n", 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"text": "the cat", "entities": [{"start": 3, "end": 4, "label": "N"}]}\n', 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"text": "the cat", "entities": [{"start": 0, "end": 3, "label": "O"}]}\n', 2),
    ("tagger", "conll", "the O\ncat\n", 2),
    ("tagger", "conll", "the O\ncat B-\n", 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"text": "the cat", "entities": [{"start": 4, "end": 9, "label": "N"}]}\n', 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"text": "the cat", "entities": [{"start": 4, "end": 4, "label": "N"}]}\n', 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"text": "the cat", "entities": [{"start": -1, "end": 3, "label": "N"}]}\n', 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"text": "the cat", "entities": [{"start": 0, "end": 3}]}\n', 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"text": "the cat", "entities": [{"start": 0, "end": 7, "label": "N"}, '
     '{"start": 4, "end": 7, "label": "M"}]}\n', 2),
    ("tagger", "jsonl", '{"text": "the cat", "entities": []}\n{"entities": []}\n', 2),
    ("embedder", "tsv", "the cat\tred sun\nthe dog\n", 2),
    ("embedder", "tsv", "the cat\tred sun\nthe dog\ta\tb\tc\n", 2),
    ("embedder", "tsv", "the cat\tred sun\n\tgreen sea\n", 2),
    ("embedder", "tsv", "the cat\tred sun\t0.5\nthe dog\tgreen sea\tmuch\n", 2),
    ("embedder", "tsv", "the cat\tred sun\t0.5\nthe dog\tgreen sea\tnan\n", 2),
    ("embedder", "tsv", "query\tdocument\tnegative\nthe cat\tred sun\t\n", 2),
    ("embedder", "jsonl", '{"query": "the cat", "document": "red sun"}\n{"query": "the dog"}\n', 2),
    ("reranker", "tsv", "the cat\tred sun\t1\nthe cat\tgreen sea\t2\n", 2),
    ("reranker", "tsv", "the cat\tred sun\t1\nthe cat\tgreen sea\t-0.5\n", 2),
    ("reranker", "tsv", "the cat\tred sun\t1\nthe cat\tgreen sea\n", 2),
    ("reranker", "jsonl", '{"query": "the cat", "document": "red sun", "score": 1}\n{"query": "the cat", "document": "sea", "score": "x"}\n', 2),
    ("seq2seq", "tsv", "ab\tAB\nba\n", 2),
    ("seq2seq", "tsv", "ab\tAB\nba\tBA\tB\n", 2),
    ("seq2seq", "tsv", "ab\tAB\nba\t\n", 2),
    ("seq2seq", "csv", 'source,target\nab,"AB"A\n', 2),
    ("seq2seq", "jsonl", '{"source": "ab", "target": "AB"}\n{"source": "ba", "target": null}\n', 2),
    ("seq2seq", "jsonl", '{"source": "ab", "target": "AB"}\nnull\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"prompt": "the"}\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"prompt": "the", "completion": 3}\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"prompt": "the", "completion"\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"messages": []}\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"messages": [{"role": "user", "content": "the cat"}]}\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"messages": [{"content": "the cat"}]}\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"messages": "the cat"}\n', 2),
    ("lm", "jsonl", '{"prompt": "the", "completion": "cat"}\n{"words": "the cat"}\n', 2),
    ("lm", "txt", b"the cat\nsat \xff on a mat\n" * 20, 2),
]  # fmt: skip


def run(work, line):
    return subprocess.run([PROGRAM, *line.split()], cwd=work, capture_output=True, text=True)


def make_models(work):
    shutil.copytree(DATA / "encoders/bert", work / "bert")
    (work / "bert/vocab.txt").write_text("\n".join(WORDS) + "\n")
    (work / "text.txt").write_text("the red cat sat on a mat\na green sea at night\n" * 60)
    made = run(work, f"train lm --data text.txt --out chat --layers 1 --heads 2 --width 16 --context 16 --vocab-size 280 {SHORT}")
    assert made.returncode == 0, made.stderr
    (work / "chat/chat_template.jinja").write_text(TEMPLATE)
    for kind, (_, name, content) in KINDS.items():
        (work / kind).mkdir()
        (work / kind / name).write_text(content)
        made = run(work, f"train {kind} {KINDS[kind][0]} --data {kind}/{name} --valid {kind}/{name} --out {kind}/model {SHORT}")
        assert made.returncode == 0, (kind, made.stderr)


def tries(work):
    for number, (kind, ending, content, line, *flags) in enumerate(FILES):
        file = work / kind / f"wrong{number}.{ending}"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        init, good, _ = KINDS[kind]
        wrong, out = f"{kind}/{file.name}", f"out{number}"
        command = f"train {kind} {init} --out {out} {SHORT} {' '.join(flags)}"
        yield f"{command} --data {wrong}", out, wrong, line
        if not flags and good.rsplit(".")[1] == ending:
            yield f"{command.replace(out, out + 'v')} --data {kind}/{good} --valid {wrong}", out + "v", wrong, line


def complaint(work, command, out, wrong, line):
    got = run(work, command)
    said = got.stderr.strip()
    names_file = pathlib.Path(wrong).name in said or "training data" in said or "validation data" in said
    if got.returncode != 3 or f"line {line}" not in said or not names_file or "\n" in said:
        return f"{command}: exit {got.returncode}, expected 3 and line {line}: {said[:400]}"
    if re.search(r"line \d+: line", said):
        return f"{command}: two numbers of lines: {said[:400]}"
    if (work / out).exists():
        return f"{command}: left {out}"
    if got.stdout:
        return f"{command}: wrote {got.stdout[:100]}"
    return None


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        make_models(work)
        all_tries = list(tries(work))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            wrong = [c for c in pool.map(lambda one: complaint(work, *one), all_tries) if c]
    print("\n".join(wrong))
    print(f"{len(FILES)} wrong files in {len(all_tries)} places: {len(wrong)} failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
