"""multihead.attention on NumPy arrays: values, masks, errors."""

import numpy as np
import pytest

import multihead as mh


def qkv(rng, b=2, h=4, hkv=2, tq=7, tk=11, d=8, dv=5, dtype="f4"):
    return (
        rng.standard_normal((b, h, tq, d)).astype(dtype),
        rng.standard_normal((b, hkv, tk, d)).astype(dtype),
        rng.standard_normal((b, hkv, tk, dv)).astype(dtype),
    )


def masks(rng, tq=7, tk=11):
    i, j = np.arange(tq)[:, None], np.arange(tk)[None]
    flags = rng.random((2, 1, tq, tk)) < 0.6
    lens = np.array([3, 11])
    return {
        "none": (None, None),
        "causal": (mh.causal(), j <= i + tk - tq),
        "causal start": (mh.causal("start"), j <= i),
        "causal offset": (mh.causal(2), j <= i + 2),
        "window": (mh.window(2, 1, "start"), (j >= i - 2) & (j <= i + 1)),
        "keep": (mh.keep(flags), flags),
        "drop": (mh.drop(flags), ~flags),
        "lengths": (mh.lengths(lens), (j < lens[:, None, None])[:, None]),
        "composed": (mh.causal("start") & mh.lengths(lens), (j <= i) & (j < lens[:, None, None])[:, None]),
        "traced": (mh.mask_mod(lambda b, h, q, k: (q >= k) | (k < 2)), (i + tk - tq >= j) | (j < 2)),
        "traced captured": (mh.mask_mod(lambda b, h, q, k: k < lens[b]), (j < lens[:, None, None])[:, None]),
    }


@pytest.mark.parametrize("dtype, tolerance", [("f4", 2e-6), ("f8", 1e-13), ("f2", 2e-3)])
def test_values_under_every_mask(rng, attention_reference, dtype, tolerance):
    q, k, v = qkv(rng, dtype=dtype)
    for name, (mask, allowed) in masks(rng).items():
        out = np.asarray(mh.attention(q, k, v, mask=mask))
        assert out.dtype == q.dtype
        np.testing.assert_allclose(out, attention_reference(q, k, v, allowed), rtol=0, atol=tolerance, err_msg=name)


def test_scores(rng, attention_reference):
    q, k, v = qkv(rng, hkv=4)
    bias = rng.standard_normal((4, 7, 11)).astype("f4")
    i, j = np.arange(7)[:, None], np.arange(11)[None]
    slopes = np.asarray(mh.alibi_slopes(4))
    for ours, expected in [
        (mh.attention(q, k, v, scale=0.3), attention_reference(q, k, v, scale=0.3)),
        (mh.attention(q, k, v, softcap=1.5), attention_reference(q, k, v, softcap=1.5)),
        (mh.attention(q, k, v, bias=bias), attention_reference(q, k, v, bias=bias)),
        (
            mh.attention(q, k, v, alibi_slopes=slopes, mask=mh.causal()),
            attention_reference(q, k, v, j <= i + 4, -slopes[:, None, None] * abs(i + 4 - j)),
        ),
        (
            mh.attention(q, k, v, score_mod=mh.score_mod(lambda s, b, h, q, k: s - slopes[h] * abs(q - k))),
            attention_reference(q, k, v, None, -slopes[:, None, None] * abs(i + 4 - j)),
        ),
        (
            mh.attention(q, k, v, score_mod=mh.score_mod(lambda s, b, h, q, k: 2.0 * np.tanh(s / 2.0))),
            attention_reference(q, k, v, softcap=2.0),
        ),
    ]:
        np.testing.assert_allclose(np.asarray(ours), expected, atol=3e-6)


def test_scale_of_float64(rng, attention_reference):
    q, k, v = qkv(rng, dtype="f8")
    ours = np.asarray(mh.attention(q, k, v, scale=0.3))
    np.testing.assert_allclose(ours, attention_reference(q, k, v, scale=0.3), rtol=0, atol=1e-14)


