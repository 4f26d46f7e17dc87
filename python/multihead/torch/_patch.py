"""Replaces PyTorch's attention by multihead's inside a with block."""

import contextlib
import threading

import torch
import torch.nn.functional as F

from .. import _torch_guards
from . import _attention

# Queries * keys * width below which PyTorch's own call is as quick: it pays no Python for recording the gradient and
# none for being found in the caches of a model that just ran something else. Measured inside GPT steps on two cores
# (Zen 5, PyTorch 2.15): with gradients -11 us per layer at 2^16, -27 to +17 at 2^18, +73 at 2^19; forward only +3 at
# 2^16. With dropout PyTorch has no fused way, and ours wins at every size.
_LEAST_WORK, _LEAST_WORK_WITH_GRADIENT = 2**16, 2**19
_TOO_SMALL = "too small to gain"
_REFUSED = "refused by multihead"
_TYPES = _torch_guards._TYPES
_allows_fused = torch._C._get_flash_sdp_enabled  # the one that PyTorch has on the CPU
_is_compiling, _tracing_state = torch.compiler.is_compiling, torch._C._get_tracing_state


class Patch:
    """The call counts of a patch() block."""

    def __init__(self):
        self.calls = 0
        self.fallbacks = 0
        self.reasons = {}

    def left_to_pytorch(self, reason):
        self.fallbacks += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def __repr__(self):
        reasons = f" {self.reasons}" if self.reasons else ""
        return f"<multihead.torch.patch: {self.calls} calls, {self.fallbacks} left to PyTorch{reasons}>"


def _why_not(tensors):
    """Why a call with these tensors is left to PyTorch."""
    reasons = (_torch_guards.why_not(tensor) for tensor in tensors if tensor is not None)
    why = next((why for why in reasons if why is not None), None)
    return why or f"dtype {getattr(tensors[0], 'dtype', type(tensors[0]).__name__)}"


def _is_small(query, key, value, attn_mask):
    if type(query) not in _TYPES or type(key) not in _TYPES or type(value) not in _TYPES:
        return False
    if query.is_nested or key.is_nested or not (attn_mask is None or type(attn_mask) in _TYPES):
        return False
    if _tracing_state() is not None:  # it would record the request for sizes
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
_nested_calls = 0  # of modules with nested tensors, in any thread


