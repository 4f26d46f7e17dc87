"""random() in masks and score functions: DropKey and DropHead against plain PyTorch, and the same numbers on every path."""

import pickle
import random

import numpy as np
import pytest

import multihead as mh

B, H, G, T, D = 3, 4, 2, 70, 8
KEY = 11


def arrays(dtype, length=T, batch=B):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((batch, n, length, D)).astype(dtype) for n in (H, G, G)]


def kept(share=0.2, length=T, batch=B):
    """The pairs that drop_key() keeps, as an array."""
    at = np.ogrid[:batch, :H, :length, :length]
    return (mh.random(KEY, *at).numpy() >= share) | (at[2] == at[3])


def drop_key(share=0.2):
    return mh.mask_mod(lambda b, h, i, j: (mh.random(KEY, b, h, i, j) >= share) | (i == j))


def test_numbers_are_uniform_and_belong_to_their_place():
    x = mh.random(KEY, np.arange(100)[:, None], np.arange(1000))
    assert x.dtype == "float32" and x.shape == (100, 1000)
    numbers = x.numpy()
    assert 0 <= numbers.min() and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(numbers[:, 1:].ravel(), numbers[:, :-1].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(numbers.ravel(), mh.random(KEY + 1, np.arange(100)[:, None], np.arange(1000)).numpy().ravel())[0, 1]) < 0.01
    assert mh.random(KEY, 7, 9).item() == numbers[7, 9] != mh.random(KEY, 7, 9, 0).item()
    assert mh.random(KEY, np.int8(-3)).item() == mh.random(KEY, -3).item()


