"""Tensors that are more than their memory, threads that trace or transform: PyTorch's result, or refused by name."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.autograd.forward_ad as forward_ad  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Subclass(torch.Tensor):
    """Means the negative of its memory."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = lambda t: -t.as_subclass(torch.Tensor) if isinstance(t, cls) else t
        return func(*map(plain, args), **{k: plain(v) for k, v in (kwargs or {}).items()})


def inference(x):
    with torch.inference_mode():
        return x.clone()


def negative_view(x):
    return torch.complex(torch.zeros_like(x), -x).conj().imag


PLAIN = {
    "plain": lambda x: x,
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "buffer": lambda x: torch.nn.Buffer(x),
    "inference": inference,
    "negative view": negative_view,
}
OTHERS = {
    "subclass": lambda x: x.as_subclass(Subclass),
    "zero tensor": lambda x: torch._efficientzerotensor(x.shape),
    "functional": torch._to_functional_tensor,
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "jagged": lambda x: torch.nested.nested_tensor(list(x.transpose(1, 2)), layout=torch.jagged).transpose(1, 2),
    "sparse": lambda x: x.to_sparse(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "meta": lambda x: x.to("meta"),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "causal bias": lambda x: causal_upper_left(x.shape[-2], x.shape[-1]),
    "symbolic": lambda x: np.asarray(x),
}


def patched(*args, **kwargs):
    with mt.patch(always=True):
        return F.scaled_dot_product_attention(*args, **kwargs)


def core(query, key, value, attn_mask=None):
    return torch.from_dlpack(mh.attention(query, key, value, bias=attn_mask))


DIRECT = {
    "scaled_dot_product_attention": mt.scaled_dot_product_attention,
    "flex_attention": mt.flex_attention,
    "attention": core,
}


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return error


def dense(x):
    if isinstance(x, torch.Tensor) and x.is_nested:
        return [dense(part) for part in x.unbind()]
    if not isinstance(x, torch.Tensor) or x.device.type == "meta":
        return x
    if torch._is_functional_tensor(x):
        x = torch._from_functional_tensor(x)
    return x.to_dense() if x.layout is not torch.strided else x.as_subclass(torch.Tensor)


def assert_same(out, want):
    if isinstance(want, Exception):
        assert isinstance(out, Exception), (out, want)
    elif isinstance(want, (list, tuple)):
        assert len(out) == len(want)
        [assert_same(a, b) for a, b in zip(out, want)]
    elif want.device.type == "meta":
        assert out.device.type == "meta" and out.shape == want.shape
    else:
        torch.testing.assert_close(out, want, atol=2e-6, rtol=1e-5)


def qkv(seed=0):
    return [make((2, 3, 5, 8), grad=False, seed=3 * seed + i) for i in range(3)]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS])
def test_kinds_of_tensors(kind, place):
    args = qkv()
    args[place] = {**PLAIN, **OTHERS}[kind](args[place])
    want = outcome(F.scaled_dot_product_attention, *args)
    assert_same(dense(outcome(patched, *args)), dense(want))
    for name, function in DIRECT.items():
        if kind == "symbolic" and name == "attention":
            continue  # NumPy arrays are its daily bread
        out = outcome(function, *args)
        if kind in PLAIN:
            assert_same(out, want)
        else:
            assert isinstance(out, (TypeError, ValueError)) and str(out).startswith(f"{name}: "), (name, out)


@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS])
def test_kinds_of_masks(kind):
    q, k, v = qkv()
    mask = {**PLAIN, **OTHERS}[kind](make((2, 1, 5, 5), grad=False, seed=9))
    want = outcome(F.scaled_dot_product_attention, q, k, v, mask)
    if kind != "meta":  # PyTorch reads memory that is not there
        assert_same(dense(outcome(patched, q, k, v, mask)), dense(want))
    for name, function in (("scaled_dot_product_attention", mt.scaled_dot_product_attention), ("attention", core)):
        if kind == "symbolic" and name == "attention":
            continue
        out = outcome(function, q, k, v, mask)
        if kind in PLAIN:
            assert_same(out, want)
        else:
            assert isinstance(out, (TypeError, ValueError)) and str(out).startswith(f"{name}: "), (name, out)


@pytest.mark.parametrize("kind", [*PLAIN, *OTHERS])
def test_kinds_of_gradients(kind):
    q, k, v = (x.requires_grad_() for x in qkv())
    grad = outcome({**PLAIN, **OTHERS}[kind], make((2, 3, 5, 8), grad=False, seed=9))
    theirs, ours = F.scaled_dot_product_attention(q, k, v), mt.scaled_dot_product_attention(q, k, v)
    out = outcome(lambda: torch.autograd.grad(ours, (q, k, v), grad))
    if kind in PLAIN or kind == "zero tensor":
        assert_same(out, torch.autograd.grad(theirs, (q, k, v), grad))
    else:
        assert isinstance(out, Exception), out


