"""attention_rows: weights that are any function of whole rows of scores."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import multihead as mh


def stick_breaking(rows):
    left = mh.log_sigmoid(-rows.scores)
    return mh.exp(mh.log_sigmoid(rows.scores) + mh.cumsum(left, -1, reverse=True) - left)


def gated_softmax(rows, table):
    """Reads the queries and the place of the rows."""
    place = np.arange(rows.first_row, rows.first_row + rows.scores.shape[2], dtype="f8")[:, None]
    gate = mh.sigmoid(mh.sum(rows.query * table, -1, True)) + mh.cast(mh.tensor(0.01 * place), rows.scores.dtype)
    return mh.softmax(rows.scores) * gate


def inputs(length, dtype="f8", batch=2, heads=4, kv_heads=2, dim=16):
    rng = np.random.default_rng(length)
    shapes = [(batch, heads, length, dim), (batch, kv_heads, length, dim), (batch, kv_heads, length, dim)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("length", [1, 70, 300])
def test_gradients_of_every_input(length):
    q, k, v = inputs(length)
    table = np.linspace(-1, 1, 16)

    def plain(q, k, v, table):
        k, v = (x[:, [0, 0, 1, 1]] for x in (k, v))
        s = mh.scale(mh.matmul(q, mh.transpose(k, -1, -2)), 0.25)
        s = mh.where(np.tril(np.ones((length, length), bool)), s, float("-inf"))
        gate = mh.sigmoid(mh.sum(q * table, -1, True)) + mh.tensor(0.01 * np.arange(length)[:, None])
        return mh.matmul(mh.softmax(s) * gate, v)

    def ours(q, k, v, table):
        return mh.attention_rows(q, k, v, gated_softmax, mask=mh.causal(), inputs=[table])

    results = []
    for f in (ours, plain):
        leaves = [mh.tensor(x, requires_grad=True) for x in (q, k, v, table)]
        with mh.Tape() as tape:
            y = f(*leaves)
            tape.backward(mh.sum(y * mh.tensor(np.cos(np.arange(y.numpy().size)).reshape(y.shape))))
        results.append([y.numpy()] + [x.grad.numpy() for x in leaves])
    for got, want in zip(*results):
        assert np.abs(got - want).max() <= 1e-12 * max(1.0, np.abs(want).max())


class StickBreaking(mh.nn.Attention):
    def attend(self, q, k, v, x, call):
        return mh.attention_rows(q, k, v, stick_breaking, mask=call.options["mask"])


def test_a_language_model_decodes_with_the_bits_of_the_whole_and_learns():
    config = mh.models.LanguageModelConfig(vocab_size=40, context=300, num_layers=2, num_heads=4, embed_dim=32, ffn_dim=48,
                                           positions="rotary", init_std=0.3)  # fmt: skip
    model = mh.models.LanguageModel(config, attention=StickBreaking, rng=mh.Rng(1))
    x = np.random.default_rng(0).integers(0, 40, (2, 270))
    whole = model(x).numpy()
    state = model.make_state(2)
    parts = [model(x[:, a:b], state=state).numpy() for a, b in ((0, 5), (5, 200), (200, 269), (269, 270))]
    assert np.array_equal(np.concatenate(parts, 1), whole)
    with mh.Tape() as tape:
        tape.backward(mh.sum(mh.square(model(x[:, :40]))))
    projections = [p for n, p in model.named_parameters() if "self_attn.in_proj" in n]
    assert len(projections) >= 2 and all(np.abs(p.grad.numpy()).max() > 0 for p in projections)


def peak_of_4096_tokens():
    q, k, v = (mh.tensor(x, requires_grad=True) for x in inputs(4096, "f4", 1, 1, 1, 32))
    with mh.Tape() as tape:
        tape.backward(mh.sum(mh.attention_rows(q, k, v, stick_breaking, mask=mh.causal())))
    return mh.memory_stats()["peak_bytes"]


def test_memory_is_that_of_some_rows():
    program = "import test_attention_rows; print(test_attention_rows.peak_of_4096_tokens())"  # a peak is its process's
    done = subprocess.run([sys.executable, "-c", program], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40 << 20  # a matrix of scores takes 64 MiB


def test_refusals():
    q, k, v = inputs(3)
    with pytest.raises(mh.ShapeError, match=r"weights must return \[B, H, rows, keys\] = \[2, 4, 3, 256\], got \[2, 4, 3\]"):
        mh.attention_rows(q, k, v, lambda rows: mh.sum(rows.scores, -1))
    learned = mh.tensor(np.ones(1), requires_grad=True)
    with mh.Tape(), pytest.raises(ValueError, match="reads a tensor that needs a gradient; give it among inputs"):
        mh.attention_rows(q, k, v, lambda rows: mh.softmax(rows.scores) * learned)
    with pytest.raises(ZeroDivisionError):
        mh.attention_rows(q, k, v, lambda rows: 1 / 0)
    alive = np.ones(2, bool)
    with pytest.raises(IndexError):
        mh.attention_rows(q, k, v, stick_breaking, mask=mh.mask_mod(lambda b, h, i, j: alive[j]))
