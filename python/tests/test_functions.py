"""Fused functions, attention's relatives, files, runs and decoding states: each against what it stands for."""

import numpy as np
import pytest

import multihead as mh
from multihead import io, models, nn, text, train


def tensors(rng, *shapes):
    return [rng.standard_normal(shape).astype("f4") for shape in shapes]


def close(a, b, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tolerance, rtol=tolerance)


def test_fused_functions_are_their_parts(rng):
    x, r = tensors(rng, (5, 7, 6), (5, 7, 6))
    w, b = tensors(rng, (6,), (6,))
    for name in ("relu", "gelu", "gelu_tanh", "silu"):
        f = getattr(mh, name)
        close(mh.activate(x, name), f(x), 0)
        close(mh.gated(x, r, name), np.asarray(f(x)) * r)
        close(mh.glu(np.concatenate([x, r], -1), name), np.asarray(f(x)) * r)
        kept = np.asarray(mh.activate_dropout(x, name, 0.25, mh.Rng(3)))
        close(kept, mh.dropout(f(x), 0.25, mh.Rng(3)))
    close(mh.add_dropout(r, x, 0.25, mh.Rng(3)), r + np.asarray(mh.dropout(x, 0.25, mh.Rng(3))))
    close(mh.add_dropout(r, x, 0.25), r + x, 0)
    total, normed = mh.add_layer_norm(x, r, w, b)
    close(total, x + r, 0), close(normed, mh.layer_norm(x + r, w, b))
    total, normed = mh.add_rms_norm(x, r, w)
    close(total, x + r, 0), close(normed, mh.rms_norm(x + r, w))
    close(mh.scale(x, 2.5), x * 2.5), close(mh.add_scalar(x, 2.5), x + 2.5), close(mh.neg(x), -x, 0)
    head, targets = tensors(rng, (11, 6))[0], rng.integers(0, 11, (5, 7))
    targets[0, 0] = -100
    for reduction in ("mean", "sum"):
        want = mh.cross_entropy(x @ head.T, targets, label_smoothing=0.1, reduction=reduction)
        close(mh.linear_cross_entropy(x, head, targets, label_smoothing=0.1, reduction=reduction), want, 1e-5)
    close(mh.rotary_frequencies(8), 10000.0 ** (-np.arange(4) / 4), 1e-12)
    scaling = mh.RotaryScaling(kind="linear", factor=4.0)
    close(mh.rotary_frequencies(8, scaling=scaling), 10000.0 ** (-np.arange(4) / 4) / 4, 1e-12)
    assert scaling.kind == "linear" and scaling != mh.RotaryScaling() and mh.rotary_amplitude(scaling) == 1
    with pytest.raises(ValueError, match="original_context"):
        mh.rotary_table(3, 8, scaling=mh.RotaryScaling(kind="yarn", factor=2.0))
    with pytest.raises(ValueError, match="'gelu'"):
        mh.activate(x, "tan")
    with pytest.raises(mh.DtypeError, match="cos and sin must be f32, whatever they rotate, got f64 and f64"):
        mh.RotaryTable(np.ones((1, 3, 2)), np.zeros((1, 3, 2)))
    with pytest.raises(mh.ShapeError, match="RotaryTable: cos and sin must be .B or 1, T, R/2."):
        mh.RotaryTable(np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32))


def test_shapes_are_numpys(rng):
    (x,) = tensors(rng, (3, 5, 7))
    close(mh.transpose(x, 0, 2), x.swapaxes(0, 2), 0)
    for axes in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [-1, 1, 0]):
        close(mh.permute(x, axes), x.transpose(axes), 0)
    close(mh.slice(x, 1, 1, 4), x[:, 1:4], 0)
    for ours, theirs in zip(mh.split(x, [1, 4, 2], 2), np.split(x, [1, 5], 2)):
        close(ours, theirs, 0)
    close(mh.reshape(x, (15, -1)), x.reshape(15, 7), 0)
    close(mh.expand(x[:, :1], (3, 4, 7)), np.broadcast_to(x[:, :1], (3, 4, 7)), 0)
    assert mh.cast(x, "float64").dtype == "float64" and mh.contiguous(mh.transpose(x, 0, 1)).is_contiguous
    for wrong in ([0, 1], [0, 0, 1], [0, 1, 3]):
        with pytest.raises(mh.ShapeError, match="permute"):
            mh.permute(x, wrong)


