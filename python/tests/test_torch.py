"""multihead.torch: PyTorch's attention, same semantics, forward and backward."""

import os
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402

torch.set_num_threads(1)


def make(shape, dtype=torch.float32, grad=True, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g).to(dtype).requires_grad_(grad)


def exact(q, k, v, **kwargs):
    """PyTorch's own function in f64."""
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    if kwargs.get("attn_mask") is not None and kwargs["attn_mask"].dtype is not torch.bool:
        kwargs["attn_mask"] = kwargs["attn_mask"].double()
    return wide, F.scaled_dot_product_attention(*wide, **kwargs)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.375},
    "bool mask": {"attn_mask": torch.rand(13, 17, generator=torch.Generator().manual_seed(1)) < 0.7},
    "per head mask": {"attn_mask": torch.rand(2, 4, 13, 17, generator=torch.Generator().manual_seed(2)) < 0.7},
    "float mask": {"attn_mask": torch.randn(4, 13, 17, generator=torch.Generator().manual_seed(3))},
    "batch mask": {"attn_mask": torch.rand(2, 1, 1, 17, generator=torch.Generator().manual_seed(4)) < 0.7},
}


def rms(x, y):
    return float((x.detach().double() - y.detach()).square().mean())


# Root mean square error over that of PyTorch's own kernels, output and the worst gradient, as it is reached. Below one
# in bfloat16 and float16. A float mask makes PyTorch take its unfused way, which keeps the output unrounded for the
# backward, and for a few keys rounds less often.
BOUNDS = {
    (torch.bfloat16, False): 1.01,  # 1.003: dots of pairs round the probabilities to bf16 where a CPU has them
    (torch.float16, False): 1.0,
    (torch.bfloat16, True): 1.35,
    (torch.float16, True): 1.35,
    (torch.float32, False): 1.05,
    (torch.float32, True): 1.45,
}


def errors(function, case, dtype, seed, sizes=(13, 17, 24)):
    """Mean square errors of output and gradients against f64."""
    queries, keys, dim = sizes
    q, k, v = (make((2, 4, n, dim), dtype, seed=10 * seed + i) for i, n in enumerate((queries, keys, keys)))
    grad = make((2, 4, queries, dim), dtype, grad=False, seed=10 * seed + 5)
    kwargs = dict(CASES[case])
    if kwargs.get("attn_mask") is not None and kwargs["attn_mask"].dtype is not torch.bool:
        kwargs["attn_mask"] = kwargs["attn_mask"].to(dtype)
    wide, want = exact(q, k, v, **kwargs)
    want_grads = torch.autograd.grad(want, wide, grad.double())
    out = function(q, k, v, **kwargs)
    assert out.dtype is dtype
    grads = torch.autograd.grad(out, (q, k, v), grad)
    return np.array([rms(x, y) for x, y in zip((out, *grads), (want, *want_grads))])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_outputs_and_gradients_are_as_exact_as_pytorchs(case, dtype):
    seeds = range(8)
    ours = sum(errors(mt.scaled_dot_product_attention, case, dtype, seed) for seed in seeds)
    theirs = sum(errors(F.scaled_dot_product_attention, case, dtype, seed) for seed in seeds)
    ratios = np.sqrt(ours / theirs)
    assert ratios.max() <= BOUNDS[dtype, case == "float mask"], ratios


@pytest.mark.parametrize("case", ["plain", "causal"])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (130, 130, 32), (300, 300, 64), (65, 515, 128)])
def test_long_sums_are_as_exact_as_pytorchs(case, sizes):
    seeds = range(3)
    ours = sum(errors(mt.scaled_dot_product_attention, case, torch.float32, seed, sizes) for seed in seeds)
    theirs = sum(errors(F.scaled_dot_product_attention, case, torch.float32, seed, sizes) for seed in seeds)
    assert np.sqrt(ours / theirs).max() <= 1.0, np.sqrt(ours / theirs)


@pytest.mark.parametrize("case", CASES)
def test_double_precision_is_exact(case):
    assert np.sqrt(errors(mt.scaled_dot_product_attention, case, torch.float64, 0)).max() < 1e-15