def test_sinks_are_scores_of_no_key(rng):
    q, k, v = qkv(rng, dtype="f8")
    sinks = mh.tensor(rng.standard_normal(4), requires_grad=True)
    key, value = (np.repeat(x, 2, axis=1) for x in (k, v))
    scores = q @ key.swapaxes(2, 3) / np.sqrt(8)
    extended = np.concatenate([scores, np.broadcast_to(np.asarray(sinks.detach())[:, None, None], (2, 4, 7, 1))], 3)
    weights = np.exp(extended - extended.max(3, keepdims=True))
    weights /= weights.sum(3, keepdims=True)
    with mh.Tape() as tape:
        out = mh.attention(q, k, v, sinks=sinks)
        tape.backward(mh.sum(out))
    np.testing.assert_allclose(np.asarray(out), weights[..., :-1] @ value, atol=1e-13)
    want = -(weights[..., -1] * np.asarray(out).sum(3)).sum((0, 2))
    np.testing.assert_allclose(np.asarray(sinks.grad), want, atol=1e-12)
    with pytest.raises(mh.ShapeError, match=r"sinks must be \[H=4\]"):
        mh.attention(q, k, v, sinks=np.zeros(3))


def test_layouts_strides_and_no_copies(rng):
    q, k, v = qkv(rng, h=2, hkv=2)
    want = np.asarray(mh.attention(q, k, v))
    t = lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(np.asarray(mh.attention(t(q), t(k), t(v), layout="bthd")).transpose(0, 2, 1, 3), want)
    strided = mh.attention(t(q).transpose(0, 2, 1, 3), t(k).transpose(0, 2, 1, 3), v)
    np.testing.assert_array_equal(np.asarray(strided), want)
    flipped = mh.attention(q[..., ::-1], k[..., ::-1], v)
    np.testing.assert_allclose(np.asarray(flipped), want, atol=1e-6)


def test_gradients_match_differences_of_the_reference(rng, attention_reference):
    q, k, v = qkv(rng, dtype="f8")
    weight = rng.standard_normal((2, 4, 7, 5))
    x = [mh.tensor(a.copy(), requires_grad=True) for a in (q, k, v)]
    slope = np.array([0.1, 0.2, 0.3, 0.4])
    mod = mh.score_mod(lambda s, b, h, q, k: np.tanh(s) * 2 + np.where(q > k, s * slope[h], 0.0))
    with mh.Tape() as tape:
        loss = mh.sum(mh.attention(*x, mask=mh.causal(), score_mod=mod) * mh.tensor(weight))
        tape.backward(loss)
    arrays, step = [q, k, v], 1e-6
    for which in range(3):
        for _ in range(6):
            at = tuple(rng.integers(0, n) for n in arrays[which].shape)
            values = []
            for sign in (1, -1):
                changed = [a.copy() for a in arrays]
                changed[which][at] += sign * step
                values.append((np.asarray(mh.attention(*changed, mask=mh.causal(), score_mod=mod)) * weight).sum())
            difference = (values[0] - values[1]) / (2 * step)
            assert abs(np.asarray(x[which].grad)[at] - difference) < 1e-7


def test_dropout_acts_only_with_a_generator(rng):
    q, k, v = qkv(rng)
    plain = np.asarray(mh.attention(q, k, v))
    np.testing.assert_array_equal(np.asarray(mh.attention(q, k, v, dropout_p=0.5)), plain)
    a, b = (np.asarray(mh.attention(q, k, v, dropout_p=0.5, rng=mh.Rng(3))) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert abs(a - plain).max() > 0.05


def test_capture_and_view(rng):
    q, k, v = qkv(rng)
    capture = mh.AttentionCapture(heads=[1], entropy=True, key_mass=True, top_k=2)
    out, lse = mh.attention(q, k, v, mask=mh.causal(), capture=capture, return_lse=True)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(mh.attention(q, k, v, mask=mh.causal())))
    weights = np.asarray(capture.weights)
    assert weights.shape == (2, 1, 7, 11) and lse.shape == (2, 4, 7)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert capture.top_keys.dtype == "int64" and capture.entropy.shape == (2, 4, 7)
    view = mh.AttentionView(capture.weights, tokens=[f"<{i}>" for i in range(11)])
    page = view._repr_html_()
    assert page.count("<rect") == 77 and "&lt;3&gt;" in page and "<3>" not in page
    import xml.etree.ElementTree

    xml.etree.ElementTree.fromstring(view.svg())


