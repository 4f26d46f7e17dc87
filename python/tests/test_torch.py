"""multihead.torch: PyTorch's attention, same semantics, forward and backward."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402
from torch_tensors import make  # noqa: E402

torch.set_num_threads(1)


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
    (torch.bfloat16, True): 1.70,  # 1.66: on tiles the gradients are rounded as in PyTorch's fused kernels; else 1.35
    (torch.float16, True): 1.35,
    (torch.float32, False): 1.08,  # 1.073: masks on a CPU with AMX
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


KEEP = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5, [False, True, True, False, True]])


@pytest.mark.parametrize("most_scores", [9 * 2**20, 40])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": KEEP}, {"scale": 0.3}, {"enable_gqa": True}], ids=str)
def test_second_derivatives(options, most_scores, monkeypatch):
    monkeypatch.setattr("multihead.torch._derivatives._MOST_SCORES", most_scores)
    heads = 1 if "enable_gqa" in options else 2
    x = [make(s).detach().double().requires_grad_() for s in ((2, 2, 4, 3), (2, heads, 5, 3), (2, heads, 5, 2))]
    assert torch.autograd.gradgradcheck(lambda *x: mt.scaled_dot_product_attention(*x, **options), x)


@pytest.mark.parametrize("most_scores", [9 * 2**20, 40])
@pytest.mark.parametrize("shape", [(1, 2, 4, 5), (4, 1), (1, 5)], ids=str)
def test_second_derivatives_of_a_mask_that_learns(shape, most_scores, monkeypatch):
    monkeypatch.setattr("multihead.torch._derivatives._MOST_SCORES", most_scores)
    x = [make(s).detach().double().requires_grad_() for s in ((2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 2), shape)]
    assert torch.autograd.gradgradcheck(lambda q, k, v, mask: mt.scaled_dot_product_attention(q, k, v, mask), x)


def test_third_derivatives_of_one_tensor_under_patch():
    def third(x):
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True).sin().sum()
        for _ in range(2):
            (y,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(y.sum(), x)[0]

    x = make((1, 2, 6, 4)).detach().double().requires_grad_()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        want = third(x)
    with mt.patch(always=True) as p:
        torch.testing.assert_close(third(x), want)
    assert (p.calls, p.fallbacks) == (1, 0)


def test_second_derivatives_without_a_formula_are_refused():
    q = make((1, 1, 3, 4))
    for out in (mt.scaled_dot_product_attention(q, q, q, dropout_p=0.5), mt.flex_attention(q, q, q, lambda s, *_: s * 2)):
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