@pytest.mark.parametrize(
    "shapes",
    [
        [(13, 24), (17, 24), (17, 9)],
        [(3, 13, 24), (3, 17, 24), (3, 17, 9)],
        [(2, 4, 13, 24), (2, 4, 17, 24), (2, 4, 17, 9)],
        [(5, 2, 4, 13, 24), (5, 2, 4, 17, 24), (5, 2, 4, 17, 24)],
        [(1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)],
        [(2, 4, 0, 8), (2, 4, 5, 8), (2, 4, 5, 8)],
    ],
)
def test_every_number_of_axes(shapes):
    q, k, v = (make(s, seed=i) for i, s in enumerate(shapes))
    out = mt.scaled_dot_product_attention(q, k, v, is_causal=True)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert out.shape == want.shape
    torch.testing.assert_close(out, want, atol=2e-6, rtol=0)
    a, b = torch.autograd.grad(out.sum(), k), torch.autograd.grad(want.sum(), k)
    torch.testing.assert_close(a[0], b[0], atol=5e-6, rtol=0)


def test_grouped_heads():
    q, k, v = make((2, 8, 9, 16)), make((2, 2, 9, 16), seed=1), make((2, 2, 9, 16), seed=2)
    out = mt.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    want = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(out, want, atol=2e-6, rtol=0)
    for a, b in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), torch.autograd.grad(want.square().sum(), (q, k, v))):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    with pytest.raises(mh.ShapeError, match="enable_gqa"):
        mt.scaled_dot_product_attention(q, k, v)


def test_gradient_of_a_float_mask():
    q, k, v = make((2, 4, 9, 16)), make((2, 4, 9, 16), seed=1), make((2, 4, 9, 16), seed=2)
    for shape in [(9, 9), (4, 9, 9), (2, 1, 1, 9)]:
        mask = make(shape, seed=3)
        a = torch.autograd.grad(mt.scaled_dot_product_attention(q, k, v, mask).square().sum(), mask)[0]
        b = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, mask).square().sum(), mask)[0]
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_rows_without_keys_give_zeros():
    q = make((1, 1, 3, 4))
    mask = torch.tensor([[True, True, True], [False, False, False], [False, True, True]])
    out = mt.scaled_dot_product_attention(q, q, q, mask)
    assert (out[0, 0, 1] == 0).all() and torch.isfinite(torch.autograd.grad(out.sum(), q)[0]).all()
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q, mask), atol=1e-6, rtol=0)


def test_dropout_follows_the_manual_seed_and_keeps_expectations():
    q = make((2, 2, 64, 8), grad=False)
    ones = torch.ones(2, 2, 64, 8)
    torch.manual_seed(7)
    a = mt.scaled_dot_product_attention(q, q, ones, dropout_p=0.25)
    torch.manual_seed(7)
    b = mt.scaled_dot_product_attention(q, q, ones, dropout_p=0.25)
    c = mt.scaled_dot_product_attention(q, q, ones, dropout_p=0.25)
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert abs(float(a.mean()) - 1) < 0.05 and float(a.std()) > 0.01
    # The backward drops the same elements: d(sum)/d(value) is the kept share of every key.
    v = ones.clone().requires_grad_()
    torch.manual_seed(7)
    out = mt.scaled_dot_product_attention(q, q, v, dropout_p=0.25)
    assert abs(float(torch.autograd.grad(out.sum(), v)[0].sum()) - float(a.sum())) < 1e-2


def test_no_copies():
    x = torch.randn(2, 3, 4, 8)
    assert mh.tensor(x).data_ptr == x.data_ptr()
    assert torch.from_dlpack(mh.tensor(x)).data_ptr() == x.data_ptr()
    for view in (x.transpose(1, 2), x[:, 1:], x[..., ::2]):
        assert mh.tensor(view).data_ptr == view.data_ptr()
        torch.testing.assert_close(torch.from_dlpack(mh.tensor(view)), view)
    y = mh.randn((3, 4), mh.Rng(1))
    assert mt.to_torch(y).data_ptr() == y.data_ptr
    bf = torch.randn(4, 4).bfloat16()
    assert mh.tensor(bf).dtype == "bfloat16" and mh.tensor(bf).data_ptr == bf.data_ptr()


