"""Heads of classifiers: of one label, several and numbers, trained whole or alone, beside transformers and scikit-learn."""

import json
import pathlib

import numpy as np
import pytest

import multihead as mh
from small_bert import make_bert

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the fixtures lie in a checkout")

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on a mat red sun sea green night water fire".split()
KINDS = {"single_label": {}, "multi_label": {"multi_label": True}, "regression": {"regression": True}}


@pytest.fixture
def bert(tmp_path):
    make_bert(tmp_path / "bert", WORDS)
    return tmp_path


def texts_and_labels(kind, count=40, seed=3):
    """Texts of words of one half or the other, labelled by it."""
    rng = np.random.default_rng(seed)
    halves = WORDS[5:12], WORDS[12:]
    side = rng.integers(0, 2, count)
    texts = [" ".join(rng.choice(halves[s], 5)) for s in side]
    third = rng.integers(0, 3, count)
    labels = {"single_label": [["low", "high", "odd"][s if t else 2] for s, t in zip(side, third)],
              "multi_label": [[["a"], ["b"], ["a", "b"], []][2 * (t == 0) + s] for s, t in zip(side, third)],
              "regression": [float(s) + 0.25 * int(t) for s, t in zip(side, third)]}[kind]
    return texts, labels


def write(path, texts, labels):
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in zip(texts, labels)))
    return path


