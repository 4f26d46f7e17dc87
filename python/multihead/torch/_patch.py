"""Puts multihead's attention under PyTorch's, for the duration of a with block."""

import contextlib

import torch
import torch.nn.functional as F

from . import _attention


class Patch:
    """What happened inside a patch() block."""

    def __init__(self):
        self.calls = 0
        self.fallbacks = 0
        self.reasons = {}

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


@contextlib.contextmanager
def patch():
    """Makes torch.nn.functional.scaled_dot_product_attention, and with it nn.MultiheadAttention, nn.Transformer* and
    Hugging Face models (attn_implementation="sdpa"), use multihead's attention for CPU tensors.

    Tensors elsewhere, nested ones and functorch transforms are left to PyTorch. The object that the block gets counts
    both: `with patch() as p: …; print(p)`. The patch is process-wide while the block runs. The fused inference path
    of nn.MultiheadAttention and nn.TransformerEncoder, which has its own attention, is switched off.
    """
    original = F.scaled_dot_product_attention
    fast_path = torch.backends.mha.get_fastpath_enabled()
    record = Patch()

    def scaled_dot_product_attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ):
        if _is_ours(query, key, value, attn_mask):
            record.calls += 1
            return _attention.plain_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
            )
        reason = _why_not(query, key, value, attn_mask)
        record.fallbacks += 1
        record.reasons[reason] = record.reasons.get(reason, 0) + 1
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    F.scaled_dot_product_attention = scaled_dot_product_attention
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield record
    finally:
        F.scaled_dot_product_attention = original
        torch.backends.mha.set_fastpath_enabled(fast_path)
