"""Puts multihead's attention under PyTorch's, for the duration of a with block."""

import contextlib
import threading

import torch
import torch.nn.functional as F

from . import _attention


# Queries * keys * width below which PyTorch's own call is as quick: it pays no Python for recording the gradient and
# none for being found in the caches of a model that just ran something else. Measured inside GPT steps on two cores
# (Zen 5, PyTorch 2.15): with gradients -11 us per layer at 2^16, -27 to +17 at 2^18, +73 at 2^19; forward only +3 at
# 2^16. With dropout PyTorch has no fused way, and ours wins at every size.
_LEAST_WORK, _LEAST_WORK_WITH_GRADIENT = 2**16, 2**19
_TOO_SMALL = "too small to gain"


class Patch:
    """What happened inside a patch() block."""

    def __init__(self):
        self.calls = 0
        self.fallbacks = 0
        self.reasons = {}

    def left_to_pytorch(self, reason):
        self.fallbacks += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def __repr__(self):
        return f"<multihead.torch.patch: {self.calls} calls, {self.fallbacks} left to PyTorch {self.reasons or ''}>"


def _why_not(query, key, value, attn_mask):
    """Why PyTorch must do this call itself."""
    for tensor in (query, key, value) if attn_mask is None else (query, key, value, attn_mask):
        if not isinstance(tensor, torch.Tensor):
            return "not a tensor"
        if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
            return "not a dense tensor"
        if tensor.device.type != "cpu":
            return f"device {tensor.device.type}"
        if type(tensor) not in _attention._TYPES:
            return f"a {type(tensor).__name__}"
    if _in_transform():
        return "a torch.func transform or tracing"
    return f"dtype {query.dtype}"


def _in_transform():
    return (
        torch._C._functorch.maybe_current_level() is not None
        or torch.overrides._is_torch_function_mode_enabled()
        or torch.compiler.is_compiling()
    )


def _is_ours(query, key, value, attn_mask):
    return (
        isinstance(query, torch.Tensor)
        and _attention.is_plain(query, key, value)
        and (attn_mask is None or _attention.is_plain_mask(attn_mask))
        and not _in_transform()
    )


def _is_small(query, key, value):
    if type(query) not in _attention._TYPES or type(key) not in _attention._TYPES or query.is_nested or key.is_nested:
        return False
    shape = key.shape
    work = query.numel() * shape[-2] if len(shape) >= 2 else 0
    if work >= _LEAST_WORK_WITH_GRADIENT:
        return False
    recorded = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return recorded or work < _LEAST_WORK


_lock = threading.Lock()
_blocks = ()  # (record, always) of every patch() block that runs, in any thread; the newest takes the calls
_original, _fast_path = None, None


def _patched(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    blocks = _blocks
    if blocks:
        record, always = blocks[-1]
        if dropout_p == 0.0 and not always and _is_small(query, key, value):
            record.left_to_pytorch(_TOO_SMALL)
        else:
            q, k, v, mask = _attention.autocast(query, key, value, attn_mask)
            if _is_ours(q, k, v, mask):
                record.calls += 1
                return _attention.plain_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
            record.left_to_pytorch(_why_not(query, key, value, attn_mask))
    return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _begin(block):
    global _blocks, _original, _fast_path
    with _lock:
        if F.scaled_dot_product_attention is not _patched and not _blocks:
            _original = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = _patched
        if not _blocks:
            _fast_path = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _blocks += (block,)


def _end(block):
    global _blocks
    with _lock:
        _blocks = tuple(other for other in _blocks if other is not block)
        if _blocks:
            return
        torch.backends.mha.set_fastpath_enabled(_fast_path)
        if F.scaled_dot_product_attention is _patched:  # else somebody has put theirs above ours
            F.scaled_dot_product_attention = _original


@contextlib.contextmanager
def patch(*, always=False):
    """Makes torch.nn.functional.scaled_dot_product_attention, and with it nn.MultiheadAttention, nn.Transformer* and
    Hugging Face models (attn_implementation="sdpa"), use multihead's attention for CPU tensors.

    Tensors elsewhere, nested ones and functorch transforms are left to PyTorch, and so are calls without dropout that
    are too small to gain (queries * keys * width of all heads and samples below 2^19 with a gradient, 2^16 without),
    unless `always`. The object that the block gets counts both: `with patch() as p: …; print(p)`. The patch is
    process-wide while a block runs; blocks may nest, overlap and run in several threads, and the newest counts. The
    fused inference path of nn.MultiheadAttention and nn.TransformerEncoder, which has its own attention, is off
    meanwhile.
    """
    block = (Patch(), always)
    _begin(block)
    try:
        yield block[0]
    finally:
        _end(block)
