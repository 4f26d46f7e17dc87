"""multihead.torch.patch() under modules and models, on PyTorch's threads, in forked children."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

torch.set_num_threads(1)


def test_patch_under_torch_modules():
    torch.manual_seed(0)
    x = torch.randn(3, 9, 32)
    original = F.scaled_dot_product_attention
    for module in (
        torch.nn.MultiheadAttention(32, 4, batch_first=True),
        torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0),
    ):
        module.eval()
        arguments = (x, x, x) if isinstance(module, torch.nn.MultiheadAttention) else (x,)
        options = {"need_weights": False} if len(arguments) == 3 else {}
        want = module(*arguments, **options)
        with mt.patch(always=True) as record:
            out = module(*arguments, **options)
        first = lambda y: y[0] if isinstance(y, tuple) else y
        torch.testing.assert_close(first(out), first(want), atol=2e-6, rtol=0)
        assert record.calls == 1 and record.fallbacks == 0
    assert F.scaled_dot_product_attention is original
    with pytest.raises(KeyError), mt.patch():
        raise KeyError
    assert F.scaled_dot_product_attention is original


def test_patches_that_nest_overlap_and_run_in_threads_leave_nothing_behind():
    original, fast_path = F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()
    q = torch.ones(1, 2, 8, 4)
    first, second = mt.patch(always=True), mt.patch(always=True)
    outer, inner = first.__enter__(), second.__enter__()
    F.scaled_dot_product_attention(q, q, q)
    first.__exit__(None, None, None)
    F.scaled_dot_product_attention(q, q, q)
    assert (outer.calls, inner.calls) == (0, 2)
    second.__exit__(None, None, None)
    assert F.scaled_dot_product_attention is original and torch.backends.mha.get_fastpath_enabled() == fast_path

    def work():
        for _ in range(200):
            with mt.patch():
                F.scaled_dot_product_attention(q, q, q)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert F.scaled_dot_product_attention is original and torch.backends.mha.get_fastpath_enabled() == fast_path


def test_a_patch_beneath_another_library_steps_aside():
    original, q = F.scaled_dot_product_attention, torch.ones(1, 2, 8, 4)
    with mt.patch(always=True) as record:
        ours = F.scaled_dot_product_attention
        theirs = lambda *arguments: ours(*arguments)
        F.scaled_dot_product_attention = theirs
        theirs(q, q, q)
    try:
        assert F.scaled_dot_product_attention is theirs and record.calls == 1
        torch.testing.assert_close(theirs(q, q, q), original(q, q, q))
        with mt.patch(always=True) as record:
            theirs(q, q, q)
        assert record.calls == 1
    finally:
        F.scaled_dot_product_attention = original


@pytest.mark.parametrize("length, grad, ours", [(8, False, False), (40, False, True), (40, True, False), (128, True, True)])
def test_patch_leaves_small_calls_to_pytorch(length, grad, ours):
    x = make((1, 4, length, 16), grad=grad)
    with mt.patch() as record:
        F.scaled_dot_product_attention(x, x, x)
        assert (record.calls, record.fallbacks) == ((1, 0) if ours else (0, 1))
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
        assert record.calls == 1 + ours
    assert ours or "too small" in repr(record)


def test_patch_leaves_the_rest_to_pytorch():
    x = torch.randn(1, 2, 3, 4)
    with mt.patch(always=True) as record:
        out = F.scaled_dot_product_attention(x.to("meta"), x.to("meta"), x.to("meta"))
    assert out.device.type == "meta" and record.fallbacks == 1 and "meta" in repr(record)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_converts_what_pytorch_converts(dtype):
    q, k, v = (torch.randn(2, 2, 9, 8, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3))
    mixed = (q, k, v.to(torch.bfloat16))  # as behind a norm in float32
    double = (q.double(), k.double(), v.double())
    masks = (None, torch.randn(9, 9), torch.rand(9, 9) < 0.9)
    with torch.autocast("cpu", dtype):
        for args in [(*qkv, mask) for qkv in ((q, k, v), mixed) for mask in masks] + [double]:
            want = F.scaled_dot_product_attention(*args)
            with mt.patch(always=True) as record:
                out = F.scaled_dot_product_attention(*args)
            assert record.calls == 1 and out.dtype == want.dtype == mt.scaled_dot_product_attention(*args).dtype
            torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
        assert mt.flex_attention(q, k, v).dtype is dtype
    mt.scaled_dot_product_attention(*mixed[:2], v).float().sum().backward()
    assert q.grad.dtype is torch.float32


def test_transforms_are_left_to_pytorch_and_refused_by_name():
    q, k, v = torch.randn(3, 2, 2, 9, 8).unbind()
    want = torch.vmap(F.scaled_dot_product_attention)(q, k, v)
    with mt.patch(always=True) as record:
        assert torch.equal(torch.vmap(F.scaled_dot_product_attention)(q, k, v), want)
        torch.func.grad(lambda x: F.scaled_dot_product_attention(x, k, v).sum())(q)
    assert record.calls == 0 and "transform" in repr(record)
    for transform in (torch.vmap, lambda f: torch.func.grad(lambda *args: f(*args).sum())):
        for function in (mt.scaled_dot_product_attention, mt.flex_attention):
            with pytest.raises(RuntimeError, match=f"{function.__name__}: torch.func transforms"):
                transform(function)(q, k, v)


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_patch_under_hugging_face(family):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    common = dict(vocab_size=99, attn_implementation="sdpa")
    if family == "bert":
        config = transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, **common
        )
        model = transformers.BertModel(config)
    elif family == "llama":
        config = transformers.LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            **common,
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, **common))
    model.eval()
    ids = torch.randint(0, 99, (2, 11))
    padding = torch.ones_like(ids)
    padding[1, :4] = 0
    for mask in (None, padding):
        want = model(input_ids=ids, attention_mask=mask)[0]
        with mt.patch(always=True) as record:
            out = model(input_ids=ids, attention_mask=mask)[0]
        assert record.calls == 2 and record.fallbacks == 0
        seen = slice(None) if mask is None else mask.bool()
        torch.testing.assert_close(out[seen], want[seen], atol=5e-5, rtol=1e-4)


def test_training_step_under_patch_gives_the_same_gradients():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(2, 9, 32)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(9)

    def gradients():
        layer.zero_grad()
        layer(x, src_mask=causal, is_causal=True).square().sum().backward()
        return [p.grad.clone() for p in layer.parameters()]

    want = gradients()
    with mt.patch(always=True) as record:
        out = gradients()
    assert record.calls == 1
    for a, b in zip(out, want):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)


def test_kernels_run_on_pytorchs_threads():
    q = make((4, 8, 64, 32))
    want = mt.scaled_dot_product_attention(q, q, q)
    before = torch.get_num_threads()
    tasks = lambda: set(os.listdir("/proc/self/task"))  # others' threads may end meanwhile
    try:
        torch.set_num_threads(2)
        torch.randn(1 << 20).exp()  # PyTorch's workers exist now
        known = tasks()
        out = mt.scaled_dot_product_attention(q, q, q)
        out.sum().backward()
        assert torch.equal(out, want) and tasks() <= known
        pid = os.fork()  # its child has none of them
        if pid == 0:
            same = np.array_equal(mt.scaled_dot_product_attention(q, q, q).detach().numpy(), want.detach().numpy())
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_a_child_that_imports_after_pytorch_had_workers_has_its_own():
    program = """
