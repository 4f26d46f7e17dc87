"""Hugging Face's libraries read the model that the demo trains: same ids, same logits."""

import os

import numpy as np
import pytest

import multihead as mh

LINES = [
    "It was a truth universally acknowledged, that a single man",
    "  two spaces, a\ttab\n\n\nand lines; it's, they'll, WE'RE, 1234567 890.5%",
    "na\u00efve caf\u00e9 \u2014 \u201cquoted\u201d \u4f60\u597d \u0939\u093f\u0928\u094d\u0926\u0940 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301",
    " ",
    "\n",
    "a",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of the demo's preset, briefly trained; MULTIHEAD_MODEL names a folder to take instead."""
    if "MULTIHEAD_MODEL" in os.environ:
        return os.environ["MULTIHEAD_MODEL"]
    root = tmp_path_factory.mktemp("demo")
    words = "the cat sat on a mat and saw nine dogs run home".split()
    choice = np.random.default_rng(1).integers(0, len(words), 6000)
    (root / "text.txt").write_text(" ".join(words[i] for i in choice))
    mh.train_language_model(root / "text.txt", str(root / "run"), preset="tiny", steps=12, eval_every=0)
    return str(root / "run")


def test_ids_are_those_of_tokenizers(folder):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    ours = mh.Tokenizer.load(folder)
    theirs = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    for line in LINES:
        ids = ours.encode(line)
        assert ids == theirs.encode(line).ids == auto(line)["input_ids"], line
        assert theirs.decode(ids) == line == ours.decode(ids)


def test_logits_are_those_of_transformers(folder, rng):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = mh.models.LanguageModel.load(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    text = mh.Tokenizer.load(folder).encode(LINES[0])[: model.config.context]
    noise = rng.integers(0, model.config.vocab_size, (5, model.config.context))
    worst = 0.0
    for tokens in (np.array([text]), noise):
        with torch.no_grad():
            want = theirs(torch.from_numpy(tokens)).logits.numpy()
        got = np.asarray(model(tokens))
        assert np.abs(want).max() > 0.5
        worst = max(worst, float(np.abs(got - want).max()))
    print(f"largest difference of a logit: {worst:.2g}")
    assert worst <= 1e-4