def test_second_derivatives_are_refused():
    q = make((1, 1, 3, 4))
    out = mt.scaled_dot_product_attention(q, q, q)
    (g,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        g.sum().backward()


def test_changes_in_place_are_noticed():
    q, k = make((1, 1, 3, 4)), make((1, 1, 3, 4), seed=1)
    v = k * 1
    out = mt.scaled_dot_product_attention(q, k, v)
    v.data  # reading is fine
    v.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        out.sum().backward()


def test_checkpointing_and_two_backwards():
    from torch.utils.checkpoint import checkpoint

    q = make((1, 2, 5, 4))
    f = lambda x: mt.scaled_dot_product_attention(x, x, x, is_causal=True).square()
    a = torch.autograd.grad(f(q).sum(), q)[0]
    b = torch.autograd.grad(checkpoint(f, q, use_reentrant=False).sum(), q)[0]
    assert torch.equal(a, b)
    out = f(q).sum()
    first = torch.autograd.grad(out, q, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(out, q)[0])


def bad_inputs():
    good = torch.randn(1, 2, 3, 4)
    quantized = torch.quantize_per_tensor(good, 0.1, 0, torch.qint8)
    return {
        "sparse": (lambda: mt.scaled_dot_product_attention(good.to_sparse(), good, good), TypeError, "sparse"),
        "quantized": (lambda: mt.scaled_dot_product_attention(quantized, good, good), TypeError, "quantized"),
        "meta": (lambda: mt.scaled_dot_product_attention(good.to("meta"), good, good), ValueError, "device meta"),
        "numpy": (lambda: mt.scaled_dot_product_attention(good.numpy(), good, good), TypeError, "ndarray"),
        "int": (lambda: mt.scaled_dot_product_attention(good.int(), good, good), TypeError, "int32"),
        "dtypes": (lambda: mt.scaled_dot_product_attention(good, good.double(), good), TypeError, "one dtype"),
        "shape": (lambda: mt.scaled_dot_product_attention(good, good[..., :2], good), ValueError, "key must be"),
        "axes": (lambda: mt.scaled_dot_product_attention(good[0, 0, 0], good, good), ValueError, "2 axes"),
        "nan scale": (lambda: mt.scaled_dot_product_attention(good, good, good, scale=float("nan")), ValueError, "NaN"),
        "both masks": (
            lambda: mt.scaled_dot_product_attention(good, good, good, torch.ones(3, 3).bool(), is_causal=True),
            RuntimeError,
            "is_causal",
        ),
        "int mask": (
            lambda: mt.scaled_dot_product_attention(good, good, good, torch.ones(3, 3).int()),
            TypeError,
            "attn_mask",
        ),
        "mask shape": (
            lambda: mt.scaled_dot_product_attention(good, good, good, torch.ones(3, 5).bool()),
            ValueError,
            "broadcast",
        ),
        "dropout": (lambda: mt.scaled_dot_product_attention(good, good, good, dropout_p=2.0), ValueError, "dropout_p"),
        "requires grad": (lambda: mh.attention(good.clone().requires_grad_(), good, good), TypeError, "multihead.torch"),
        "sparse tensor": (lambda: mh.tensor(good.to_sparse()), TypeError, "sparse"),
        "quantized tensor": (lambda: mh.tensor(quantized), TypeError, "data"),
        "complex": (lambda: mh.tensor(good.to(torch.complex64)), TypeError, "data"),
    }


@pytest.mark.filterwarnings("ignore")
def test_bad_inputs_are_named():
    for name, (call, kind, text) in bad_inputs().items():
        with pytest.raises(kind) as info:
            call()
        assert text in str(info.value), (name, str(info.value))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_real_cuda_tensors_are_refused():
    x = torch.randn(1, 1, 2, 4, device="cuda")
    with pytest.raises(ValueError, match="cuda"):
        mt.scaled_dot_product_attention(x, x, x)
    with pytest.raises(ValueError, match="cuda"):
        mh.tensor(x)


def cuda_capsule():
    """A DLPack capsule that says it is float32 on a CUDA device."""
    import ctypes

    class Tensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32)]
        _fields_ += [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]
        _fields_ += [("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]

    class Managed(ctypes.Structure):
        _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    shape = (ctypes.c_int64 * 1)(4)
    managed = Managed(Tensor(16, (2, 1), 1, 2, 32, 1, ctypes.addressof(shape), None, 0), None, None)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(managed), b"dltensor", None), (shape, managed)


def test_cuda_memory_is_refused():
    capsule, kept = cuda_capsule()

    class Array:  # says it is on the CPU, and gives this
        __dlpack_device__ = lambda self: (1, 0)
        __dlpack__ = lambda self, **_: capsule

    class CudaArray(Array):
        __dlpack_device__ = lambda self: (2, 1)

    with pytest.raises(ValueError, match="cuda:1"):
        mh.tensor(Array())
    with pytest.raises(ValueError, match="device type 2"):
        mh.attention(CudaArray(), CudaArray(), CudaArray())
    assert kept


# --- flex_attention ----------------------------------------------------------------------------------------


SLOPES = torch.tensor([0.1, 0.3, 0.5, 0.7])
TABLE = torch.randn(4, 65, generator=torch.Generator().manual_seed(9))
DOCUMENTS = torch.tensor([0] * 10 + [1] * 4 + [2] * 19)

SCORES = {
    "alibi": lambda s, b, h, q, k: s - SLOPES[h] * (q - k),
    "softcap": lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0),
    "relative table": lambda s, b, h, q, k: s + TABLE[h, q - k + 32],
    "composed": lambda s, b, h, q, k: 3 * torch.tanh((s - SLOPES[h] * (q - k).abs()) / 3) + TABLE[h, k],
    "where": lambda s, b, h, q, k: torch.where(q >= k, s, s * 0.5),
    "minus inf": lambda s, b, h, q, k: torch.where((q >= k) & (q - k < 9), s, -float("inf")),
    "functions": lambda s, b, h, q, k: torch.sigmoid(s) + torch.exp(-s.abs()) + s.clamp(-1.0, 1.0) ** 2,
    "min max": lambda s, b, h, q, k: torch.minimum(s, torch.maximum(s * s, s - 1.0)) + (k % 3) / (q // 4 + 1),
    "batch": lambda s, b, h, q, k: s * (1.0 + b) - torch.abs(s) * h,
}


def composed(q, k, v, score_mod, mask_mod=None):
    """By the definition, with PyTorch's autograd."""
    b, h, tq, _ = q.shape
    at = torch.meshgrid(*(torch.arange(n) for n in (b, h, tq, k.shape[2])), indexing="ij")
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if score_mod is not None:
        s = score_mod(s, *at)
    if mask_mod is not None:
        s = s.masked_fill(~mask_mod(*at), -float("inf"))
    return torch.softmax(s, -1) @ v


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-5), (torch.float64, 2e-6)])
def test_score_functions_forward_and_backward(name, dtype, tolerance):
    q, k, v = (make((2, 4, 33, 16), dtype, seed=i) for i in range(3))
    grad = make((2, 4, 33, 16), dtype, grad=False, seed=4)
    mod = SCORES[name]
    out, want = mt.flex_attention(q, k, v, mod), composed(q, k, v, mod)
    torch.testing.assert_close(out, want, atol=tolerance, rtol=tolerance)
    for a, b in zip(torch.autograd.grad(out, (q, k, v), grad), torch.autograd.grad(want, (q, k, v), grad)):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