@pytest.mark.parametrize("kind", ["negative view", "subclass", "causal bias"])
def test_captured_tables_and_boolean_masks(kind):
    q, k, v = qkv()
    odd = {**PLAIN, **OTHERS}[kind](make((5, 5), grad=False, seed=9))
    want = F.scaled_dot_product_attention(q, k, v, odd)
    out = outcome(mt.flex_attention, q, k, v, lambda score, b, h, i, j: score + odd[i, j])
    if kind != "causal bias":
        torch.testing.assert_close(out, want)
    else:
        assert isinstance(out, TypeError), out
    if kind not in PLAIN:
        with pytest.raises(TypeError, match="keep"):
            mh.keep(odd)


@pytest.mark.parametrize("sizes", [(5, 5), (3, 5), (5, 3)])
@pytest.mark.parametrize("variant", [causal_upper_left, causal_lower_right])
def test_causal_biases_keep_their_meaning(variant, sizes):
    q, k, v = (make((2, 3, n, 8), grad=False, seed=n) for n in (sizes[0], sizes[1], sizes[1]))
    bias = variant(*sizes)
    want = F.scaled_dot_product_attention(q, k, v, bias)
    with mt.patch(always=True) as record:
        torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, attn_mask=bias), want)
    assert record.reasons == {"a CausalBias": 1} and record.calls == 1  # PyTorch's class asks again in plain words
    with pytest.raises(TypeError, match="attn_mask .* a CausalBias"):
        mt.scaled_dot_product_attention(q, k, v, bias)


@pytest.mark.parametrize("recorded", [False, True])
def test_forward_mode_duals(recorded):
    (q, k, v), tangent = qkv(), make((2, 3, 5, 8), grad=False, seed=9)

    def derivative(function):
        with forward_ad.dual_level():
            out = function(forward_ad.make_dual(q.clone().requires_grad_(recorded), tangent), k, v)
            return forward_ad.unpack_dual(out).tangent

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.testing.assert_close(derivative(patched), derivative(F.scaled_dot_product_attention))
    for name, function in DIRECT.items():
        with pytest.raises(TypeError, match=f"^{name}: query .*forward-mode dual"):
            derivative(function)
    with forward_ad.dual_level(), mt.patch(always=True) as record:  # nobody here has a tangent
        F.scaled_dot_product_attention(q, k, v)
    assert record.calls == 1


def of_trace(function, first, second):
    return torch.jit.trace(function, first, check_trace=False)(*second)


def of_make_fx(mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(function, first, second):
        return make_fx(lambda q, k, v: function(q, k, v), tracing_mode=mode)(*first)(*second)

    return run


def of_fake_tensors(function, first, _):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(function(*first).shape, device="cpu")


def of_export(function, first, second):
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return function(q, k, v)

    return torch.export.export(Module(), tuple(first), strict=False).module()(*second)


STATES = {
    "jit.trace": of_trace,
    "make_fx real": of_make_fx("real"),
    "make_fx fake": of_make_fx("fake"),
    "export": of_export,
    "vmap": lambda function, _, second: torch.vmap(function)(*second),
    "vmap of one": lambda function, _, x: torch.vmap(function, in_dims=(0, None, None))(x[0], x[1][0], x[2][0]),
    "legacy vmap": lambda function, _, second: torch._vmap_internals._vmap(function)(*second),
    "grad": lambda function, _, second: torch.func.grad(lambda *x: function(*x).square().sum())(*second),
    "jvp": lambda function, first, second: torch.func.jvp(function, tuple(first), tuple(second))[1],
    "functionalize": lambda function, _, second: torch.func.functionalize(function)(*second),
}


@pytest.mark.parametrize("state", STATES)
def test_tracing_and_transforming_threads(state):
    run = lambda function: outcome(STATES[state], function, qkv(0), qkv(1))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = run(F.scaled_dot_product_attention)
        assert not isinstance(want, Exception), want
        assert_same(run(patched), want)
    for name, function in DIRECT.items():
        out = run(function)
        assert isinstance(out, (RuntimeError, TypeError)) and f"{name}: " in str(out), (name, out)


def test_onnx_export_keeps_attention_in_the_graph(tmp_path):
    onnx = pytest.importorskip("onnx")

    class Module(torch.nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    with mt.patch(always=True), torch.no_grad():
        torch.onnx.export(Module(), (qkv()[0],), tmp_path / "a.onnx", dynamo=False)
    assert "Softmax" in [node.op_type for node in onnx.load(tmp_path / "a.onnx").graph.node]


def test_scripting_compiles_pytorchs_own():
    layer, x = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval(), torch.randn(2, 8, 16)
    want = layer(x)
    with mt.patch(always=True):
        inside = torch.jit.script(layer)
        torch.testing.assert_close(inside(x), want)
    for scripted in (inside, torch.jit.script(layer)):
        torch.testing.assert_close(scripted(x), want)


def test_compiled_functions():
    q, k, v = qkv()
    want = F.scaled_dot_product_attention(q * 2, k, v) + 1
    with mt.patch(always=True) as record:
        call = lambda q: F.scaled_dot_product_attention(q * 2, k, v) + 1
        torch.testing.assert_close(torch.compile(call, backend="eager", fullgraph=True)(q), want)
    assert record.calls == 0
    for function in (mt.scaled_dot_product_attention, mt.flex_attention):  # beside the graph, or not at all
        call = lambda q: function(q * 2, k, v) + 1
        x = q.clone().requires_grad_()
        out = torch.compile(call, backend="eager")(x)
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), x), torch.autograd.grad(call(x).sum(), x))
        with pytest.raises(Exception, match="multihead's kernels cannot be part of a graph"):
            torch.compile(call, backend="eager", fullgraph=True)(q)
    mha = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with mt.patch(always=True):
        torch.testing.assert_close(torch.compile(mha, backend="eager")(x, x, x)[0], mha(x, x, x)[0])


