"""No keyword of attention is ignored: each changes what every function and module returns, or is refused by name."""

import numpy as np
import pytest
from conftest import keywords_of

import multihead as mh

B, H, HKV, T, D = 2, 4, 2, 24, 8


def normal(*shape):
    return np.random.default_rng(3).normal(size=shape).astype("f4")


def valid(first):
    return mh.lengths(np.array([first, 1]))


BINARY = np.eye(1, T, dtype="f4")
# (keywords of both calls, the keyword whose default differs)
CASES = {
    "mask": ({}, valid(1)),
    "softcap": ({}, 0.3),
    "bias": ({}, normal(T, T)),
    "alibi_slopes": ({}, np.full(H, 0.5, "f4")),
    "relative_bias": ({}, normal(H, 7)),
    "relative_key": ({}, normal(1, 7, D)),
    "relative_value": ({}, normal(1, 7, D)),
    "relative_center": ({"relative_bias": normal(H, 7)}, 6),
    "sinks": ({}, np.full(H, 1.5, "f4")),
    "score_mod": ({}, mh.score_mod(lambda s, b, h, q, k: s * 0.5)),
    "weight": ({"normalise": "sum"}, mh.score_mod(lambda s, b, h, q, k: s * s)),
    "normalise": ({}, "abs_sum"),
    "empty_row": ({"mask": valid(0)}, "uniform"),
    "scale": ({}, 0.1),
    "dropout_p": ({"rng": None}, 0.5),
    "rng": ({"dropout_p": 0.5}, None),
    "layout": ({}, "bthd"),
    "return_lse": ({}, True),
    "allow_binary_bias": ({"bias": BINARY}, True),
    "capture": ({}, None),
}


def inputs():
    q, k, v = normal(B, H, T, D), normal(B, HKV, T, D), normal(B, HKV, T, D)
    return q, k[::-1].copy(), v * 2


ATTENTION = mh.nn.MultiHeadAttention(H * D, H, num_kv_heads=HKV, dropout_p=0.5, rng=mh.Rng(1))
FUNCTIONS = {
    "attention": (mh.attention, lambda **o: mh.attention(*inputs(), **o)),
    "attention_composed": (mh.attention_composed, lambda **o: mh.attention_composed(*inputs(), **o)),
    "attention_packed": (mh.attention_packed, lambda **o: mh.attention_packed(normal(B, T, 8 * D), H, HKV, **o)),
    "module": (mh.nn.MultiHeadAttention.__call__, lambda **o: ATTENTION(normal(B, T, H * D), **o)),
}


def outcome(call, name, changed, taken):
    both, value = CASES[name]
    options = {key: given for key, given in both.items() if key in taken}  # a module has its own dropout
    if changed:
        options[name] = value
    if "rng" in options:
        options["rng"] = mh.Rng(7)
    capture = None
    if "capture" in options:
        capture = options["capture"] = mh.AttentionCapture()
    try:
        results = call(**options)
    except (ValueError, TypeError) as error:
        return str(error)
    results = results if isinstance(results, tuple) else (results,)
    if capture is not None:
        results += (capture.weights,)
    return [np.asarray(x).tobytes() for x in results]


def value_of(name):
    """Of a new option: a number, or one for each head. nn/options_test.cc has those of tensors of other shapes."""
    for value in (0.3, -0.3, normal(H)):
        try:
            mh.attention(*inputs(), **{name: value})
            return value
        except (ValueError, TypeError) as error:
            refused = error
    raise AssertionError(f"{name} needs a row in CASES: {refused}")


@pytest.mark.parametrize("path", FUNCTIONS)
def test_every_keyword_acts_or_is_refused(path):
    function, call = FUNCTIONS[path]
    names = [name for name in keywords_of(function) if name not in ("residual", "rotary", "cu_seqlens")]
    assert set(names) >= {"mask", "softcap", "sinks", "capture"}
    for name in names:
        if name not in CASES:
            CASES[name] = ({}, value_of(name))
        before, after = outcome(call, name, False, names), outcome(call, name, True, names)
        if isinstance(after, str):
            assert name in after, f"{path}: {name}: {after}"
        assert before != after, f"{path} ignores {name}"


def test_a_center_without_a_table_is_refused():
    rows = normal(T, H, D)
    for call in (
        *(call for _, call in FUNCTIONS.values()),
        lambda **o: mh.attention_ragged(rows, rows, rows, [0, T], [0, T], **o),
        lambda **o: mh.explain(*inputs(), **o),
    ):
        with pytest.raises(ValueError, match="relative_center is a row of relative_bias, relative_key or relative_value"):
            call(relative_center=3)