@pytest.mark.parametrize("dtype, bound", [("f8", 1e-12), ("f4", 5e-6)])
@pytest.mark.parametrize("causal", [False, True])
def test_drop_key_is_pytorchs(dtype, bound, causal):
    torch = pytest.importorskip("torch")
    given = arrays(dtype)
    ours = [mh.tensor(x, requires_grad=True) for x in given]
    theirs = [torch.tensor(x.astype("f8"), requires_grad=True) for x in given]
    allowed = torch.tensor(kept() & (np.tril(np.ones((T, T), bool)) if causal else True))
    s = theirs[0] @ theirs[1].repeat_interleave(H // G, 1).transpose(-1, -2) / D**0.5
    want = s.masked_fill(~allowed, -torch.inf).softmax(-1) @ theirs[2].repeat_interleave(H // G, 1)
    weight = np.random.default_rng(1).standard_normal(want.shape)
    (want * torch.tensor(weight)).sum().backward()
    with mh.Tape() as tape:
        out = mh.attention(*ours, mask=drop_key() & mh.causal() if causal else drop_key())
        tape.backward(mh.sum(out * mh.tensor(weight.astype(dtype))))
    np.testing.assert_allclose(out.detach().numpy(), want.detach().numpy(), rtol=0, atol=bound)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=0, atol=4 * bound)


def test_a_score_function_passes_the_gradient_as_a_constant():
    torch = pytest.importorskip("torch")
    given = arrays("f8")
    numbers = mh.random(KEY, *np.ogrid[:B, :H, :T, :T]).numpy().astype("f8")
    theirs = [torch.tensor(x, requires_grad=True) for x in given]
    s = theirs[0] @ theirs[1].repeat_interleave(H // G, 1).transpose(-1, -2) / D**0.5
    s = s * torch.tensor(numbers) - torch.tensor(numbers).log1p()
    want = s.softmax(-1) @ theirs[2].repeat_interleave(H // G, 1)
    want.square().sum().backward()
    ours = [mh.tensor(x, requires_grad=True) for x in given]

    def noise(s, b, h, i, j):
        x = mh.random(KEY, b, h, i, j)
        return s * x - np.log1p(x)

    with mh.Tape() as tape:
        out = mh.attention(*ours, score_mod=mh.score_mod(noise))
        tape.backward(mh.sum(mh.square(out)))
    for a, b in zip([out, *(x.grad for x in ours)], [want, *(x.grad for x in theirs)]):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=0, atol=1e-12)


def test_drop_head_empties_whole_heads():
    q, k, v = arrays("f4")
    mask = mh.mask_mod(lambda b, h, i, j: mh.random(KEY, b, h) >= 0.5)
    out = mh.attention(q, k, v, mask=mask).numpy()
    alive = mh.random(KEY, np.arange(B)[:, None], np.arange(H)).numpy() >= 0.5
    assert 0 < alive.sum() < B * H
    full = mh.attention(q, k, v).numpy()
    assert np.array_equal(out, np.where(alive[:, :, None, None], full, 0))


def test_the_same_bits_for_threads_batch_chunks_and_dense_masks():
    q, k, v = arrays("f4", 300)
    whole = mh.attention(q, k, v, mask=drop_key() & mh.causal()).numpy()
    threads = mh.num_threads()
    for count in (1, 3):
        mh.set_num_threads(count)
        assert np.array_equal(mh.attention(q, k, v, mask=drop_key() & mh.causal()).numpy(), whole)
    mh.set_num_threads(threads)
    assert np.array_equal(mh.attention(q, k, v, mask=mh.keep(kept(length=300)) & mh.causal()).numpy(), whole)
    for begin, end in ((0, 1), (1, 130), (130, 300)):
        part = mh.attention(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], mask=drop_key() & mh.causal()).numpy()
        assert np.array_equal(part, whole[:, :, begin:end]), (begin, end)
    mask = mh.mask_mod(lambda b, h, i, j: mh.random(KEY, h, i, j) >= 0.2)  # whatever the sample
    assert np.array_equal(mh.attention(q[1:], k[1:], v[1:], mask=mask).numpy(), mh.attention(q, k, v, mask=mask).numpy()[1:])


def test_cached_decoding_drops_the_same_keys():
    rng = np.random.default_rng(2)
    layer = mh.nn.TransformerLayer(embed_dim=16, num_heads=2, hidden_dim=32, rng=mh.Rng(1))
    x = mh.tensor(rng.standard_normal((2, 12, 16)).astype("f4"))

    def scores(s, b, h, i, j):
        return np.where(mh.random(KEY, b, h, i, j) >= 0.5, s, s - 3.0)

    options = {"mask": drop_key(0.4) & mh.causal(), "score_mod": mh.score_mod(scores)}
    whole = layer(x, **options).numpy()
    state = layer.make_state(2, 12)
    steps = [layer(x[:, t : t + 1], state=state, **options).numpy() for t in range(12)]
    assert np.array_equal(np.concatenate(steps, 1), whole)
    assert not np.array_equal(whole, layer(x, mask=mh.causal()).numpy())


def test_flex_attention_traces_it_and_refuses_pytorchs():
    torch = pytest.importorskip("torch")
    mt = pytest.importorskip("multihead.torch")
    given = [torch.tensor(x) for x in arrays("f4")]
    given[1:] = [x.repeat_interleave(H // G, 1) for x in given[1:]]

    def score(s, b, h, i, j):
        return torch.where(mh.random(KEY, b, h, i, j) >= 0.2, s, -torch.inf)

    allowed = mh.random(KEY, *np.ogrid[:B, :H, :T, :T]).numpy() >= 0.2
    s = given[0] @ given[1].transpose(-1, -2) / D**0.5
    want = s.masked_fill(~torch.tensor(allowed), -torch.inf).softmax(-1) @ given[2]
    torch.testing.assert_close(mt.flex_attention(*given, score), want, rtol=0, atol=2e-6)
    for f in (lambda s, *_: s * torch.rand(()), lambda s, *_: torch.rand_like(s), lambda s, *_: torch.dropout(s, 0.1, True)):
        with pytest.raises(TypeError, match="would be drawn once, for all scores; use multihead.random"):
            mt.flex_attention(*given, f)


def test_programs_with_it_are_copied():
    q, k, v = arrays("f4")
    program = mh.score_mod(lambda s, b, h, i, j: s * mh.random(2**53 - 1, b, h, i, j))
    copy = pickle.loads(pickle.dumps(program))
    assert copy.instructions == program.instructions and copy.fingerprint == program.fingerprint
    assert np.array_equal(mh.attention(q, k, v, score_mod=copy).numpy(), mh.attention(q, k, v, score_mod=program).numpy())
    other = mh.score_mod(lambda s, b, h, i, j: s * mh.random(2**53 - 2, b, h, i, j))
    assert other.fingerprint != program.fingerprint


REFUSED = [
    (lambda s, b, h, i, j: mh.random(KEY, s), TypeError, "not the score"),
    (lambda s, b, h, i, j: mh.random(KEY, i, j * 0.5), TypeError, "not a number with a fraction"),
    (lambda s, b, h, i, j: mh.random(KEY, i < j), TypeError, "not a condition"),
    (lambda s, b, h, i, j: mh.random(KEY, i, 0.5), TypeError, "not a number with a fraction"),
    (lambda s, b, h, i, j: mh.random(i, j), TypeError, "the key is a plain integer"),
    (lambda s, b, h, i, j: mh.random(KEY), TypeError, "one to four integers come after the key, got 0"),
    (lambda s, b, h, i, j: mh.random(KEY, b, h, i, j, 1), TypeError, "one to four integers come after the key, got 5"),
    (lambda s, b, h, i, j: mh.random(0.5, i), TypeError, "the key must be an integer, got float"),
    (lambda s, b, h, i, j: mh.random(True, i), TypeError, "the key must be an integer, got bool"),
    (lambda s, b, h, i, j: mh.random(-1, i), ValueError, r"from 0 to 2\*\*53 - 1, got -1"),
    (lambda s, b, h, i, j: mh.random(2**53, i), ValueError, r"from 0 to 2\*\*53 - 1"),
    (lambda s, b, h, i, j: mh.random(KEY, 1.5) + s, TypeError, "an array of integers, got float64"),
    (lambda s, b, h, i, j: mh.random(KEY, 2**31) + s, ValueError, "from -2"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_has_no_meaning_is_refused(case):
    function, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        mh.score_mod(function)


@pytest.mark.parametrize("name", ["numpy.random", "random", "rand"])
def test_draws_of_other_generators_are_refused_while_tracing(name):
    torch = pytest.importorskip("torch")
    draw = {"numpy.random": np.random.rand, "random": random.random, "rand": lambda: torch.rand(())}[name]
    message = f"'{name}' would be drawn once, for all scores; use multihead.random"
    with pytest.raises(TypeError, match=f"score_mod: {message}"):
        mh.score_mod(lambda s, b, h, i, j: s + draw())
    with pytest.raises(TypeError, match=f"mask_mod: {message}"):
        mh.mask_mod(lambda b, h, i, j: (draw() < 0.5) & (j <= i))
    mh.score_mod(lambda s, b, h, i, j: s + torch.ones(()).item())  # what draws nothing may be called
