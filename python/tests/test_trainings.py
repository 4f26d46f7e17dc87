"""Losses and first steps of taggers, rerankers, embedders, ViTs and balanced classifiers beside transformers, sentence-transformers and torch."""

import json
import pathlib
import sys

import numpy as np
import pytest

import multihead as mh
from small_bert import make_bert

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the fixtures lie in a checkout")
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on a mat red sun sea green night water fire".split()
STEP = dict(dropout=0.0, attention_dropout=0.0, weight_decay=0.0, clip=0.0, optimizer="sgd", lr=0.1, warmup=0, schedule="constant", log_every=1,
            eval_every=0, save_every=0)  # fmt: skip


@pytest.fixture
def bert(tmp_path):
    make_bert(tmp_path / "bert", WORDS)
    return tmp_path


def sentences(count, seed, least=3):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS[5:], rng.integers(least, 7))) for _ in range(count)]


def steps_of(train, folder, init, name, **settings):
    """The losses of three steps of gradient descent on one batch."""
    losses = []
    train(folder / "data", folder / name, init=init, steps=3, callback=lambda event, fields: losses.append(fields["loss"]) if event == "step" else None,
          **{**STEP, **settings})  # fmt: skip
    return losses


def compare(losses, module, loss_of, after, before):
    """The same steps in PyTorch; `after`: our weights by theirs' names."""
    torch = pytest.importorskip("torch")
    assert len(losses) == 3
    module.eval()  # without dropout
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for ours in losses:
        loss = loss_of()
        assert ours == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, theirs in module.state_dict().items():
        moved, expected = after[name] - before[name], theirs - before[name]
        assert (moved - expected).abs().max() <= 1e-5 * max(1, expected.abs().max()), name


@pytest.mark.parametrize("kind", ["pairs", "triplets", "scores", "matryoshka"])
def test_an_embedder_learns_as_with_sentence_transformers(bert, kind):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    columns = [sentences(8, seed) for seed in (1, 2, 3)]
    scores = [0.1 * i for i in (3, 1, 4, 1, 5, 9, 2, 6)]
    rows = zip(columns[0], columns[1], map(str, scores) if kind == "scores" else columns[2])
    rows = [row if kind in ("triplets", "scores") else row[:2] for row in rows]
    (bert / "data").write_text("".join("\t".join(row) + "\n" for row in rows))
    settings = {"matryoshka": "12,5"} if kind == "matryoshka" else {}
    ours = steps_of(mh.train_embedder, bert, bert / "bert", "out", batch=8, chunk=3, **settings)
    model = st.SentenceTransformer(str(bert / "bert"), device="cpu")
    texts = columns[: 3 if kind == "triplets" else 2]
    batch = [getattr(model, "preprocess", model.tokenize)(column) for column in texts]
    loss = losses.CoSENTLoss(model) if kind == "scores" else losses.MultipleNegativesRankingLoss(model)
    torch = pytest.importorskip("torch")
    if kind == "matryoshka":
        loss = losses.MatryoshkaLoss(model, loss, [model.get_embedding_dimension(), 12, 5])
    states = [st.SentenceTransformer(str(bert / name), device="cpu").state_dict() for name in ("out", "bert")]
    compare(ours, model, lambda: loss([dict(b) for b in batch], torch.tensor(scores)), *states)


@pytest.mark.parametrize("ranking", ["pairs", "lists"])
def test_a_reranker_learns_as_with_sentence_transformers(bert, ranking):
    st, torch = pytest.importorskip("sentence_transformers"), pytest.importorskip("torch")
    from sentence_transformers.cross_encoder import losses

    queries, documents, scores = sentences(4, 1), sentences(12, 2), [0.0, 1.0, 0.5, 1.0, 0.0, 0.0, 0.25, 1.0, 0.0, 1.0, 0.0, 0.75]
    (bert / "data").write_text("".join(f"{queries[i // 3]}\t{d}\t{s}\n" for i, (d, s) in enumerate(zip(documents, scores))))
    batch = 12 if ranking == "pairs" else 4
    steps_of(mh.train_reranker, bert, bert / "bert", "first", batch=batch, lr=1e-30)  # makes a head
    ours = steps_of(mh.train_reranker, bert, bert / "first", "out", batch=batch, ranking=ranking)
    model = st.CrossEncoder(str(bert / "first"), device="cpu")
    if ranking == "pairs":
        loss = losses.BinaryCrossEntropyLoss(model)
        inputs = [[q for q in queries for _ in range(3)], documents], torch.tensor(scores)
    else:
        loss = losses.ListNetLoss(model)
        inputs = [queries, [documents[i : i + 3] for i in range(0, 12, 3)]], [torch.tensor(scores[i : i + 3]) for i in range(0, 12, 3)]
    after, before = (st.CrossEncoder(str(bert / name), device="cpu").state_dict() for name in ("out", "first"))
    compare(ours, model, lambda: loss(*inputs), after, before)
    # From text to text, both ways.
    pairs = list(zip(sentences(9, 5), sentences(9, 6)))
    scored = mh.CrossEncoder(bert / "out").predict(pairs)
    theirs = st.CrossEncoder(str(bert / "out"), device="cpu")
    np.testing.assert_allclose(scored, theirs.predict(pairs), atol=1e-5)
    theirs.save_pretrained(str(bert / "back"))
    np.testing.assert_allclose(mh.CrossEncoder(bert / "back").predict(pairs), scored, atol=1e-5)


