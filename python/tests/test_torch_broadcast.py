"""scaled_dot_product_attention broadcasts as PyTorch's does."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

# query, key, value, mask (None, or its shape), enable_gqa
SHAPES = [
    ((2, 4, 9, 16), (2, 1, 7, 16), (2, 1, 7, 16), None, False),  # Falcon
    ((2, 4, 9, 16), (2, 1, 7, 16), (2, 4, 7, 16), (9, 7), False),
    ((2, 4, 9, 16), (2, 4, 7, 16), (2, 1, 7, 5), (2, 1, 1, 7), False),
    ((2, 1, 9, 16), (2, 4, 7, 16), (2, 4, 7, 16), (4, 9, 7), False),
    ((1, 4, 9, 16), (3, 1, 7, 16), (3, 1, 7, 16), (3, 1, 9, 7), False),
    ((9, 16), (2, 3, 7, 16), (2, 3, 7, 16), None, False),
    ((2, 3, 9, 16), (7, 16), (7, 16), (3, 9, 7), False),
    ((9, 16), (3, 7, 16), (7, 5), (1, 9, 7), False),
    ((3, 9, 16), (2, 1, 7, 16), (7, 16), (2, 3, 9, 7), False),
    ((5, 2, 4, 9, 16), (4, 7, 16), (2, 1, 7, 16), (5, 1, 4, 9, 7), False),
    ((5, 1, 4, 9, 16), (2, 1, 7, 16), (2, 1, 7, 16), (2, 1, 9, 7), False),
    ((4, 9, 16), (2, 7, 16), (2, 7, 16), (4, 9, 7), True),
    ((4, 9, 16), (5, 2, 7, 16), (5, 2, 7, 16), None, True),
    ((3, 4, 9, 16), (1, 2, 7, 16), (1, 2, 7, 16), (3, 1, 1, 7), True),
    ((2, 3, 4, 9, 16), (2, 3, 2, 7, 16), (2, 3, 1, 7, 16), None, True),
    ((1, 4, 9, 16), (1, 2, 7, 16), (1, 4, 7, 16), None, True),
    ((2, 4, 9, 0), (2, 4, 7, 0), (2, 4, 7, 16), (9, 7), False),
    ((9, 0), (7, 0), (7, 3), None, False),
    ((4, 9, 0), (2, 7, 0), (2, 7, 3), None, True),
    ((2, 4, 9, 8), (2, 4, 7, 8), (2, 4, 7, 0), None, False),
    ((0, 16), (7, 16), (7, 16), None, False),
    ((9, 16), (0, 16), (0, 16), None, False),
    ((0, 4, 9, 16), (0, 4, 7, 16), (0, 4, 7, 16), (0, 4, 9, 7), False),
    ((2, 0, 9, 16), (2, 0, 7, 16), (2, 0, 7, 16), None, True),
    ((3, 0, 2, 9, 16), (3, 0, 2, 7, 16), (3, 0, 2, 7, 16), None, False),
]


@pytest.mark.parametrize("q, k, v, mask, enable_gqa", SHAPES)
def test_shapes(q, k, v, mask, enable_gqa):
    x = [make(shape, torch.float64, seed=i) for i, shape in enumerate((q, k, v))]
    options = [{}, {"is_causal": True}]
    if mask is not None:
        bias = make(mask, torch.float64, seed=7)
        options += [{"attn_mask": bias}, {"attn_mask": bias.detach() > -0.5}]
    for kwargs in options:
        kwargs["enable_gqa"] = enable_gqa
        wanted = [*x, kwargs["attn_mask"]] if "attn_mask" in kwargs and kwargs["attn_mask"].requires_grad else x
        want = F.scaled_dot_product_attention(*x, **kwargs)
        with mt.patch(always=True) as record:
            out = F.scaled_dot_product_attention(*x, **kwargs)
        assert record.calls == 1 and out.shape == want.shape
        torch.testing.assert_close(out, want)
        grad = make(out.shape, torch.float64, grad=False, seed=9)
        gradients = (torch.autograd.grad(y, wanted, grad, materialize_grads=True) for y in (out, want))
        for a, b in zip(*gradients):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("q, k, v, mask, enable_gqa, text", [
    ((2, 4, 9, 16), (2, 2, 7, 16), (2, 2, 7, 16), None, False, "enable_gqa"),
    ((2, 4, 9, 16), (2, 4, 7, 16), (2, 2, 7, 16), None, False, "enable_gqa"),
    ((2, 4, 9, 16), (2, 3, 7, 16), (2, 4, 7, 16), None, True, "heads"),
    ((9, 16), (7, 16), (7, 16), None, True, "axis of heads"),
    ((2, 4, 9, 16), (3, 4, 7, 16), (3, 4, 7, 16), None, False, "batch axes"),
    ((9, 16), (7, 16), (7, 16), (4, 9, 7), False, "broadcast"),
    ((9, 16), (7, 16), (7, 16), (7,), False, "2 to 4 axes"),
    ((2, 4, 9, 16), (2, 4, 7, 16), (2, 4, 7, 16), (7,), False, "2 to 4 axes"),
    ((2, 4, 9, 16), (2, 4, 7, 16), (2, 4, 7, 16), (), False, "2 to 4 axes"),
    ((2, 4, 9, 16), (2, 4, 7, 16), (2, 4, 7, 16), (1, 2, 4, 9, 7), False, "broadcast"),
    ((2, 4, 9, 16), (2, 4, 7, 16), (2, 4, 5, 16), None, False, "value must be"),
])  # fmt: skip
def test_shapes_that_do_not_fit(q, k, v, mask, enable_gqa, text):
    x = [make(shape, seed=i) for i, shape in enumerate((q, k, v))]
    with pytest.raises(mh.ShapeError, match=text):
        mt.scaled_dot_product_attention(*x, None if mask is None else torch.zeros(mask), enable_gqa=enable_gqa)


def test_falcon():
    transformers = pytest.importorskip("transformers")
    config = transformers.FalconConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=50, multi_query=True,
        new_decoder_architecture=False,
    )  # fmt: skip
    model = transformers.FalconForCausalLM._from_config(config, attn_implementation="sdpa").eval()
    ids = torch.arange(20)[None]
    want = model(input_ids=ids).logits
    with mt.patch(always=True) as record:
        torch.testing.assert_close(model(input_ids=ids).logits, want, atol=1e-5, rtol=1e-4)
    assert record.calls == 1


def opinfo_samples(dtype, kind):
    common = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    info = next(op for op in common.op_db if op.name == "nn.functional.scaled_dot_product_attention")
    return getattr(info, kind)("cpu", dtype, requires_grad=dtype is not torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_pytorchs_own_samples(dtype):
    ours = 0
    for sample in opinfo_samples(dtype, "sample_inputs"):
        call = lambda: F.scaled_dot_product_attention(sample.input, *sample.args, **sample.kwargs)
        want = call()
        with mt.patch(always=True) as record:
            out = call()
        ours += record.calls
        assert record.fallbacks == 0 and out.shape == want.shape, record
        if sample.kwargs.get("dropout_p"):
            continue
        precise = {torch.float32: 5e-5, torch.float64: 1e-12}.get(dtype, 1e-2)
        torch.testing.assert_close(out, want, atol=precise, rtol=precise)
        x = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor) and t.requires_grad]
        if x:
            grad = torch.randn_like(out)
            for a, b in zip(torch.autograd.grad(out, x, grad), torch.autograd.grad(want, x, grad)):
                torch.testing.assert_close(a, b, atol=20 * precise, rtol=20 * precise)
    assert ours > 0
