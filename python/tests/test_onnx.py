"""The ONNX operators against ONNX's own node tests (1.23) and against their definition."""

import numpy as np
import pytest

import multihead as mh

onnx = pytest.importorskip("onnx")
CASES = {}


def collect():
    """ONNX's generators as name -> (node, inputs, outputs, opset)."""
    if CASES:
        return CASES
    from onnx.backend.test.case.node import collect_testcases

    for operator in ("Attention", "RotaryEmbedding", "RMSNormalization", "LinearAttention"):
        for case in collect_testcases(operator):
            node = case.model.graph.node
            if len(node) != 1 or node[0].op_type != operator:  # expanded function bodies
                continue
            inputs, outputs = case.data_sets[0]
            CASES[case.name] = (node[0], inputs, outputs, case.model.opset_import[0].version)
    return CASES


def attributes(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def named(node, arrays, names):
    arrays = iter(arrays)
    return {name: next(arrays) for name, given in zip(names, node.input) if given}


def run(node, inputs, opset):
    options = attributes(node)
    if node.op_type == "Attention":
        names = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
        results = mh.onnx_attention(**named(node, inputs, names), opset=min(max(opset, 23), 25), **options)
        return [r for r, given in zip(results, node.output) if given]
    if node.op_type == "RotaryEmbedding":
        return [mh.rotary_embedding(**named(node, inputs, ["X", "cos_cache", "sin_cache", "position_ids"]), **options)]
    if node.op_type == "LinearAttention":
        names = ["query", "key", "value", "past_state", "decay", "beta"]
        options = {name: x.decode() if isinstance(x, bytes) else x for name, x in options.items()}
        return list(mh.onnx_linear_attention(**named(node, inputs, names), **options))
    return [mh.rms_normalization(**named(node, inputs, ["X", "scale"]), **options)]


def names():
    try:
        return sorted(collect())
    except Exception as error:  # a future ONNX may move its generators
        pytest.skip(f"ONNX's node tests are not where 1.23 has them: {error}", allow_module_level=True)


@pytest.mark.parametrize("name", names())
def test_onnx_node(name):
    node, inputs, outputs, opset = collect()[name]
    results = run(node, inputs, opset)
    assert len(results) == len(outputs)
    for got, want in zip(results, outputs):
        want = np.asarray(want)
        assert got.shape == want.shape and got.dtype == want.dtype
        half = str(want.dtype) in ("float16", "bfloat16")
        np.testing.assert_allclose(
            got.astype("f8"), want.astype("f8"), rtol=1e-2 if half else 1e-4, atol=2e-3 if half else 2e-6
        )


def test_there_are_many():
    assert len(collect()) > 80


def test_attention_against_its_definition(rng, attention_reference):
    q, k, v = (rng.standard_normal((2, h, t, d)) for h, t, d in ((4, 3, 8), (2, 5, 8), (2, 5, 6)))
    past_k, past_v = rng.standard_normal((2, 2, 4, 8)), rng.standard_normal((2, 2, 4, 6))
    y, present_k, present_v, scores = mh.onnx_attention(
        q, k, v, past_key=past_k, past_value=past_v, is_causal=1, softcap=2.0, qk_matmul_output_mode=3, opset=23
    )
    keys, values = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    np.testing.assert_array_equal(present_k, keys)
    np.testing.assert_array_equal(present_v, values)
    allowed = np.arange(9)[None] <= np.arange(3)[:, None] + 4
    np.testing.assert_allclose(y, attention_reference(q, keys, values, allowed, softcap=2.0), atol=1e-7)
    np.testing.assert_allclose(scores @ np.repeat(values, 2, 1), y, atol=1e-7)


def test_empty_rows_and_cache_lengths(rng):
    q, k = rng.standard_normal((2, 1, 2, 4), dtype="f4"), rng.standard_normal((2, 1, 5, 4), dtype="f4")
    y, *_ = mh.onnx_attention(q, k, k, nonpad_kv_seqlen=np.array([5, 0]))
    assert (y[1] == 0).all() and (y[0] != 0).any()


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(opset=22), ValueError, "opset"),
        (dict(left_window_size=2), ValueError, "opset 25"),
        (dict(nonpad_kv_seqlen=np.array([5, 5]), opset=23), ValueError, "opset 24"),
        (dict(qk_matmul_output_mode=4), ValueError, "qk_matmul_output_mode"),
        (dict(scale=float("nan")), ValueError, "NaN"),
        (dict(softcap=-1.0), ValueError, "softcap"),
        (dict(softmax_precision=11), ValueError, "softmax_precision must be one of (1, 10, 16) for these types, got 11"),
        (dict(past_key=np.ones((2, 1, 3, 4), "f4")), ValueError, "come together"),
        (dict(nonpad_kv_seqlen=np.array([6, 5])), ValueError, "within 0 to 5"),
        (dict(attn_mask=np.ones((2, 5), "i4")), TypeError, "attn_mask"),
        (dict(Q=np.ones((2, 1, 2, 4), "i4")), TypeError, "int32"),
        (dict(Q=np.ones((2, 4), "f4")), ValueError, "axes"),
        (dict(Q=np.ones((2, 2, 8), "f4")), ValueError, "q_num_heads"),
        (dict(K=np.ones((2, 2, 5, 4), "f4")), ValueError, "heads"),
    ],
)
def test_bad_input(change, error, text):
    arguments = dict(
        Q=np.ones((2, 1, 2, 4), "f4"), K=np.ones((2, 1, 5, 4), "f4"), V=np.ones((2, 1, 5, 4), "f4"), opset=24
    )
    arguments.update(change)
    with pytest.raises(error) as info:
        mh.onnx_attention(**arguments)
    assert text in str(info.value)