def test_a_tagger_learns_as_with_transformers(bert):
    tf, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    texts = sentences(6, 1)
    entities = [[{"start": 0, "end": len(t.split()[0]), "label": "A"}] + ([{"start": len(t) - len(" ".join(t.split()[-2:])), "end": len(t), "label": "B"}] if i % 2 else [])
                for i, t in enumerate(texts)]  # fmt: skip
    (bert / "data").write_text("".join(json.dumps({"text": t, "entities": e}) + "\n" for t, e in zip(texts, entities)))
    steps_of(mh.train_tagger, bert, bert / "bert", "first", batch=6, lr=1e-30)
    ours = steps_of(mh.train_tagger, bert, bert / "first", "out", batch=6)
    model = tf.AutoModelForTokenClassification.from_pretrained(bert / "first")
    tokenizer = tf.AutoTokenizer.from_pretrained(bert / "first")
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = torch.full(batch.input_ids.shape, -100)
    for row, own in enumerate(entities):
        for token, word in enumerate(batch.word_ids(row)):
            if word is None:
                continue
            begin, end = batch.token_to_chars(row, token)
            names = [("B-" if begin == e["start"] else "I-") + e["label"] for e in own if e["start"] <= begin and end <= e["end"]]
            labels[row, token] = model.config.label2id[names[0] if names else "O"]
    after, before = (tf.AutoModelForTokenClassification.from_pretrained(bert / name).state_dict() for name in ("out", "first"))
    compare(ours, model, lambda: model(**batch, labels=labels).loss, after, before)


def test_a_vision_transformer_learns_as_with_transformers(tmp_path):
    tf, torch, image = pytest.importorskip("transformers"), pytest.importorskip("torch"), pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(3)
    for i in range(6):
        folder = tmp_path / "data" / "abc"[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (7 + i, 12, 3) if i % 2 else (12, 12)).astype(np.uint8)  # other sizes, grey
        image.fromarray(pixels).save(folder / f"{i}.ppm" if i % 2 else folder / f"{i}.png")
    sizes = dict(image_size=12, patch_size=4, layers=2, heads=2, width=16, batch=6)
    steps_of(mh.train_image_classifier, tmp_path, "", "first", lr=1e-30, **sizes)
    ours = steps_of(mh.train_image_classifier, tmp_path, tmp_path / "first", "out", batch=6)
    files = sorted((tmp_path / "data").rglob("*.p*"))
    processor = tf.AutoImageProcessor.from_pretrained(tmp_path / "first")
    model = tf.AutoModelForImageClassification.from_pretrained(tmp_path / "first")
    pixels = processor([image.open(file).convert("RGB") for file in files], return_tensors="pt").pixel_values
    labels = torch.tensor([model.config.label2id[file.parent.name] for file in files])
    after, before = (tf.AutoModelForImageClassification.from_pretrained(tmp_path / name).state_dict() for name in ("out", "first"))
    compare(ours, model, lambda: model(pixels, labels=labels).loss, after, before)


def test_a_balanced_classifier_learns_as_with_weights(bert):
    tf, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    linear = pytest.importorskip("sklearn.linear_model")
    texts, labels = sentences(10, 1), ["a"] * 6 + ["b"] * 3 + ["c"]
    (bert / "data").write_text("".join(f"{t}\t{y}\n" for t, y in zip(texts, labels)))
    steps_of(mh.train_classifier, bert, bert / "bert", "first", batch=10, lr=1e-30)
    ours = steps_of(mh.train_classifier, bert, bert / "first", "out", batch=10, balanced=True)
    model = tf.AutoModelForSequenceClassification.from_pretrained(bert / "first")
    batch = tf.AutoTokenizer.from_pretrained(bert / "first")(texts, return_tensors="pt", padding=True)
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([10 / 18, 10 / 9, 10 / 3]))
    after, before = (tf.AutoModelForSequenceClassification.from_pretrained(bert / name).state_dict() for name in ("out", "first"))
    compare(ours, model, lambda: loss(model(**batch).logits, torch.tensor(["abc".index(y) for y in labels])), after, before)
    vectors = mh.SentenceEncoder(bert / "bert").encode(texts).astype(np.float64)
    for names in ("abc", "ab"):
        kept = [i for i, y in enumerate(labels) if y in names]
        own = np.array(["abc".index(labels[i]) for i in kept])
        head = mh.train.fit_linear_head(vectors[kept].astype(np.float32), own, len(names), c=2.0, balanced=True)
        theirs = linear.LogisticRegression(C=2.0, tol=1e-10, max_iter=100_000, class_weight="balanced").fit(vectors[kept], own)
        logits = vectors[kept] @ np.asarray(head["weight"]).T + np.asarray(head["bias"])
        scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(scores, theirs.predict_proba(vectors[kept]), atol=2e-5)


