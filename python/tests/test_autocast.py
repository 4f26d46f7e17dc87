"""Mixed precision: types, gradients, and a loss curve beside torch.autocast's."""

import numpy as np
import pytest

import multihead as mh

torch = pytest.importorskip("torch")


def test_products_are_bf16_and_statistics_f32():
    x, w = mh.randn((3, 8), mh.Rng(1)), mh.randn((4, 8), mh.Rng(2)).requires_grad_()
    with mh.Tape() as tape, mh.autocast():
        y = mh.linear(x, w)
        assert y.dtype == "bfloat16"
        with mh.autocast("float32"):
            assert mh.linear(x, w).dtype == "float32"
        assert mh.softmax(y).dtype == "float32"
        tape.backward(mh.mean(mh.softmax(y)))
    assert w.grad.dtype == "float32"
    assert mh.linear(x, w).dtype == "float32"
    with pytest.raises(mh.DtypeError, match="bf16 or f32"):
        mh.autocast("float16")


def test_the_loss_curve_is_that_of_torch_autocast():
    rng = np.random.default_rng(0)
    w1, w2 = (rng.normal(size=s).astype(np.float32) * 0.2 for s in [(32, 16), (8, 32)])
    x = rng.normal(size=(64, 16)).astype(np.float32)
    targets = rng.integers(0, 8, size=64)
    steps, lr = 30, 0.5

    theirs = []
    a, b = (torch.tensor(w, requires_grad=True) for w in (w1, w2))
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.nn.functional.linear(torch.nn.functional.layer_norm(torch.tensor(x), (16,)), a)
            logits = torch.nn.functional.linear(torch.nn.functional.gelu(h), b)
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(targets))
        loss.backward()
        theirs.append(loss.item())
        with torch.no_grad():
            for w in (a, b):
                w -= lr * w.grad
                w.grad = None

    ours = []
    for _ in range(steps):
        c, d = (mh.tensor(w).requires_grad_() for w in (w1, w2))
        with mh.Tape() as tape:
            with mh.autocast():
                h = mh.linear(mh.layer_norm(mh.tensor(x)), c)
                loss = mh.cross_entropy(mh.linear(mh.gelu(h), d), mh.tensor(targets))
            tape.backward(loss)
        ours.append(loss.item())
        w1, w2 = w1 - lr * c.grad.numpy(), w2 - lr * d.grad.numpy()
    assert theirs[-1] < 0.9 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=0.01)