def gradients(loss, *arrays):
    """The gradients of loss(*leaves) by the tape and by differences."""
    leaves = [mh.tensor(x, requires_grad=True) for x in arrays]
    with mh.Tape() as tape:
        tape.backward(loss(*leaves))
    numeric = []
    for n, x in enumerate(arrays):
        numeric.append(np.zeros_like(x))
        for at in np.ndindex(x.shape):
            moved = [[y.copy() for y in arrays] for _ in range(2)]
            moved[0][n][at] += 1e-5
            moved[1][n][at] -= 1e-5
            high, low = (float(np.asarray(loss(*map(mh.tensor, y)))) for y in moved)
            numeric[-1][at] = (high - low) / 2e-5
    return [np.asarray(x.grad) for x in leaves], numeric


def test_everything_returned_has_a_gradient(rng):
    q, k, v = (rng.standard_normal((1, 2, 4, 3)) for _ in range(3))
    sinks = rng.standard_normal(2)
    mask = mh.lengths(np.array([[3, 0, 4, 1]]))

    def of_lse(q, k, v, sinks):
        out, lse = mh.attention(q, k, v, mask=mask, sinks=sinks, return_lse=True)
        return mh.sum(out) + mh.sum(lse * lse)

    def of_capture(q, k, v, sinks):
        c = mh.AttentionCapture(entropy=True, key_mass=True, top_k=2)
        mh.attention(q, k, v, mask=mh.causal(), sinks=sinks, capture=c)
        return sum((mh.sum(x * x) for x in (c.weights, c.entropy, c.key_mass, c.top_weights)), mh.sum(c.weights))

    for loss in (of_lse, of_capture):
        for got, expected in zip(*gradients(loss, q, k, v, sinks)):
            np.testing.assert_allclose(got, expected, atol=1e-8)


def test_results_of_another_tape_are_refused(rng):
    gate = mh.tensor(np.full(2, 0.7), requires_grad=True)
    with mh.Tape():
        table = mh.exp(gate)
    with mh.Tape():
        with pytest.raises(ValueError, match="another tape"):
            table * gate
        assert not (table.detach() * 2.0).requires_grad


def test_biases_of_16_bits(rng):
    q, k, v = (mh.cast(mh.tensor(x), "float16") for x in qkv(rng))
    bias = rng.standard_normal((7, 11), dtype="f4")
    narrow = mh.cast(mh.tensor(bias), "float16")
    wide = mh.cast(narrow, "float32")
    got, expected = (np.asarray(mh.attention(q, k, v, bias=x)) for x in (narrow, wide))
    np.testing.assert_array_equal(got, expected)


def test_ragged_is_each_sequence_alone(rng):
    q, k, v = (rng.standard_normal((9, 2, 8), dtype="f4") for _ in range(3))
    cu = np.array([0, 4, 4, 9])
    out = np.asarray(mh.attention_ragged(q, k, v, cu, cu, mask=mh.causal()))
    for a, b in zip(cu[:-1], cu[1:]):
        if a == b:
            continue
        part = [x[a:b].transpose(1, 0, 2)[None] for x in (q, k, v)]
        np.testing.assert_array_equal(out[a:b], np.asarray(mh.attention(*part, mask=mh.causal()))[0].transpose(1, 0, 2))


def test_explain(rng):
    q, k, v = qkv(rng)
    text = mh.explain(q, k, v, mask=mh.causal())
    assert "causal(end)" in text and "thread" in text
    assert "1/sqrt(head_dim)" in text


