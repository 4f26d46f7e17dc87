"""Errors of modules in f32, and of their gradients, against f64: at most those of PyTorch's own."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402

nn = torch.nn


def modules():
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    pre = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, activation="gelu", norm_first=True)
    decoder = nn.TransformerDecoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    return {
        "Linear": nn.Linear(64, 256),
        "LayerNorm": nn.LayerNorm(64),
        "RMSNorm": nn.RMSNorm(64, eps=1e-6),
        "MultiheadAttention": nn.MultiheadAttention(64, 4, batch_first=True),
        "TransformerEncoderLayer": layer,
        "pre-norm layer": pre,
        "TransformerEncoder": nn.TransformerEncoder(layer, 3, nn.LayerNorm(64)),
        "TransformerDecoder": nn.TransformerDecoder(decoder, 2),
        "Transformer": nn.Transformer(64, 4, 2, 2, 256, 0.0, batch_first=True),
    }


def of_pytorch(name, module, x, memory, dy):
    """Output, gradient of x, gradients of the parameters by name."""
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
    x = x.clone().requires_grad_()
    if name == "MultiheadAttention":
        y = module(x, x, x, need_weights=False)[0]
    elif name == "TransformerDecoder":
        y = module(x, memory, tgt_mask=mask)
    elif name == "Transformer":
        y = module(memory, x, tgt_mask=mask)
    else:
        y = module(x)
    y.backward(dy)
    return y.detach(), x.grad, {n: p.grad for n, p in module.named_parameters()}


def of_ours(name, module, x, memory, dy):
    ours = mt.from_torch(module)
    with mh.Tape() as tape:
        x = mh.tensor(x, requires_grad=True)
        if name == "TransformerDecoder":
            y = ours(x, memory)
        elif name == "Transformer":
            y = ours(memory, x)
        else:
            y = ours(x)
        tape.backward(mh.sum(y * mh.tensor(dy)))
    return y, x.grad, {n: p.grad for n, p in ours.named_parameters()}


def squared_error(results, exact):
    """Output, gradient of x, and all parameters: each parameter's error relative to its size."""
    error = [np.square(np.asarray(a, dtype=np.float64) - b.numpy()).mean() for a, b in zip(results[:2], exact[:2])]
    parts = 0.0
    for n, g in exact[2].items():
        difference = np.square(np.asarray(results[2][n], dtype=np.float64) - g.numpy()).mean()
        parts += difference / g.square().mean().item()
    return np.array([*error, parts])


@pytest.mark.parametrize("tokens", [13, 96])
@pytest.mark.parametrize("name", modules())
def test_no_less_accurate_than_pytorch(name, tokens):
    ours, theirs = np.zeros(3), np.zeros(3)
    for seed in range(4):
        torch.manual_seed(seed)
        module = modules()[name]
        x, memory = torch.randn(4, tokens, 64), torch.randn(4, tokens, 64)
        wide = copy.deepcopy(module).double()
        dy = torch.randn(4, tokens, 256 if name == "Linear" else 64)
        exact = of_pytorch(name, wide, x.double(), memory.double(), dy.double())
        theirs += squared_error(of_pytorch(name, module, x, memory, dy), exact)
        ours += squared_error(of_ours(name, module, x, memory, dy), exact)
    output, input_gradient, parameters = np.sqrt(ours / theirs)
    assert output <= 1.05
    assert input_gradient <= 1.05
    assert parameters <= 1.05
