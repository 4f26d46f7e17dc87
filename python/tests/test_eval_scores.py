"""The figures of `multihead eval` are scikit-learn's, on labels drawn at random."""

import csv
import json
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

import multihead as mh
from small_bert import make_bert

metrics = pytest.importorskip("sklearn.metrics")
BERT = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders" / "bert"
pytestmark = pytest.mark.skipif(not BERT.exists(), reason="the fixtures lie in a checkout")
WORDS = "cat dog sun sea mat night tree bird fish stone".split()


def test_a_classifier(tmp_path):
    rng = random.Random(6)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(200)]
    make_bert(tmp_path / "bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"])
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{text.split()[0]}\n" for text in texts))
    (tmp_path / "test.tsv").write_text("".join(f"{text}\t{rng.choice(WORDS)}\n" for text in texts))
    mh.train_classifier(tmp_path / "train.tsv", tmp_path / "model", init=tmp_path / "bert", steps=20, lr=1e-2)
    said = subprocess.run([sys.executable, "-m", "multihead", "eval", tmp_path / "model", "--data", tmp_path / "test.tsv", "--predictions",
                           tmp_path / "predicted.tsv", "--json"], capture_output=True, text=True, check=True)  # fmt: skip
    report = json.loads(said.stdout)
    with open(tmp_path / "predicted.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    true, predicted = ([row[key] for row in rows] for key in ("label", "predicted"))
    labels = [one["label"] for one in report["labels"]]
    ours = np.array([[one[key] for key in ("precision", "recall", "f1")] for one in report["labels"]]).T
    scores = metrics.precision_recall_fscore_support(true, predicted, labels=labels, zero_division=0)
    np.testing.assert_allclose(ours, scores[:3], rtol=1e-12)
    np.testing.assert_array_equal(report["confusion"], metrics.confusion_matrix(true, predicted, labels=labels))
    assert report["accuracy"] == pytest.approx(metrics.accuracy_score(true, predicted), rel=1e-12)
    assert report["macro_f1"] == pytest.approx(metrics.f1_score(true, predicted, average="macro", zero_division=0), rel=1e-12)
