"""Relative keys: the scores of labml, Shaw et al. and Transformer-XL against plain PyTorch, with every gradient."""

import math

import numpy as np
import pytest

import multihead as mh
from multihead import nn

torch = pytest.importorskip("torch")

B, H, HKV, TQ, TK, D, DV = 2, 4, 2, 37, 90, 16, 8
SCALE = 1 / math.sqrt(D)


def torch_attention(scores, value, allowed=None):
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1) @ value.repeat_interleave(H // HKV, 1)


def content(query, key):
    return query @ key.repeat_interleave(H // HKV, 1).transpose(-1, -2)


def met(query, table, row):
    """⟨query[i], table[row[i, j]]⟩; table [H or 1, span, D]."""
    return torch.einsum("bhid,hijd->bhij", query, table[:, row].expand(H, -1, -1, -1))


POSITION, KEY = torch.arange(TQ)[:, None] + TK - TQ, torch.arange(TK)[None]


def labml(q, k, v, table, numbers):
    """q·k + q·R[j - i] + b[j - i], scaled together; tables [span, H, …]."""
    scale = 1 / math.sqrt(D)
    return mh.attention(q, k, v, relative_key=mh.transpose(table, 0, 1),
                        relative_bias=mh.scale(mh.transpose(numbers, 0, 1), scale), relative_center=TK - 1)


def torch_labml(q, k, v, table, numbers):
    row = KEY - POSITION + TK - 1
    extra = met(q, table.transpose(0, 1), row) + numbers.T[:, row]
    return torch_attention(SCALE * (content(q, k) + extra), v)


def shaw(q, k, v, table):
    """A vector for each of the distances -5 … 5, the same for all heads, clipped beyond; causal."""
    return mh.attention(q, k, v, mask=mh.causal(), relative_key=table)


def torch_shaw(q, k, v, table):
    extra = met(q, table, (KEY - POSITION).clamp(-5, 5) + 5)
    return torch_attention(SCALE * (content(q, k) + extra), v, KEY <= POSITION)


def transformer_xl(q, k, v, table, u, w):
    """(q + u)·k + (q + w)·R[i - j] over a memory; the table's last row is distance 0."""
    numbers = mh.matmul(table, mh.reshape(mh.sub(w, u), [H, D, 1]))
    return mh.attention(
        mh.add(q, mh.reshape(u, [H, 1, D])), k, v, mask=mh.causal(), relative_key=table,
        relative_bias=mh.scale(mh.reshape(numbers, [H, TK]), SCALE), relative_center=TK - 1,
    )


def torch_transformer_xl(q, k, v, table, u, w):
    row = (KEY - POSITION + TK - 1).clamp(max=TK - 1)
    scores = content(q + u[:, None], k) + met(q + w[:, None], table, row)
    return torch_attention(SCALE * scores, v, KEY <= POSITION)


CASES = {
    "labml": (labml, torch_labml, [(TQ + TK - 1, H, D), (TQ + TK - 1, H)]),
    "shaw": (shaw, torch_shaw, [(1, 11, D)]),
    "transformer-xl": (transformer_xl, torch_transformer_xl, [(H, TK, D), (H, D), (H, D)]),
}


@pytest.mark.parametrize("dtype, forward, backward", [("f4", 1e-6, 5e-6), ("f8", 1e-13, 1e-12)])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_pytorchs(rng, name, dtype, forward, backward):
    ours, theirs, shapes = CASES[name]
    arrays = [rng.standard_normal(s).astype(dtype)
              for s in [(B, H, TQ, D), (B, HKV, TK, D), (B, HKV, TK, DV), *shapes]]
    weight = rng.standard_normal((B, H, TQ, DV)).astype(dtype)
    x = [mh.tensor(a, requires_grad=True) for a in arrays]
    y = [torch.tensor(a.astype("f8"), requires_grad=True) for a in arrays]
    with mh.Tape() as tape:
        out = ours(*x)
        tape.backward(mh.sum(mh.mul(out, weight)))
    expected = theirs(*y)
    (expected * torch.tensor(weight.astype("f8"))).sum().backward()

    def close(a, b, tolerance, what):
        a, b = np.asarray(a), b.detach().numpy()
        assert a.dtype == dtype, what
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, abs(b).max()), err_msg=what)

    close(out, expected, forward, "out")
    for n, (a, b) in enumerate(zip(x, y)):
        close(a.grad, b.grad, backward, f"gradient of input {n}")


def test_every_entry_point_takes_it(rng):
    q, k, v = (rng.standard_normal(s).astype("f4") for s in ((B, H, TQ, D), (B, HKV, TK, D), (B, HKV, TK, DV)))
    table = rng.standard_normal((H, 33, D)).astype("f4")
    words = {"mask": mh.causal(), "relative_key": table, "relative_center": 20}
    out = np.asarray(mh.attention(q, k, v, **words))
    np.testing.assert_allclose(np.asarray(mh.attention_composed(q, k, v, **words)), out, atol=2e-6)
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    again = np.asarray(mh.attention(*turned, layout="bthd", **words))
    np.testing.assert_array_equal(again.transpose(0, 2, 1, 3), out)
    rows = [x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3]) for x in (q, k, v)]
    ragged = np.asarray(mh.attention_ragged(*rows, np.arange(B + 1) * TQ, np.arange(B + 1) * TK, **words))
    np.testing.assert_array_equal(ragged.reshape(B, TQ, H, DV).transpose(0, 2, 1, 3), out)
    assert "relative_key [4, 33, 16]" in str(mh.explain(q, k, v, **words))
    with pytest.raises(mh.ShapeError, match="relative_key must be"):
        mh.attention(q, k, v, relative_key=table[:3])

    layer = nn.MultiHeadAttention(embed_dim=H * D, num_heads=H, rng=mh.Rng(3))
    weights = {name: np.asarray(w) for name, w in layer.state_dict().items()}
    x = rng.standard_normal((B, TQ, H * D)).astype("f4")
    parts = np.split(x @ weights["in_proj_weight"].T, 3, -1)
    inner = mh.attention(*(y.reshape(B, TQ, H, D) for y in parts), layout="bthd", **words)
    expected = np.asarray(inner).reshape(B, TQ, H * D) @ weights["out_proj.weight"].T + weights["out_proj.bias"]
    np.testing.assert_allclose(np.asarray(layer(x, **words)), expected, atol=1e-5)