def test_errors_say_what_came(rng):
    q, k, v = qkv(rng)
    cases = [
        (lambda: mh.attention(q, k[..., :4], v), mh.ShapeError, "got [2, 2, 11, 4]"),
        (lambda: mh.attention(q, k, v.astype("f8")), mh.DtypeError, "f64"),
        (lambda: mh.attention(q[0], k, v), mh.ShapeError, "query"),
        (lambda: mh.attention(q, k, None), TypeError, "value"),
        (lambda: mh.attention(q, k, v, mask=np.ones((7, 11), bool)), TypeError, "keep(array)"),
        (lambda: mh.attention(q, k, v, mask=mh.keep(np.ones((7, 10), bool))), mh.ShapeError, "mask must broadcast"),
        (lambda: mh.keep(np.ones((7, 11), "f4")), mh.DtypeError, "bool"),
        (lambda: mh.attention(q, k, v, scale=float("nan")), ValueError, "scale"),
        (lambda: mh.attention(q, k, v, dropout_p=1.5, rng=mh.Rng(1)), ValueError, "dropout_p"),
        (lambda: mh.attention(q, k, v, empty_row="maybe"), ValueError, "'zero'"),
        (lambda: mh.attention(q, k, v, bias=np.tri(7, 11, dtype="f4")), ValueError, "bias"),
        (lambda: mh.attention(q, k, v, score_mod=lambda s, b, h, q, k: s), TypeError, "multihead.score_mod"),
        (lambda: mh.causal() and mh.causal(), TypeError, "&"),
        (lambda: mh.window(-2, 0), ValueError, "window"),
        (lambda: mh.set_num_threads(0), ValueError, "1 to"),
        (lambda: mh.attention(q, k, v, scale="big"), TypeError, "attention"),
        (lambda: mh.attention(q, k, v, is_causal=True), TypeError, "no argument 'is_causal'; say mask=causal("),
        (lambda: mh.attention(q, k, v, sofcap=1.0), TypeError, "no argument 'sofcap'"),
    ]
    for call, error, text in cases:
        with pytest.raises(error) as info:
            call()
        assert text in str(info.value), str(info.value)
    assert issubclass(mh.ShapeError, ValueError) and issubclass(mh.DtypeError, TypeError)
    assert issubclass(mh.IoError, OSError) and issubclass(mh.FormatError, ValueError)


@pytest.mark.parametrize(
    "function, text",
    [
        (lambda s, b, h, q, k: s if q > k else 0.0, "control flow"),
        (lambda s, b, h, q, k: s * 2 if s > 0 else s, "control flow"),
    (lambda s, b, h, q, k: 1.0 if s else s, "the score"),
        (lambda s, b, h, q, k: float(s), "no value yet"),
        (lambda s, b, h, q, k: np.sort(s), "sort"),
        (lambda s, b, h, q, k: None, "None"),
        (lambda s, b, h, q, k: s + np.zeros((2, 2)), "indexed"),
        (lambda s, b, h, q, k: [s][k], "cannot index a list"),
        (lambda s, b, h, q, k: s * {0: 1.0}[h], "cannot index a list or dict"),
        (lambda s, b, h, q, k: s * 2**q, "exponent"),
        (lambda s, b, h, q, k: s.mean(), "mean"),
    ],
)
def test_what_cannot_be_traced(function, text):
    with pytest.raises((TypeError, AttributeError)) as info:
        mh.score_mod(function)
    assert text in str(info.value)


@pytest.mark.parametrize("take", [float, np.asarray, memoryview, lambda w: w.item(), lambda w: w.tolist(), lambda w: w.numpy()])
def test_a_learned_number_is_no_constant(take):
    w = mh.tensor(np.ones(1, dtype="f4"), requires_grad=True)
    with pytest.raises(TypeError, match="for a constant"):
        mh.score_mod(lambda s, b, h, q, k: s * np.asarray(take(w)).item())
    assert mh.score_mod(lambda s, b, h, q, k: s * np.asarray(take(w.detach())).item()) is not None


def test_flatten_needs_axes_in_order():
    with pytest.raises(ValueError, match="start must not come after end, got 1 and 0 of 2 axes"):
        mh.tensor(np.zeros((2, 3))).flatten(1, 0)


def test_elements_of_an_empty_tensor_are_set():
    t = mh.tensor(np.zeros((3, 0)))
    t[0] = 1.0
    assert t.shape == (3, 0)


def test_values_go_with_a_centre_under_sparse_weights(rng):
    q = rng.standard_normal((1, 2, 5, 4))
    table = rng.standard_normal((2, 9, 4))
    for normalise in ("sparsemax", "entmax15"):
        out = mh.attention(q, q, q, relative_value=table, relative_center=4, normalise=normalise)
        assert np.allclose(out, mh.attention(q, q, q, relative_value=table, normalise=normalise))


def test_a_soft_cap_is_as_wide_as_the_scores(rng):
    q = 10 * rng.standard_normal((1, 1, 6, 4))
    capped = mh.attention(q, q, q, softcap=7.1, scale=0.5)
    scores = 7.1 * np.tanh(0.5 * q[0, 0] @ q[0, 0].T / 7.1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    assert np.allclose(capped[0, 0], weights / weights.sum(-1, keepdims=True) @ q[0, 0], rtol=0, atol=1e-13)


def test_masks_by_function_skip_blocks(rng):
    q = rng.standard_normal((1, 1, 512, 16), dtype="f4")
    k = q.copy()
    k[:, :, 256:] = np.nan  # excluded, hence never read into a result
    out = np.asarray(mh.attention(q, k, q, mask=mh.mask_mod(lambda b, h, q, k: (q >= k) & (k < 256))))
    assert np.isfinite(out).all()
    ids = np.repeat(np.arange(8), 64)
    a = mh.attention(q, q, q, mask=mh.mask_mod(lambda b, h, q, k: ids[q] == ids[k]))
    b = mh.attention(q, q, q, mask=mh.documents(ids))
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-6)