def test_saved_models_say_how_they_generate(tmp_path):
    tokenizer = mh.Tokenizer.train_bpe(WORDS, vocab_size=270)
    config = mh.models.LanguageModelConfig(vocab_size=len(tokenizer), context=16, num_layers=1, num_heads=2, embed_dim=8)
    model = mh.models.LanguageModel(config)
    model.save(tmp_path / "alone")
    assert not (tmp_path / "alone/generation_config.json").exists()
    model.save(tmp_path / "whole", tokenizer=tokenizer)
    assert json.loads((tmp_path / "whole/generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_id
    assert mh.TextGenerator(tmp_path / "whole").generate("cat", max_new_tokens=2) is not None
    (tmp_path / "whole/generation_config.json").write_text('{"eos_token_id": 1}')
    model.save(tmp_path / "whole", tokenizer=tokenizer)  # somebody else's stays
    assert json.loads((tmp_path / "whole/generation_config.json").read_text()) == {"eos_token_id": 1}
    translator = mh.models.Seq2SeqConfig(source_vocab_size=9, encoder_layers=1, decoder_layers=1, num_heads=2, embed_dim=8, max_positions=40)
    mh.models.Seq2Seq(translator).save(tmp_path / "translator")
    assert json.loads((tmp_path / "translator/generation_config.json").read_text())["num_beams"] == 4


def test_a_budget_of_time_and_the_best_by_a_figure(bert):
    texts, labels = sentences(60, 1), ["a", "b", "b"] * 20
    (bert / "data").write_text("".join(f"{t}\t{y}\n" for t, y in zip(texts, labels)))
    summary = mh.train_classifier(bert / "data", bert / "out", init=bert / "bert", valid=bert / "data", time="2s", best="macro_f1", batch=4)
    assert summary["progress"]["step"] > 1 and summary["progress"]["seconds"] < 60
    record = json.loads((bert / "out/train_config.json").read_text())["settings"]
    assert record["steps"] == summary["progress"]["step"] and record["time"] == "2s"
    metrics = [json.loads(line) for line in (bert / "out/metrics.jsonl").read_text().splitlines()]
    figures = {m["step"]: m["eval/macro_f1"] for m in metrics if "eval/macro_f1" in m}
    best = summary["progress"]["best_step"]
    assert figures[best] == max(figures.values()) and all(figures[s] < figures[best] for s in figures if s < best)
    assert summary["validation"]["macro_f1"] == pytest.approx(figures[best])
    card = (bert / "out/README.md").read_text()
    assert "base_model: \"bert\"" in card and "| macro_f1 | " in card and "| texts | 60 |" in card
    for bad, why in (({"best": "f2"}, "one of loss, accuracy, macro_f1"), ({"time": "2"}, "90s, 10m or 1h30m"), ({"time": "-1s"}, "must be positive")):
        with pytest.raises(ValueError, match=why):
            mh.train_classifier(bert / "data", bert / "bad", init=bert / "bert", valid=bert / "data", **bad)
    with pytest.raises(ValueError, match="leave preset='tiny' out"):
        mh.train_masked_lm(bert / "data", bert / "bad", init=bert / "bert", preset="tiny")


@pytest.mark.parametrize("with_tqdm", [False, True])
def test_trainings_say_how_far_they_are(tmp_path, monkeypatch, capsys, with_tqdm):
    if with_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    (tmp_path / "text").write_text("the cat sat on the mat. " * 60)
    small = dict(tokenizer="char", steps=3, layers=1, heads=1, width=8, context=8, batch=1, log_every=1)

    def told(**progress):
        mh.train_language_model(tmp_path / "text", tmp_path / "model", overwrite=True, **small, **progress)
        return capsys.readouterr().err

    assert told() == ""  # into a file
    assert "3/3" in told(progress=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    last = [line for line in told().split("\r") if "3/3" in line][-1]
    assert "loss" in last and ("step/s" in last or "steps/s" in last)
    assert told(progress=False) == ""