MASKS = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= 5),
    "prefix": lambda b, h, q, k: (q >= k) | (k < 4),
    "documents": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k),
    "per head": lambda b, h, q, k: (k <= q) & (k >= q - 4 * (h + 1)),
    "strided": lambda b, h, q, k: (q >= k) & ((q - k) % 3 == 0),
}


@pytest.mark.parametrize("name", MASKS)
def test_mask_functions(name):
    q, k, v = (make((2, 4, 33, 16), seed=i) for i in range(3))
    block_mask = mt.create_block_mask(MASKS[name], None, None, 33, 33)
    out = mt.flex_attention(q, k, v, SCORES["alibi"], block_mask)
    want = composed(q, k, v, SCORES["alibi"], MASKS[name])
    torch.testing.assert_close(out, want, atol=2e-5, rtol=2e-5)
    a, b = torch.autograd.grad(out.square().sum(), q)[0], torch.autograd.grad(want.square().sum(), q)[0]
    torch.testing.assert_close(a, b, atol=5e-5, rtol=5e-5)


def test_mask_functions_on_many_blocks():
    q, k, v = (make((1, 2, 700, 8), seed=i, grad=False) for i in range(3))
    ids = torch.arange(700) // 90
    mask = lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)
    out = mt.flex_attention(q, k, v, block_mask=mt.create_block_mask(mask))
    torch.testing.assert_close(out, composed(q, k, v, None, mask), atol=5e-6, rtol=0)