def test_a_page_of_a_language_model(tmp_path):
    text = "the cat sat on the mat"
    tokenizer = mh.Tokenizer.train_characters(text)
    config = mh.models.LanguageModelConfig(vocab_size=tokenizer.vocab_size, context=32, num_layers=2, num_heads=2, embed_dim=16)
    model = mh.models.LanguageModel(config, rng=mh.Rng(1))
    page = mh.attend(model, "the cat", tokenizer, beside="a mat")
    assert page.html.startswith("<!doctype html>") and '"lens":' in page.html and 'id="w1-0"' in page.html
    assert "sandbox=" in page._repr_html_() and "<script>" not in page._repr_html_()
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html
    assert '"lens":' not in mh.attend(model, "the cat", tokenizer, measures=False).html
    assert '"off":["0.1"]' in mh.attend(model, "the cat", tokenizer, off=[(0, 1)], cut=[(1, 0, 3, 1)]).html
    for wrong, message in (({"heads": [2]}, "heads must be in \\[0, 1\\], got 2"), ({"rows": [7]}, "tokens must be in \\[0, 6\\], got 7"), ({"off": [(0,)]}, "2 numbers"), ({"cut": [(0, 0, 1, 2)]}, "cannot be cut")):
        with pytest.raises(ValueError, match=message):
            mh.attend(model, "the cat", tokenizer, **wrong)
    with pytest.raises(ValueError, match="needs its tokenizer"):
        mh.attend(model, "the cat")
    model.pack_weights("q8")  # has no gradients
    packed = mh.attend(model, "the cat", tokenizer).html
    assert '"lens":' in packed and '"attributions":' not in packed
    encoder = mh.models.Encoder(mh.models.EncoderConfig(vocab_size=20, num_layers=2, num_heads=2, embed_dim=16))
    assert '"rows":[2,6]' in mh.attend(model, "the cat", tokenizer, rows=[2, 6]).html
    assert '"causal":false' in mh.attend(encoder, "the cat", tokenizer).html


def test_a_bool_is_no_offset():
    for make in (lambda: mh.causal(True), lambda: mh.window(True, 0), lambda: mh.window(2, False)):
        with pytest.raises(TypeError, match="must be an integer, got bool"):
            make()


@pytest.mark.parametrize("table", [np.zeros((2, 0), np.float32), np.zeros((2, 0), np.int64), mh.zeros((2, 0), "float64")])
def test_captured_arrays_may_be_empty_where_no_score_is(table):
    score_mod = mh.score_mod(lambda s, b, h, i, j: s + mh.tensor(table)[h, i])
    none, one = np.zeros((1, 2, 0, 4), np.float32), np.zeros((1, 2, 1, 4), np.float32)
    assert mh.attention(none, none, none, score_mod=score_mod).shape == (1, 2, 0, 4)
    with pytest.raises(IndexError, match="outside a captured tensor"):
        mh.attention(one, one, one, score_mod=score_mod)


def test_an_empty_captured_tensor_may_require_a_gradient():
    table = mh.tensor(np.zeros((2, 0), np.float32), requires_grad=True)
    x = mh.tensor(np.zeros((1, 2, 0, 4), np.float32), requires_grad=True)
    with mh.Tape() as tape:
        y = mh.attention(x, x, x, score_mod=mh.score_mod(lambda s, b, h, i, j: s + table[h, i]))
        tape.backward(mh.sum(y))
    assert x.grad.shape == x.shape


def test_an_empty_list_of_offsets_is_one_of_integers():
    x = np.zeros((0, 1, 3, 4), np.float32)
    for mask in (mh.causal(align=[]), mh.prefix(1, align=[]), mh.window(1, 1, align=[])):
        assert mh.attention(x, x, x, mask=mask).shape == x.shape
    with pytest.raises(TypeError, match="causal: offsets must be i64 or i32, got f32"):
        mh.causal(align=[0.5])
