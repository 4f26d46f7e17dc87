"""A backward of multihead.torch reads the operands that the forward read, and scalars must be plain numbers."""

import math
import pickle

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

torch.set_num_threads(1)


def operands(bias):
    q, k, v = (make((2, 2, 9, 8), seed=i) for i in range(3))
    generator = torch.Generator().manual_seed(3)
    mask = torch.randn(2, 2, 9, 9, generator=generator) if bias else torch.rand(2, 2, 9, 9, generator=generator) < 0.7
    return q, k, v, mask


OPERANDS = {"query": 0, "key": 1, "value": 2, "a mask": 3, "a bias": 3}


@pytest.mark.parametrize("name", OPERANDS)
def test_a_change_between_forward_and_backward_is_an_error(name):
    tensors = operands(bias=name == "a bias")
    inputs = [t * 1 if t.dtype is not torch.bool else t.clone() for t in tensors]
    out = mt.scaled_dot_product_attention(*inputs)
    with torch.no_grad():
        inputs[OPERANDS[name]].zero_()
    with pytest.raises(RuntimeError, match="inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("result", [0, 1])
def test_a_result_that_changes_is_an_error(result):
    q = make((1, 2, 9, 8))
    results = mt.flex_attention(q, q, q, return_lse=True)
    with torch.no_grad():
        results[result].zero_()
    with pytest.raises(RuntimeError, match="inplace operation"):
        torch.autograd.grad(results[0].sum() + results[1].sum(), q)


@pytest.mark.parametrize("bias", [False, True])
def test_hooks_of_saved_tensors_keep_the_forwards_values(bias):
    q, k, v, mask = operands(bias)
    want = torch.autograd.grad(mt.scaled_dot_product_attention(q, k, v, mask).square().sum(), (q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        out = mt.scaled_dot_product_attention(q, k, v, mask)
    with torch.no_grad():
        mask.zero_()
    for a, b in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), want):
        assert torch.equal(a, b)


def test_a_captured_tensor_is_the_forwards_or_an_error():
    q, table = make((1, 2, 9, 8)), torch.randn(2, 9)
    score = lambda s, b, h, i, j: s + table[h, j]
    want = torch.autograd.grad(mt.flex_attention(q, q, q, score).square().sum(), q)[0]
    out = mt.flex_attention(q, q, q, score)
    table.zero_()
    assert torch.equal(torch.autograd.grad(out.square().sum(), q)[0], want)
    table.requires_grad_()
    out = mt.flex_attention(q, q, q, score)
    with torch.no_grad():
        table.fill_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        out.sum().backward()


def test_a_tensor_that_requires_a_gradient_is_no_number():
    q, w = make((1, 2, 9, 8)), torch.tensor(0.5, requires_grad=True)
    calls = {
        "scale": [
            lambda: mt.scaled_dot_product_attention(q, q, q, scale=w),
            lambda: mt.flex_attention(q, q, q, scale=w),
        ],
        "dropout_p": [lambda: mt.scaled_dot_product_attention(q, q, q, dropout_p=w)],
        "is_causal": [lambda: mt.scaled_dot_product_attention(q, q, q, is_causal=w)],
        "enable_gqa": [lambda: mt.flex_attention(q, q, q, enable_gqa=w)],
        "KV_LEN": [lambda: mt.create_block_mask(lambda b, h, i, j: i >= j, KV_LEN=w)],
        "makes a number": [
            lambda: mt.flex_attention(q, q, q, lambda s, b, h, i, j: s * float(w)),
            lambda: mt.flex_attention(q, q, q, lambda s, b, h, i, j: s * w.item()),
            lambda: mt.flex_attention(q, q, q, lambda s, b, h, i, j: s * math.exp(w)),
        ],
    }
    for text, functions in calls.items():
        for function in functions:
            with pytest.raises(TypeError, match=text):
                function()
    with mt.patch(always=True), pytest.raises(TypeError, match="scale"):
        F.scaled_dot_product_attention(q, q, q, scale=w)
    a, b = (mt.scaled_dot_product_attention(q, q, q, scale=scale) for scale in (w.detach(), 0.5))
    assert torch.equal(a, b)


class Settings:
    slope = 0.5


FACTOR = 0.5
TABLE = torch.tensor([0.5, 0.25])


def keyword_only(s, b, h, i, j, *, factor=0.5):
    return s * factor


READS = {  # a function, and what changes something that it reads
    "global": (lambda s, b, h, i, j: s * FACTOR, lambda: globals().update(FACTOR=0.125)),
    "global of a nested function": (lambda s, b, h, i, j: (lambda: s * FACTOR)(), lambda: globals().update(FACTOR=0.25)),
    "attribute of a class": (lambda s, b, h, i, j: s * Settings.slope, lambda: setattr(Settings, "slope", 0.125)),
    "keyword-only default": (keyword_only, lambda: keyword_only.__kwdefaults__.update(factor=0.125)),
    "state of a library": (
        lambda s, b, h, i, j: s * torch.get_num_threads(),
        lambda: torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1),
    ),
    "values of a tensor": (lambda s, b, h, i, j: s * TABLE[h], lambda: TABLE.mul_(0.5)),
}


@pytest.mark.parametrize("name", READS)
def test_no_call_sees_what_an_earlier_one_read(name):
    q = make((1, 2, 9, 8), grad=False)
    function, change = READS[name]
    masked = lambda b, h, i, j: function(j * 1.0, b, h, i, j) >= 1.5
    mask = mt.create_block_mask(masked)
    before, masked_before = mt.flex_attention(q, q, q, function), mt.flex_attention(q, q, q, None, mask)
    threads = torch.get_num_threads()
    change()
    after, masked_after = mt.flex_attention(q, q, q, function), mt.flex_attention(q, q, q, None, mask)
    fresh = mt.flex_attention(q, q, q, lambda *args: function(*args))
    torch.set_num_threads(threads)
    assert torch.equal(after, fresh) and not torch.equal(after, before)
    assert not torch.equal(masked_after, masked_before)


LEARNT = torch.nn.Parameter(torch.zeros(2))


class Holder:
    table = LEARNT


def test_a_table_gets_its_gradient_in_every_step():
    q = make((1, 2, 9, 8), grad=False)
    for function in (lambda s, b, h, i, j: s + LEARNT[h] * j, lambda s, b, h, i, j: s + Holder.table[h] * j):
        for _ in range(3):
            LEARNT.grad = None
            mt.flex_attention(q, q, q, function).square().sum().backward()
            assert LEARNT.grad is not None and LEARNT.grad.abs().max() > 0


def causal(b, h, i, j):
    return i >= j


def test_a_mask_can_be_copied_and_pickled():
    q = make((1, 2, 9, 8), grad=False)
    mask = pickle.loads(pickle.dumps(mt.create_block_mask(causal, None, None, 9, 9)))
    want = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(mt.flex_attention(q, q, q, block_mask=mask), want)
    assert "causal" in repr(mask)
