"""Modules, losses and their gradients beside PyTorch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

torch.set_num_threads(1)


def test_from_torch_and_back():
    torch.manual_seed(0)
    x, memory = torch.randn(2, 7, 32), torch.randn(2, 5, 32)
    t = torch.nn
    layer = t.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu", norm_first=True)
    decoder_layer = t.TransformerDecoderLayer(32, 4, 64, batch_first=True)
    cases = [
        (t.Linear(32, 5), (x,), {}),
        (t.LayerNorm(32), (x,), {}),
        (t.RMSNorm(32), (x,), {}),
        (layer, (x,), {}),
        (t.TransformerEncoder(layer, 2, t.LayerNorm(32)), (x,), {}),
        (t.MultiheadAttention(32, 4, batch_first=True), (x, x, x), {}),
        (t.MultiheadAttention(32, 4, batch_first=True, kdim=16, vdim=8), (x, memory[..., :16], memory[..., :8]), {}),
        (t.MultiheadAttention(32, 4, batch_first=True, bias=False), (x, memory, memory), {}),
    ]
    for module, inputs, _ in cases:
        for p in module.parameters():
            torch.nn.init.normal_(p, std=0.3)
        module.eval()
        want = module(*inputs)
        want = want[0] if isinstance(want, tuple) else want
        ours = mt.from_torch(module)
        out = torch.from_numpy(np.asarray(ours(*inputs)))
        torch.testing.assert_close(out, want.detach(), atol=2e-5, rtol=1e-5)
        for p in module.parameters():
            torch.nn.init.zeros_(p)
        mt.to_torch(ours, module)
        again = module(*inputs)
        torch.testing.assert_close(again[0] if isinstance(again, tuple) else again, want)
    decoder = t.TransformerDecoder(decoder_layer, 2).eval()
    mask = t.Transformer.generate_square_subsequent_mask(7)
    want = decoder(x, memory, tgt_mask=mask)
    out = torch.from_numpy(np.asarray(mt.from_torch(decoder)(x, memory)))
    torch.testing.assert_close(out, want.detach(), atol=2e-5, rtol=1e-5)
    with pytest.raises(TypeError, match="Conv2d"):
        mt.from_torch(t.Conv2d(1, 1, 1))


def test_module_gradients_match_pytorch():
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True).double()
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    lens = np.array([7, 4])
    padding = torch.arange(7)[None] >= torch.tensor(lens)[:, None]
    out = module(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    out.square().sum().backward()
    ours = mt.from_torch(module)
    with mh.Tape() as tape:
        y = ours(x, mask=mh.lengths(lens))
        tape.backward(mh.sum(y * y))
    for name, p in ours.named_parameters():
        want = dict(module.named_parameters())[name].grad.numpy()
        np.testing.assert_allclose(np.asarray(p.grad), want, atol=1e-10)


def torch_modules():
    t = torch.nn
    layer = t.TransformerEncoderLayer(24, 4, 40, dropout=0.0, batch_first=True)
    pre = t.TransformerEncoderLayer(24, 3, 40, dropout=0.0, batch_first=True, activation="gelu", norm_first=True)
    decoder = t.TransformerDecoderLayer(24, 4, 40, dropout=0.0, batch_first=True)
    return {
        "Linear": t.Linear(24, 7),
        "Linear without bias": t.Linear(24, 7, bias=False),
        "LayerNorm": t.LayerNorm(24),
        "RMSNorm": t.RMSNorm(24, eps=1e-6),
        "MultiheadAttention": t.MultiheadAttention(24, 4, batch_first=True),
        "MultiheadAttention, add_zero_attn": t.MultiheadAttention(24, 4, batch_first=True, add_zero_attn=True),
        "TransformerEncoderLayer": layer,
        "TransformerEncoderLayer without biases": t.TransformerEncoderLayer(
            24, 4, 40, dropout=0.0, batch_first=True, bias=False
        ),
        "TransformerEncoderLayer, norm first": pre,
        "TransformerEncoder": t.TransformerEncoder(layer, 3, t.LayerNorm(24)),
        "TransformerDecoder": t.TransformerDecoder(decoder, 2),
        "TransformerDecoder without biases": t.TransformerDecoder(
            t.TransformerDecoderLayer(24, 4, 40, dropout=0.0, batch_first=True, bias=False), 2
        ),
    }


@pytest.mark.parametrize("name", torch_modules())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [1, 13])
def test_every_module_has_pytorchs_outputs_and_gradients(name, dtype, masked, length):
    torch.manual_seed(3)
    module = torch_modules()[name].to(dtype)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x = torch.randn(2, length, 24, dtype=dtype, requires_grad=True)
    memory = torch.randn(2, 5, 24, dtype=dtype)
    ours = mt.from_torch(module)
    causal = torch.ones(length, length, dtype=torch.bool).triu(1)  # True may not attend
    theirs_call, ours_call, more = {}, {}, ()
    if "Attention" in name:
        theirs_call, more = {"need_weights": False, **({"attn_mask": causal} if masked else {})}, (x, x)
        ours_call = {"mask": mh.causal()} if masked else {}
    elif "Encoder" in name and masked:
        key = "mask" if name == "TransformerEncoder" else "src_mask"
        theirs_call, ours_call = {key: causal}, {"mask": mh.causal()}
    elif "Decoder" in name:
        theirs_call, more = {"tgt_mask": causal}, (memory,)
    want = module(x, *more, **theirs_call)
    want = want[0] if isinstance(want, tuple) else want
    want.square().sum().backward()
    leaf = mh.tensor(x.detach(), requires_grad=True)
    with mh.Tape() as tape:
        y = ours(leaf, *((memory,) if "Decoder" in name else ()), **ours_call)
        tape.backward(mh.sum(y * y))
    close = dict(rtol=1e-9, atol=1e-9) if dtype is torch.float64 else dict(rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(np.asarray(y), want.detach().numpy(), **close)
    scale = float(x.grad.abs().max()) + 1
    np.testing.assert_allclose(np.asarray(leaf.grad) / scale, x.grad.numpy() / scale, **close)
    theirs = dict(module.named_parameters())
    for parameter, tensor in ours.named_parameters():
        g = theirs[parameter].grad.numpy()
        scale = abs(g).max() + 1
        np.testing.assert_allclose(np.asarray(tensor.grad) / scale, g / scale, err_msg=parameter, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 13])
def test_transformer_and_embedding_have_pytorchs_outputs_and_gradients(dtype, length):
    torch.manual_seed(5)
    embedding = torch.nn.Embedding(11, 24).to(dtype)
    module = torch.nn.Transformer(24, 4, 2, 2, 40, 0.0, batch_first=True).to(dtype)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.3)
    source, target = torch.randint(0, 11, (2, 5)), torch.randint(0, 11, (2, length))
    causal = torch.ones(length, length, dtype=torch.bool).triu(1)
    want = module(embedding(source), embedding(target), tgt_mask=causal)
    want.square().sum().backward()
    ours, table = mt.from_torch(module), mt.from_torch(embedding)
    with mh.Tape() as tape:
        y = ours(table(mh.tensor(source.numpy())), table(mh.tensor(target.numpy())))
        tape.backward(mh.sum(y * y))
    close = dict(rtol=1e-9, atol=1e-9) if dtype is torch.float64 else dict(rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(np.asarray(y), want.detach().numpy(), **close)
    theirs = dict(module.named_parameters()) | {"embedding": embedding.weight}
    for name, tensor in [*ours.named_parameters(), ("embedding", dict(table.named_parameters())["weight"])]:
        g = theirs[name].grad.numpy()
        scale = abs(g).max() + 1
        np.testing.assert_allclose(np.asarray(tensor.grad) / scale, g / scale, err_msg=name, **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy_is_pytorchs(dtype, label_smoothing):
    torch.manual_seed(6)
    logits = (4 * torch.randn(7, 3, 31, dtype=dtype)).requires_grad_()
    targets = torch.randint(0, 31, (7, 3))
    targets[2, 1] = targets[5, 0] = -100
    want = F.cross_entropy(logits.view(-1, 31), targets.view(-1), ignore_index=-100, label_smoothing=label_smoothing)
    want.backward()
    leaf = mh.tensor(logits.detach(), requires_grad=True)
    with mh.Tape() as tape:
        loss = mh.cross_entropy(leaf, mh.tensor(targets.numpy()), ignore_index=-100, label_smoothing=label_smoothing)
        tape.backward(loss)
    close = dict(rtol=1e-12, atol=1e-14) if dtype is torch.float64 else dict(rtol=2e-6, atol=2e-8)
    np.testing.assert_allclose(np.asarray(loss), want.detach().numpy(), **close)
    np.testing.assert_allclose(np.asarray(leaf.grad), logits.grad.numpy(), **close)