def test_attentions_relatives(rng):
    q, k, v = tensors(rng, (2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    words = dict(mask=mh.causal() & mh.lengths([9, 5]), softcap=3.0, alibi_slopes=mh.alibi_slopes(4))
    out, lse = mh.attention(q, k, v, return_lse=True, **words)
    composed, composed_lse = mh.attention_composed(q, k, v, return_lse=True, **words)
    close(out, composed, 5e-6), close(lse, composed_lse, 5e-6)
    joined = np.concatenate([x.swapaxes(1, 2).reshape(2, 9, -1) for x in (q, k, v)], -1)
    close(mh.attention_packed(joined, 4, 2, **words), np.asarray(out).swapaxes(1, 2).reshape(2, 9, -1), 5e-6)

    parts = [mh.attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 4), slice(4, 9))]
    merged, merged_lse = mh.merge_attention(*parts[0], *parts[1])
    whole, whole_lse = mh.attention(q, k, v, return_lse=True)
    close(merged, whole, 2e-6), close(merged_lse, whole_lse, 2e-6)

    rows = [x.swapaxes(1, 2).reshape(18, -1, 8) for x in (q, k, v)]
    ends = np.array([0, 9, 18])
    ragged, ragged_lse = mh.attention_ragged(*rows, ends, ends, return_lse=True, **words)
    close(np.asarray(ragged).reshape(2, 9, 4, 8).swapaxes(1, 2), out, 5e-6)
    close(np.asarray(ragged_lse).reshape(4, 2, 9).swapaxes(0, 1), lse, 5e-6)

    said = mh.plan(9, 8, batch=2, heads=4, kv_heads=2, mask=mh.causal(), dropout_p=0.1, rng=mh.Rng(1))
    assert "causal" in said and "0.1" in said
    assert mh.plan(9, 8, batch=2, heads=4, kv_heads=2, **words) == mh.explain(q, k, v, **words)
    with pytest.raises(mh.ShapeError):
        mh.plan(9, 8, heads=3, kv_heads=2)


def test_positions(rng):
    (x,) = tensors(rng, (2, 5, 6))
    encoding = nn.SinusoidalPositionalEncoding(6)
    close(encoding(x), x + np.asarray(nn.sinusoidal_positions(5, 6)))
    close(encoding(x, [3, 0])[0], x[0] + np.asarray(nn.sinusoidal_positions(5, 6, 3)))
    assert (np.asarray(nn.SinusoidalPositionalEncoding(6, dropout_p=0.5)(x, rng=mh.Rng(1))) == 0).any()
    assert np.asarray(nn.position_ids(2, 3, [0, 4])).tolist() == [[0, 1, 2], [4, 5, 6]]