import os, signal, sys, torch
torch.set_num_threads(2)
torch.randn(1 << 20).exp()  # PyTorch's workers exist now, and will not in the child
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    import multihead.torch as mt
    q = torch.ones(2, 8, 64, 32)
    os._exit(0 if torch.equal(mt.scaled_dot_product_attention(q, q, q), q) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0


def test_threads_and_forks_with_pytorch():
    q = make((2, 2, 16, 8), grad=False)
    want = mt.scaled_dot_product_attention(q, q, q)
    wrong = []

    def work():
        x = q.clone().requires_grad_()
        for _ in range(100):
            out = mt.scaled_dot_product_attention(x, x, x)
            out.sum().backward()
            if not torch.equal(out, want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    pid = os.fork()
    if pid == 0:
        os._exit(0 if torch.equal(mt.scaled_dot_product_attention(q, q, q), want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def wrong_calls():
    r = torch.randn
    x = r(1, 2, 4, 8)
    return {
        "one axis": ((r(8),) * 3, {}),
        "widths": ((x, r(1, 2, 4, 6), r(1, 2, 4, 6)), {}),
        "heads": ((x, r(1, 3, 4, 8), r(1, 3, 4, 8)), {}),
        "batches": ((r(2, 2, 4, 8), r(3, 2, 4, 8), r(3, 2, 4, 8)), {}),
        "mask": ((x, x, x, torch.ones(5, 3, dtype=torch.bool)), {}),
        "axes of the mask": ((x, x, x, torch.ones(1, 1, 1, 4, 4, dtype=torch.bool)), {}),
        "integer mask": ((x, x, x, torch.ones(4, 4, dtype=torch.int32)), {}),
        "two masks": ((x, x, x, torch.ones(4, 4, dtype=torch.bool)), {"is_causal": True}),
        "dropout": ((x, x, x), {"dropout_p": 1.5}),
        "dtypes": ((x, x.double(), x), {}),
        "a gradient for scale": ((x, x, x), {"scale": torch.ones((), requires_grad=True)}),
        "text for scale": ((x, x, x), {"scale": "1"}),
        "grouped heads": ((r(1, 5, 4, 8), x, x), {"enable_gqa": True}),
        "no tensor": ((x, x, None), {}),
        "no query": ((None, x, x), {}),
        "a list for the query": (([1.0], x, x), {}),
        "scale by its place": ((x, x, x, None, 0.0, False, 0.5), {}),
        "a number for a bool": ((x, x, x), {"enable_gqa": 1}),
        "nothing for a bool": ((x, x, x), {"is_causal": None}),
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_errors_are_of_pytorchs_types(name):
    args, options = wrong_calls()[name]
    with pytest.raises(Exception) as theirs:
        F.scaled_dot_product_attention(*args, **options)
    with mt.patch(always=True) as record, pytest.raises(theirs.type):
        F.scaled_dot_product_attention(*args, **options)
    assert record.calls == 0


def test_wrong_shapes_are_value_errors_too():
    x = torch.randn(1, 2, 4, 8)
    for kind in (ValueError, RuntimeError):
        with mt.patch(always=True), pytest.raises(kind, match="key must be"):
            F.scaled_dot_product_attention(x, x[..., :6], x[..., :6])
        with pytest.raises(kind, match="key must be"):
            mt.scaled_dot_product_attention(x, x[..., :6], x[..., :6])


def test_what_pytorch_accepts_is_left_to_it():
    x = torch.randn(1, 2, 4, 8)
    want = F.scaled_dot_product_attention(x, x, x, scale=float("nan"))
    with mt.patch(always=True) as record:
        assert torch.equal(F.scaled_dot_product_attention(x, x, x, scale=float("nan")), want)
    assert record.calls == 0 and "refused" in repr(record)


class Renamed(torch.nn.MultiheadAttention):
    def forward(self, hidden_states, need_weights=None):
        return super().forward(hidden_states, hidden_states, hidden_states, need_weights=False)[0]


class Positional(torch.nn.MultiheadAttention):
    def forward(self, query, key, value, mask, bias):
        return super().forward(query + bias, key, value, attn_mask=mask, need_weights=False)[0]


class Nothing(torch.nn.MultiheadAttention):
    def forward(self):
        x = torch.ones(1, 3, 16)
        return super().forward(x, x, x, need_weights=False)[0]


class Layer(torch.nn.TransformerEncoderLayer):
    def forward(self, hidden, position=None):
        return super().forward(hidden + position)


@pytest.mark.parametrize("kind", [Renamed, Positional, Nothing, Layer])
def test_modules_with_a_forward_of_their_own(kind):
    x = torch.randn(1, 3, 16)
    module = (kind(16, 2, 8, 0.0, batch_first=True) if kind is Layer else kind(16, 2, batch_first=True)).eval()
    args, options = {
        Renamed: ((), dict(hidden_states=x)),
        Positional: ((x, x, x, None, x), {}),
        Nothing: ((), {}),
        Layer: ((), dict(hidden=x, position=x)),
    }[kind]
    want = module(*args, **options)
    with mt.patch(always=True) as record:
        torch.testing.assert_close(module(*args, **options), want)
    assert (record.calls, record.fallbacks) == (1, 0)


@pytest.mark.parametrize("needed, count", [((), 1), ((None, True), 1), ((None, False), 0), ((None, None), 0)])
def test_calls_for_weights_are_counted(needed, count):
    x = torch.randn(1, 3, 16)
    with mt.patch(always=True) as record:
        torch.nn.MultiheadAttention(16, 2, batch_first=True)(x, x, x, *needed)
    assert record.fallbacks == count


@pytest.mark.parametrize("nests", (True, False))
def test_what_an_encoder_gives_at_the_padding_is_as_without_patch(nests):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(32), enable_nested_tensor=nests).eval()
    x, padding = torch.randn(2, 9, 32), torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 5:] = True
    with torch.no_grad():
        want = encoder(x, src_key_padding_mask=padding)
        with mt.patch(always=True) as record:
            out = encoder(x, src_key_padding_mask=padding)
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-4)
    assert (record.calls == 0) == nests == any("padding" in reason for reason in record.reasons)