def _patched(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    blocks = () if _is_compiling() else _blocks  # a graph that reads a count is compiled again when that changes
    refusal = None
    if blocks:
        record, always = blocks[-1]
        if dropout_p == 0.0 and not always and _is_small(query, key, value, attn_mask):
            record.left_to_pytorch(_TOO_SMALL)
            return _original(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        why = _torch_guards.observer() or (None if _allows_fused() else "sdpa_kernel(SDPBackend.MATH)")
        if why is None:
            q, k, v, mask = query, key, value, attn_mask
            if _attention.is_autocast():
                q, k, v, mask = _attention.autocast(q, k, v, mask)
            if _attention.is_ours(q, k, v, mask):
                try:
                    out = _attention.plain_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
                    record.calls += 1
                    return out
                except (ValueError, TypeError) as error:
                    refusal, why = error, _REFUSED
            else:
                why = _why_not((query, key, value, attn_mask))
        record.left_to_pytorch(why)
    options = dict(scale=scale, enable_gqa=enable_gqa)
    if refusal is not None:
        try:
            return _original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        except Exception as error:  # whoever catches what PyTorch raises still does
            if isinstance(refusal, type(error)):
                raise refusal from None
            raise
    for kind in map(type, (query, key, value, attn_mask)):
        if kind not in _TYPES and kind.__module__ == "torch.nn.attention.bias":  # looks for the function that F has now
            arguments = (query, key, value, attn_mask, dropout_p, is_causal)
            return kind.__torch_function__(F.scaled_dot_product_attention, (kind,), arguments, options)
    return _original(query, key, value, attn_mask, dropout_p, is_causal, **options)


_patched.__name__ = _patched.__qualname__ = "scaled_dot_product_attention"
# torch.jit.script compiles PyTorch's own function for it.
torch.jit._builtins._register_builtin(_patched, "aten::scaled_dot_product_attention")


def _set_fast_path():
    """The fused inference path of these modules has its own attention and is the only one for nested tensors."""
    torch.backends.mha.set_fastpath_enabled(_fast_path and (not _blocks or _nested_calls > 0))


def _call_module(module, *args, **kwargs):
    """nn.Module.__call__ that counts calls that bypass scaled_dot_product_attention, and keeps PyTorch's fused path
    for nested tensors."""
    global _nested_calls
    call = torch.nn.Module.__call__
    blocks = () if _is_compiling() else _blocks
    if not blocks:
        return call(module, *args, **kwargs)
    record, _ = blocks[-1]
    if any(isinstance(x, torch.Tensor) and x.is_nested for x in (*args, *kwargs.values())):
        record.left_to_pytorch(_torch_guards.NOT_DENSE)
    elif _leaves_padding_out(module, args, kwargs):
        if not torch.is_grad_enabled():
            record.left_to_pytorch("padding that nn.TransformerEncoder leaves out")
    else:
        if _needs_weights(module, args, kwargs):
            record.left_to_pytorch("need_weights=True")
        return call(module, *args, **kwargs)
    with _lock:
        _nested_calls += 1
        _set_fast_path()
    try:
        return call(module, *args, **kwargs)
    finally:
        with _lock:
            _nested_calls -= 1
            _set_fast_path()


_forward = torch.nn.MultiheadAttention.forward


def _needs_weights(module, args, kwargs):
    """Whether PyTorch's own forward of nn.MultiheadAttention returns weights. Nothing is known of other forwards."""
    if type(module).forward is not _forward or "forward" in vars(module):
        return False
    needed = args[4] if len(args) > 4 else kwargs.get("need_weights", True)
    return isinstance(needed, int) and bool(needed)


def _leaves_padding_out(module, args, kwargs):
    """Whether nn.TransformerEncoder may make a nested tensor of its input: its output is zero at the padding then."""
    if not (isinstance(module, torch.nn.TransformerEncoder) and module.use_nested_tensor) or module.training:
        return False
    return (args[2] if len(args) > 2 else kwargs.get("src_key_padding_mask")) is not None


_MODULES = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


def _begin(block):
    global _blocks, _original, _fast_path
    with _lock:
        if F.scaled_dot_product_attention is not _patched and not _blocks:
            _original = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = _patched
        if not _blocks:
            _fast_path = torch.backends.mha.get_fastpath_enabled()
            for module in _MODULES:
                module.__call__ = _call_module
        _blocks += (block,)
        _set_fast_path()


def _end(block):
    global _blocks
    with _lock:
        _blocks = tuple(other for other in _blocks if other is not block)
        if _blocks:
            return
        _set_fast_path()
        for module in _MODULES:
            if module.__dict__.get("__call__") is _call_module:
                del module.__call__
        if F.scaled_dot_product_attention is _patched:  # else another patch is on top of ours
            F.scaled_dot_product_attention = _original


@contextlib.contextmanager
def patch(*, always=False):
    """Makes torch.nn.functional.scaled_dot_product_attention, and with it nn.MultiheadAttention, nn.Transformer* and
    Hugging Face models (attn_implementation="sdpa"), use multihead's attention for CPU tensors.

    Tensors on other devices, nested tensors, subclasses, traced or transformed calls and arguments that multihead refuses
    are left to PyTorch, whose errors keep their types, and so are small calls without dropout (queries * keys * width over all heads and samples below 2^19 with a gradient, 2^16
    without), unless `always`. The context object counts both: `with patch() as p: …; print(p)`. The patch is
    process-wide while a block runs; blocks may nest, overlap and run in several threads, and the newest one counts.
    The fused inference path of nn.MultiheadAttention and nn.TransformerEncoder, which has its own attention, is
    disabled meanwhile, except for nested tensors and those that nn.TransformerEncoder makes of padded inputs, whose output
    is zero at the padding (enable_nested_tensor=False keeps it from that).
    """
    block = (Patch(), always)
    _begin(block)
    try:
        yield block[0]
    finally:
        _end(block)