def test_texts_and_scores(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("ein hut\ta hat\nzwei\ttwo\n", encoding="utf-8")
    assert text.read_pairs(path) == (["ein hut", "zwei"], ["a hat", "two"])
    assert text.read_text(path).startswith("ein hut")
    path.write_bytes(b"one column\n")
    with pytest.raises(mh.FormatError, match="line 1"):
        text.read_pairs(path)
    path.write_bytes(b"\xff")
    with pytest.raises(mh.FormatError):
        text.read_text(path)
    training, validation = text.split_corpus("ä" * 100, validation=0.2, blocks=2)
    assert sum(map(len, training)) == 80 and [len(x) for x in validation] == [10, 10]
    said = ["the cat sat on the mat", "a dog"]
    assert text.bleu(said, said)["score"] == pytest.approx(100) and text.chrf(said, said) == pytest.approx(100)
    score = text.bleu(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert score["correct"] == [5, 3, 2, 1] and score["total"] == [6, 5, 4, 3] and score["brevity_penalty"] == 1
    sacrebleu = pytest.importorskip("sacrebleu")
    assert score["score"] == pytest.approx(sacrebleu.corpus_bleu(["the cat sat on a mat"], [said[:1]]).score)


def test_checkpoints(tmp_path, rng):
    folder = str(tmp_path)
    state = {"weight": tensors(rng, (3, 4))[0]}
    for step in (1, 2, 3):
        path = io.save_checkpoint(folder, step, {"model.safetensors": state}, {"state.json": f"{step}"})
    found, files = io.load_checkpoint(path)
    close(found["model.safetensors"]["weight"], state["weight"], 0)
    assert files["state.json"] == b"3"
    assert io.prune_checkpoints(folder, keep_newest=1, steps=[1]) == [2]
    assert [c["step"] for c in io.list_checkpoints(folder)] == [1, 3]
    assert io.newest_checkpoint(folder)["step"] == 3 and io.newest_checkpoint(folder + "/none") is None
    (tmp_path / "checkpoint-3" / "state.json").write_text("33")
    with pytest.raises(mh.FormatError, match="state.json"):
        io.verify_checkpoint(path)
    with pytest.raises(mh.FormatError, match="state.json"):
        io.newest_checkpoint(folder)
    assert io.newest_checkpoint(folder, "fall_back")["step"] == 1


@pytest.fixture(scope="module")
def language_model():
    config = models.LanguageModelConfig(
        vocab_size=31, context=32, num_layers=2, num_heads=2, embed_dim=16, positions="rotary"
    )
    return models.LanguageModel(config, rng=mh.Rng(5))


def test_decoding_states(language_model, tmp_path, rng):
    model, tokens = language_model, rng.integers(0, 31, (2, 9))
    whole = np.asarray(model(tokens))
    state = model.make_state(2, 12)
    assert state.batch == 2 and state.capacity == 12 and state.nbytes == model.state_bytes(2, 12)
    first = np.asarray(model(tokens[:, :4], state=state))
    fork = state.fork()
    rest = np.concatenate([np.asarray(model(tokens[:, i : i + 1], state=state)) for i in range(4, 9)], 1)
    np.testing.assert_array_equal(np.concatenate([first, rest], 1), whole)
    assert list(state.lengths) == [9, 9] and list(fork.lengths) == [4, 4] and state.room == 3
    path = str(tmp_path / "state.safetensors")
    models.save_state(path, fork, model)
    loaded = models.load_state(path, model)
    np.testing.assert_array_equal(np.asarray(model(tokens[:, 4:], state=loaded)), whole[:, 4:])
    fork.reorder([1, 0])
    np.testing.assert_array_equal(np.asarray(model(tokens[::-1, 4:], state=fork)), whole[::-1, 4:])
    state.truncate(4)
    np.testing.assert_array_equal(np.asarray(model(tokens[:, 4:], state=state)), whole[:, 4:])
    ragged = model.make_state(2)
    model(tokens, state=ragged, counts=[3, 9])
    assert list(ragged.lengths) == [3, 9]
    ragged.clear(1)
    assert list(ragged.lengths) == [3, 0]
    np.testing.assert_array_equal(np.asarray(model.logits(model.features(tokens))), whole)
    assert model.state_bytes(2, 12, dtype="bfloat16") * 2 == model.state_bytes(2, 12) and model.longest == 32
    with pytest.raises(ValueError):
        model(tokens, state=model.make_state(2, 8))


def test_evaluation_and_checks(language_model, rng):
    tokens = rng.integers(0, 31, 33)
    loss = train.evaluate(language_model, tokens, context=32)
    want = float(language_model.loss(tokens[None, :-1], tokens[None, 1:]))
    assert loss["tokens"] == 32 and loss["loss"] == pytest.approx(want, rel=1e-5)
    assert loss["perplexity"] == pytest.approx(np.exp(want), rel=1e-5)
    seen = []
    results = train.check_language_model(language_model, length=8, on_result=seen.append)
    assert results == seen and all(r["passed"] for r in results), results
    assert {"causality", "cache", "gradient", "overfit"} <= {r["name"] for r in results}
    assert len(language_model.generate([1, 2], max_new_tokens=3, cache_dtype="bfloat16")) == 3
    assert len(language_model.generate([1, 2], max_new_tokens=3, cache_dtype="int8")) == 3
    sizes = {dtype: language_model.state_bytes(1, 64, dtype=dtype) for dtype in ("float32", "bfloat16", "int8")}
    head = language_model.config.embed_dim // language_model.config.num_heads
    assert sizes["float32"] == 2 * sizes["bfloat16"]
    assert sizes["int8"] * 4 * head == sizes["float32"] * (head + 4)
    with pytest.raises(Exception, match="floating or 'int8'"):
        language_model.make_state(dtype="int32")
    encoder = models.Encoder(models.EncoderConfig(vocab_size=40, num_layers=2, num_heads=2, embed_dim=16))
    results = train.check_encoder(encoder, length=8)
    assert [r["name"] for r in results] == ["finite", "context", "batch invariance", "threads"]
    assert all(r["passed"] for r in results), results


def test_training_a_translator(tmp_path):
    data = tmp_path / "pairs.tsv"
    words = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
    lines = [f"{a} {b}\t{x} {y}\n" for a, x in words.items() for b, y in words.items()]
    data.write_text("".join(lines * 8))
    told = []
    summary = train.train_seq2seq(
        data, tmp_path / "run", valid=data, steps=12, vocab_size=300, eval_every=6,
        callback=lambda event, fields: told.append((event, fields)),
    )  # fmt: skip
    assert summary["pairs"] == 128, summary
    assert {"start", "step", "evaluation"} <= {event for event, _ in told}
    translator = models.Translator.load(str(tmp_path / "run"))
    tokens = translator.source_tokenizer.encode("eins zwei")
    searched = translator.model.beam_search([tokens], max_length=9)[0][0][0]
    begun = translator.model.beam_search([tokens], max_length=9, prefixes=[searched[:1]])[0][0][0]
    assert begun[:1] == searched[:1]
    other = translator.model.beam_search([tokens], max_length=9, min_length=4, suppress=[searched[:1]])[0][0][0]
    assert len(other) >= 4 and searched[0] not in other
    draw = dict(beam_size=1, sample=True, temperature=2.0, max_length=9, num_hypotheses=3)
    drawn = translator.model.beam_search([tokens], seed=1, **draw)
    assert drawn == translator.model.beam_search([tokens], seed=1, **draw)
    assert drawn != translator.model.beam_search([tokens], seed=2, **draw)
    for options, message in [
        (dict(temperature=2.0), "need sample=True"), (dict(sample=True, beam_size=3), "no effect with sample=True"),
        (dict(prefixes=[[1, 2, 3]], max_length=2), "a prefix of 3 tokens exceeds max_length 2"),
        (dict(prefixes=[[1, 2, 3]], max_length=2, alternatives=True), "exceeds max_length 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            translator.model.beam_search([tokens], **options)
    with pytest.raises(ValueError, match="one per sentence"):
        translator.model.beam_search([tokens], prefixes=[[1], [2]])
    with pytest.raises(TypeError, match="unknown setting 'widht'; the nearest is width; all are: .*epochs"):
        train.train_seq2seq(data, tmp_path / "other", widht=3)
    assert train.seq2seq_settings("tiny")["encoder_layers"] == 2
    results = train.check_translator(translator.model, length=8)
    assert all(r["passed"] for r in results), results