FUSED = {  # what the library has built in, and what looks like it
    "alibi": (lambda s, b, h, q, k: s - SLOPES[h] * (q - k), True),
    "alibi, other sign": (lambda s, b, h, q, k: SLOPES[h] * (k - q) + s, True),
    "one slope": (lambda s, b, h, q, k: s + (q - k) * -0.25, True),
    "distance": (lambda s, b, h, q, k: s - SLOPES[h] * (q - k).abs(), False),
    "signed, no mask": (lambda s, b, h, q, k: s - SLOPES[h] * (q - k), False),
    "softcap and alibi": (lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0) - SLOPES[h] * (q - k), True),
    "other cap": (lambda s, b, h, q, k: 5.0 * torch.tanh(s / 4.0), False),
    "reversed": (lambda s, b, h, q, k: SLOPES[h] * (q - k) - s, True),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("keys", [33, 20])
def test_functions_that_are_built_in_keep_their_meaning(name, keys):
    mod, is_causal = FUSED[name]
    q, k, v = make((2, 4, 33, 16)), make((2, 4, keys, 16), seed=1), make((2, 4, keys, 16), seed=2)
    mask = (lambda b, h, q, k: (q >= k) & (q - k < 9)) if is_causal else None
    out = mt.flex_attention(q, k, v, mod, mt.create_block_mask(mask) if mask else None)
    want = composed(q, k, v, mod, mask)
    some = torch.isfinite(want)
    torch.testing.assert_close(out[some], want[some], atol=2e-5, rtol=2e-5)
    a, b = torch.autograd.grad(out[some].sum(), q)[0], torch.autograd.grad(want[some].sum(), q)[0]
    torch.testing.assert_close(a[torch.isfinite(b)], b[torch.isfinite(b)], atol=5e-5, rtol=5e-5)


def test_pytorchs_block_mask_and_lse():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = (make((2, 4, 33, 16), seed=i, grad=False) for i in range(3))
    block_mask = flex.create_block_mask(MASKS["causal"], None, None, 33, 33, device="cpu")
    out, lse = mt.flex_attention(q, k, v, SCORES["softcap"], block_mask, return_lse=True)
    want, want_lse = flex.flex_attention(q, k, v, SCORES["softcap"], block_mask, return_lse=True)
    torch.testing.assert_close(out, want, atol=2e-6, rtol=0)
    torch.testing.assert_close(lse, want_lse, atol=5e-6, rtol=0)


def test_flex_refuses_what_it_cannot_do():
    q = make((1, 4, 5, 8), grad=False)
    learnt = torch.ones(4, requires_grad=True)
    cases = [
        (lambda s, b, h, q, k: s if q > k else -s, TypeError, "control flow"),
        (lambda s, b, h, q, k: s * learnt[h], TypeError, "detach"),
        (lambda s, b, h, q, k: s + SLOPES, TypeError, "indexed"),
        (lambda s, b, h, q, k: torch.fft.fft(s), TypeError, "cannot be traced"),
        (lambda s, b, h, q, k: s + SLOPES[q], IndexError, "outside"),
        (lambda s, b, h, q, k: torch.softmax(s, -1), TypeError, "softmax"),
    ]
    for mod, kind, text in cases:
        with pytest.raises(kind) as info:
            mt.flex_attention(q, q, q, mod)
        assert text in str(info.value)
    with pytest.raises(TypeError, match="condition"):
        mt.create_block_mask(lambda b, h, q, k: q * 1.0)
    with pytest.raises(TypeError, match="create_block_mask"):
        mt.flex_attention(q, q, q, block_mask=torch.ones(5, 5))


# --- patch and modules ---------------------------------------------------------------------------------------


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
        "TransformerEncoderLayer": layer,
        "TransformerEncoderLayer, norm first": pre,
        "TransformerEncoder": t.TransformerEncoder(layer, 3, t.LayerNorm(24)),
        "TransformerDecoder": t.TransformerDecoder(decoder, 2),
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


def test_kernels_run_on_pytorchs_threads():
    q = make((4, 8, 64, 32))
    want = mt.scaled_dot_product_attention(q, q, q)
    before = torch.get_num_threads()
    tasks = lambda: len(os.listdir("/proc/self/task"))
    try:
        torch.set_num_threads(2)
        torch.randn(1 << 20).exp()  # PyTorch's workers exist now
        count = tasks()
        out = mt.scaled_dot_product_attention(q, q, q)
        out.sum().backward()
        assert torch.equal(out, want) and tasks() == count
        pid = os.fork()  # its child has none of them
        if pid == 0:
            same = np.array_equal(mt.scaled_dot_product_attention(q, q, q).detach().numpy(), want.detach().numpy())
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


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