def as_torch(torch, kind, labels, names):
    if kind == "single_label":
        return torch.tensor([names.index(y) for y in labels])
    if kind == "multi_label":
        return torch.tensor([[float(n in y) for n in names] for y in labels])
    return torch.tensor(labels)[:, None].float()


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_steps_are_those_of_transformers(bert, kind):
    torch, tf = pytest.importorskip("torch"), pytest.importorskip("transformers")
    texts, labels = texts_and_labels(kind)
    write(bert / "data.jsonl", texts, labels)
    whole = dict(batch=len(texts), dropout=0.0, attention_dropout=0.0, weight_decay=0.0, clip=0.0, optimizer="sgd", lr=0.1, warmup=0,
                 schedule="constant", log_every=1, eval_every=0, save_every=0, **KINDS[kind])
    mh.train_classifier(bert / "data.jsonl", bert / "first", init=bert / "bert", steps=1, **{**whole, "lr": 1e-30})  # makes a head
    names = mh.embed.TextClassifier.load(bert / "first").labels
    losses = []
    mh.train_classifier(bert / "data.jsonl", bert / "out", init=bert / "first", steps=4, **whole,
                        callback=lambda event, fields: losses.append(fields["loss"]) if event == "step" else None)
    model = tf.AutoModelForSequenceClassification.from_pretrained(bert / "first")
    assert model.config.problem_type == {"single_label": None, "multi_label": "multi_label_classification", "regression": "regression"}[kind]
    tokenizer = tf.AutoTokenizer.from_pretrained(bert / "first")
    model.eval()  # without dropout
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    for ours in losses:
        loss = model(**batch, labels=as_torch(torch, kind, labels, names)).loss
        assert ours == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = tf.AutoModelForSequenceClassification.from_pretrained(bert / "out").state_dict()
    before = tf.AutoModelForSequenceClassification.from_pretrained(bert / "first").state_dict()
    for name, theirs in model.state_dict().items():  # four steps are four gradients
        moved, expected = after[name] - before[name], theirs - before[name]
        assert (moved - expected).abs().max() <= 1e-5 * max(1, expected.abs().max()), name


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_pipeline(bert, kind):
    texts, labels = texts_and_labels(kind)
    write(bert / "data.jsonl", texts, labels)
    mh.train_classifier(bert / "data.jsonl", bert / "out", init=bert / "bert", steps=5, lr=1e-2, **KINDS[kind])
    ours = mh.embed.TextClassifier.load(bert / "out")
    pipe = pytest.importorskip("transformers").pipeline("text-classification", str(bert / "out"), top_k=None, device="cpu")
    for row, theirs in zip(np.asarray(ours.scores(ours.logits(texts))), pipe(texts)):
        for one in theirs:
            assert abs(row[ours.labels.index(one["label"])] - one["score"]) < 1e-5
    # A model of theirs goes back.
    pipe.model.save_pretrained(bert / "back")
    pipe.tokenizer.save_pretrained(bert / "back")
    np.testing.assert_allclose(np.asarray(mh.embed.TextClassifier.load(bert / "back").logits(texts)), np.asarray(ours.logits(texts)), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("c", [0.1, 10.0])
def test_a_head_alone_is_scikit_learn_s(bert, kind, c):
    linear = pytest.importorskip("sklearn.linear_model")
    texts, labels = texts_and_labels(kind)
    write(bert / "data.jsonl", texts, labels)
    summary = mh.train_classifier(bert / "data.jsonl", bert / "out", init=bert / "bert", head_only=True, head_c=c, **KINDS[kind])
    ours = mh.embed.TextClassifier.load(bert / "out")
    assert summary["labels"] == ours.labels
    vectors = mh.SentenceEncoder(bert / "bert").encode(texts).astype(np.float64)  # scikit-learn computes in f32 otherwise
    logistic = dict(C=c, tol=1e-10, max_iter=100_000)
    if kind == "single_label":
        theirs = linear.LogisticRegression(**logistic).fit(vectors, labels).predict_proba(vectors)
    elif kind == "multi_label":
        theirs = np.stack([linear.LogisticRegression(**logistic).fit(vectors, [name in y for y in labels]).predict_proba(vectors)[:, 1]
                           for name in ours.labels], axis=1)
    else:
        theirs = linear.Ridge(alpha=1 / c, tol=1e-12).fit(vectors, labels).predict(vectors)[:, None]
    np.testing.assert_allclose(np.asarray(ours.scores(ours.logits(texts))), theirs, atol=2e-5)


@pytest.mark.parametrize("labels", [2, 4])
def test_fitted_heads_have_scikit_learn_s_coefficients(labels):
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 8)).astype(np.float32)
    y = (x[:, :labels] + rng.normal(size=(120, labels))).argmax(1)
    head = mh.train.fit_linear_head(x, y, labels, c=0.7)
    theirs = linear.LogisticRegression(C=0.7, tol=1e-10, max_iter=10_000).fit(x.astype(np.float64), y)
    weight, bias = np.asarray(head["weight"]), np.asarray(head["bias"])
    if labels == 2:  # minus and plus half of theirs
        np.testing.assert_allclose(weight[0], -weight[1])
        weight, bias = 2 * weight[1:], 2 * bias[1:]
    np.testing.assert_allclose(weight, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(bias - bias.mean() * (labels > 2), theirs.intercept_ - theirs.intercept_.mean() * (labels > 2), atol=1e-5)
    assert mh.train.fit_linear_head(x, y, labels)["c"] in (0.01, 0.1, 1, 10, 100, 1000)
    with pytest.raises(ValueError, match="problem must be one of"):
        mh.train.fit_linear_head(x, y, labels, problem="ranking")


def test_a_head_alone_is_read_by_sentence_transformers(bert):
    texts, labels = texts_and_labels("single_label")
    write(bert / "data.jsonl", texts, labels)
    mh.train_classifier(bert / "data.jsonl", bert / "out", init=bert / "bert", head_only=True)
    ours = mh.embed.TextClassifier.load(bert / "out")
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(bert / "out"), device="cpu")
    np.testing.assert_allclose(np.asarray(ours.logits(texts)), theirs.encode(texts), atol=1e-4)
    theirs.save(str(bert / "back"))
    back = mh.embed.TextClassifier.load(bert / "back")
    assert back.labels == ours.labels
    np.testing.assert_allclose(np.asarray(back.logits(texts)), np.asarray(ours.logits(texts)), atol=1e-5)


def test_a_head_alone_names_what_it_does_not_use(bert):
    texts, labels = texts_and_labels("single_label")
    write(bert / "data.jsonl", texts, labels)
    for name, value in {"steps": 3, "lr": 0.1, "batch": 4, "freeze": True, "dropout": 0.0}.items():
        with pytest.raises(ValueError, match=f"--{name}"):
            mh.train_classifier(bert / "data.jsonl", bert / "out", init=bert / "bert", head_only=True, **{name: value})
    assert not (bert / "out").exists()