class Watch(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += func is torch._C._nn.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


class WatchDispatch(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += "scaled_dot_product" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Watch, WatchDispatch])
def test_modes_see_what_they_wait_for(kind):
    q, k, v = qkv()
    with mt.patch(always=True) as record, kind() as mode:
        F.scaled_dot_product_attention(q, k, v)
        assert mode.seen == 1 and record.calls == 0
        mt.scaled_dot_product_attention(q, k, v)  # they change nothing in what is ours by name
    F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("device, ours", [("cpu", 1), ("meta", 0)])
def test_default_devices(device, ours):
    q, k, v = qkv()
    try:
        torch.set_default_device(device)
        with mt.patch(always=True) as record:
            F.scaled_dot_product_attention(q, k, v)
        with torch.device(device), mt.patch(always=True) as second:
            F.scaled_dot_product_attention(q, k, v)
        mt.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    finally:
        torch.set_default_device(None)
    assert record.calls == second.calls == ours


def batched_gradients(function, x, grads):
    out = function(*x)
    return torch.autograd.grad(out, x, grads, is_grads_batched=True)


def vmapped_gradients(function, x, grads):
    out = function(*x)
    return torch.vmap(lambda g: torch.autograd.grad(out, x, g, retain_graph=True))(grads)


@pytest.mark.parametrize("way", [batched_gradients, vmapped_gradients])
def test_gradients_in_batches(way):
    x, grads = [t.requires_grad_() for t in qkv()], make((7, 2, 3, 5, 8), grad=False)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = way(F.scaled_dot_product_attention, x, grads)
    assert_same(way(mt.scaled_dot_product_attention, x, grads), want)
    assert_same(way(mt.flex_attention, x, grads), want)
    with_lse = lambda *x: torch.cat([y.flatten() for y in mt.flex_attention(*x, return_lse=True)])
    both = torch.cat([grads.flatten(1), torch.randn(7, 2 * 3 * 5)], 1)
    one_by_one = [torch.autograd.grad(with_lse(*x), x, g) for g in both]
    assert_same(way(with_lse, x, both), [torch.stack(column) for column in zip(*one_by_one)])


def test_vectorized_jacobians():
    q, k, v = qkv()
    of = lambda function: torch.autograd.functional.jacobian(lambda q: function(q, k, v), q, vectorize=True)
    assert_same(of(mt.scaled_dot_product_attention), of(F.scaled_dot_product_attention))
    hessian = lambda function: torch.autograd.functional.hessian(
        lambda q: function(q, k, v).square().sum(), q, vectorize=True
    )
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = hessian(F.scaled_dot_product_attention)
    assert_same(hessian(mt.scaled_dot_product_attention), want)


def test_nested_tensors_in_modules():
    rows = [torch.randn(n, 16) for n in (4, 6)]
    for strict in (False, True):
        nested = torch.nested.nested_tensor(rows)
        mha = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
        layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).eval()
        for call in (lambda: mha(nested, nested, nested, need_weights=strict)[0], lambda: encoder(nested)):
            with torch.no_grad():
                want = call()
                with mt.patch() as record:
                    out = call()
                    assert not torch.backends.mha.get_fastpath_enabled()
            assert_same(out.unbind(), want.unbind())
            assert set(record.reasons) == {"not a dense tensor"} and record.calls == 0
    assert torch.backends.mha.get_fastpath_enabled() and "__call__" not in vars(torch.nn.MultiheadAttention)


def test_weights_are_counted_as_pytorchs():
    x, mha = torch.randn(2, 5, 16), torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with mt.patch(always=True) as record:
        mha(x, x, x)
        mha(x, x, x, None, True)
        mha(x, x, x, need_weights=False)
    assert record.calls == 1 and record.reasons == {"need_weights=True": 2}


def test_nothing_is_imported_that_takes_seconds():
    import subprocess
    import sys

    program = "import sys, multihead.torch; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
