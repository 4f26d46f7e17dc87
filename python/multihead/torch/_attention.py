"""scaled_dot_product_attention as an autograd function; the tensors are shared with PyTorch, never copied."""

import functools
import math

import numpy as np
import torch
import torch.nn.functional as F

from .. import _core, _torch_guards
from .._torch_guards import are_plain, is_plain, plain, refuse_tracers, untraced

_WHO = "scaled_dot_product_attention"
_HALVES = (torch.bfloat16, torch.float16)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_TYPES, _is_quiet = _torch_guards._TYPES, _torch_guards.is_quiet
_forward = _core.torch_forward
_backward = _core.torch_backward
_num_threads, _is_grad_enabled = torch.get_num_threads, torch.is_grad_enabled
_max_seed = 2**63 - 1
_core.use_openmp_of(torch._C.__file__)  # kernels run on PyTorch's own threads, torch.get_num_threads() of them
_core.use_exchange_of(torch.Tensor)
_saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class TorchShapeError(_core.ShapeError, RuntimeError):
    """A wrong shape: multihead's error and the type that PyTorch raises."""


class TorchValueError(ValueError, RuntimeError):
    """A wrong value, likewise."""


_USUAL = (False, None, None, "", 0.0)  # return_lse, mask, score_mod, who and softcap of torch_forward

_NO_SECOND_DERIVATIVE = (
    "multihead.torch: attention with dropout, a traced score or mask function, or gradients in batches has no second "
    "derivative; compute it with PyTorch's own function (outside patch())"
)


class _NoSecondDerivative(torch.autograd.Function):
    """The gradients, connected to their inputs so that double backward is refused by name."""

    @staticmethod
    def forward(ctx, count, *tensors):
        ctx.count = len(tensors)
        return tuple(t.detach() if t is not None else None for t in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(_NO_SECOND_DERIVATIVE)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, bias, options, *captured):
        keep, causal, scale, dropout_p, seed, *rare = options
        # The call holds the masks' memory. Saved tensors have versions, so a change before the backward is an error;
        # hooks (offloading, checkpoints) take their own copy and no version is checked.
        held_keep, held_bias = keep, bias
        if _saved_tensors_hooks(True) is not None:
            held_keep, held_bias = (t if t is None else t.clone() for t in (keep, bias))
        out, lse, ctx.call = _forward(
            query, key, value, held_keep, held_bias, causal, scale, dropout_p, seed, True, _num_threads(), *rare
        )
        ctx.save_for_backward(query, key, value, bias, out, lse, keep, *captured)
        _, mask, program, _, softcap = (*rare, *_USUAL[len(rare) :])
        is_plain_math = dropout_p == 0 and mask is None and program is None
        ctx.differentiable = (causal, scale, softcap) if is_plain_math else None
        if lse is None:
            return out
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, grad, d_lse=None):
        if grad is None and d_lse is None:
            return (None,) * len(ctx.needs_input_grad)
        query, key, value, bias, out, _, keep, *captured = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:4] + ctx.needs_input_grad[5:]
        if _is_grad_enabled() and ctx.differentiable and all(g is None or is_plain(g) for g in (grad, d_lse)):
            from . import _derivatives

            grad = torch.zeros_like(out) if grad is None else grad
            found = _derivatives.gradients(query, key, value, bias, keep, grad, d_lse, *ctx.differentiable)
            return (*(g if wants else None for g, wants in zip(found, wanted)), None)
        grads = _gradients(ctx.call, (query, key, value, bias, out), captured, wanted, grad, d_lse)
        if _is_grad_enabled():  # create_graph=True
            if not all(g is None or is_plain(g) for g in grads):
                raise RuntimeError(_NO_SECOND_DERIVATIVE)
            present = [g for g in grads if g is not None]
            inputs = [t for t in (query, key, value, bias, grad, d_lse, *captured) if t is not None]
            tied = iter(_NoSecondDerivative.apply(len(present), *present, *inputs))
            grads = [next(tied) if g is not None else None for g in grads]
        return (*grads[:4], None, *grads[4:])


def _gradients(call, saved, captured, wanted, grad, d_lse):
    """Gradients of query, key, value, bias and captured tensors, None where not required; `grad` and `d_lse` come from
    autograd."""
    if not (is_plain(grad) and (d_lse is None or is_plain(d_lse))):
        batch = _torch_guards.unbatch((grad, d_lse))
        if batch is not None:
            rows, join = batch
            columns = zip(*(_gradients(call, saved, captured, wanted, *row) for row in rows))
            return [join(column) if wants else None for wants, column in zip(wanted, columns)]
        if grad is not None:
            grad = plain("attention backward", "grad_output", _torch_guards.written(grad))
        if d_lse is not None:
            d_lse = plain("attention backward", "grad_lse", _torch_guards.written(d_lse))
    if not _is_quiet() and _torch_guards.recorder() is not None:
        refuse_tracers("attention backward")
    query, key, value, bias, out = saved
    if grad is None:  # lse is all that was used
        grad = torch.zeros_like(out)
    *grads, of_captured = _backward(call, grad, d_lse, query, key, value, out, *wanted[:4], any(wanted[4:]))
    if query.dtype in _HALVES:  # the arithmetic was in float32
        grads = [g if g is None else g.to(x.dtype) for g, x in zip(grads, saved)]
    return grads + ([g.to(x.dtype) for g, x in zip(of_captured, captured)] or [None] * len(captured))


# Function.apply() without its look for functorch's wrappers, which never come here: 1 us of every call.
_apply = super(torch.autograd.Function, _Attention).apply
is_autocast = functools.partial(torch.is_autocast_enabled, "cpu")


def attend(query, key, value, bias, options, captured=()):
    """Runs the kernel on 4-D tensors, recorded by autograd if a gradient is required.

    `options`: keep, causal, scale, dropout_p, seed and further ones, see torch_forward in torch.cc.
    `captured`: tensors of a traced score function that also get gradients.
    """
    if _is_grad_enabled() and (
        query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or (bias is not None and bias.requires_grad)
        or captured
    ):
        return _apply(query, key, value, bias, options, *captured)
    keep, causal, scale, dropout_p, seed, *rare = options
    out, lse, _ = _forward(
        query, key, value, keep, bias, causal, scale, dropout_p, seed, False, _num_threads(), *rare
    )
    return out if lse is None else (out, lse)


def refuse_learnt(who, **options):
    """A tensor that requires a gradient is not a number: the gradient would be lost."""
    for name, value in options.items():
        if getattr(value, "requires_grad", False):
            raise TypeError(
                f"{who}: {name} must be a number, got a tensor that requires a gradient, which it would not get; "
                "detach() it, or multiply the query or the output by it"
            )


def new_seed():
    """A seed from PyTorch's generator, so that torch.manual_seed() determines the dropout."""
    return int(torch.randint(_max_seed, (), device="cpu"))


def autocast(*tensors):
    """Casts attention's arguments as torch.autocast("cpu") does: all floating ones but float64."""
    if not is_autocast():
        return tensors
    dtype = torch.get_autocast_dtype("cpu")

    def is_converted(t):
        return type(t) in _TYPES and t.is_cpu and t.is_floating_point() and t.dtype is not torch.float64

    return [t.to(dtype) if is_converted(t) else t for t in tensors]


def _check_dtypes(query, key, value):
    if query.dtype not in _DTYPES:
        raise TypeError(f"{_WHO}: query must be float32, float64, bfloat16 or float16, got {query.dtype}")
    if not query.dtype is key.dtype is value.dtype:
        raise TypeError(
            f"{_WHO}: query, key and value must have one dtype, got {query.dtype}, {key.dtype} and {value.dtype}"
        )


def _mask_options(attn_mask, is_causal, dtype):
    """(keep, bias): the mask is returned as one or the other."""
    if is_causal:
        raise TorchValueError(f"{_WHO}: attn_mask and is_causal=True exclude each other")
    if attn_mask.dtype is torch.bool:
        return attn_mask, None
    if attn_mask.dtype not in (dtype, torch.float32):
        raise TypeError(f"{_WHO}: attn_mask must be bool or {dtype}, got {attn_mask.dtype}")
    return None, attn_mask.to(torch.float64 if dtype is torch.float64 else torch.float32)


def _heads(tensor):
    return tensor.size(-3) if tensor.dim() > 2 else 1


def _share_heads(query, key, value, enable_gqa):
    """Query, key and value with matching heads, or fewer key and value heads."""
    heads, key_heads, value_heads = map(_heads, (query, key, value))
    if enable_gqa:
        if min(query.dim(), key.dim(), value.dim()) < 3:
            raise TorchShapeError(f"{_WHO}: enable_gqa needs an axis of heads, (..., H, L, E)")
        if key_heads == value_heads:
            return query, key, value, heads, key_heads
        if not key_heads or not value_heads or heads % value_heads or heads % key_heads:
            raise TorchShapeError(f"{_WHO}: query has {heads} heads, key {key_heads}, value {value_heads}")
        key, value = key.repeat_interleave(heads // key_heads, -3), value.repeat_interleave(heads // value_heads, -3)
        return query, key, value, heads, heads
    try:
        (all_heads,) = torch.broadcast_shapes((heads,), (key_heads,), (value_heads,))
    except RuntimeError:
        raise TorchShapeError(
            f"{_WHO}: query has {heads} heads, key {key_heads}, value {value_heads}; "
            "set enable_gqa=True to share key heads"
        ) from None
    return query, key, value, all_heads, 1 if key_heads == value_heads == 1 else all_heads


def _check_mask_axes(attn_mask, most):
    if attn_mask is not None and not 2 <= attn_mask.dim() <= most:
        raise TorchShapeError(f"{_WHO}: attn_mask must have 2 to {most} axes, got {attn_mask.dim()}")


def _to_four_axes(query, key, value, attn_mask, enable_gqa):
    """PyTorch's broadcasting: [B, H, L, E] with one batch axis, and the leading axes of the result."""
    axes = max(query.dim(), key.dim(), value.dim())
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise TorchShapeError(f"{_WHO}: {name} must have at least 2 axes, got shape {list(tensor.shape)}")
    _check_mask_axes(attn_mask, max(axes, 4))
    query, key, value, heads, key_heads = _share_heads(query, key, value, enable_gqa)
    try:
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    except RuntimeError as error:
        raise TorchShapeError(f"{_WHO}: batch axes of query, key and value do not broadcast: {error}") from None

    def flat(tensor, *inner):
        return tensor.expand(*batch, *inner).reshape(math.prod(batch), *inner)

    query = flat(query, heads, *query.shape[-2:])
    key, value = (flat(t, key_heads, *t.shape[-2:]) for t in (key, value))
    if attn_mask is not None and len(batch) > 1 and attn_mask.dim() > 3:
        attn_mask = flat(attn_mask, *attn_mask.shape[-3:])
    return query, key, value, attn_mask, (*batch, heads) if axes > 2 else ()


@untraced
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """torch.nn.functional.scaled_dot_product_attention on the CPU, in O(L) memory forward and backward.

    Same arguments and semantics as PyTorch's: a bool mask is True where attention is allowed, a float mask is added,
    is_causal aligns the diagonal at the top left, dropout is active whenever dropout_p > 0, and enable_gqa lets query head
    h use key head h // (Hq / Hkv). Fully masked rows give zeros. torch.autocast("cpu") works as with PyTorch's.

    Shapes    query (N, ..., Hq, L, E), key (N, ..., H, S, E), value (N, ..., H, S, Ev) -> (N, ..., Hq, L, Ev)
    Dtypes    float32, float64, bfloat16, float16
    Gradient  query, key, value and a float attn_mask, of any order without dropout: gradients that are differentiated
              again (create_graph=True) are computed by PyTorch's own operations in blocks of rows, in O(L + S) memory
    Raises    TypeError, ValueError: not on the CPU, sparse, quantized, mismatched shapes (then a RuntimeError too, as
              PyTorch's)
    """
    return capped_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


@untraced
def capped_attention(
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap=None, sinks=None
):
    """scaled_dot_product_attention, its scores softcap * tanh(scores / softcap) before a float mask is added, with `sinks`
    (Hq,): a score per head in every row's softmax that belongs to no key."""
    if not _is_quiet():
        refuse_tracers(_WHO)
    if is_autocast():
        query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    if not are_plain(query, key, value):
        query, key, value = (
            plain(_WHO, *named) for named in (("query", query), ("key", key), ("value", value))
        )
    if attn_mask is not None:
        attn_mask = plain(_WHO, "attn_mask", attn_mask)
    _check_dtypes(query, key, value)
    if sinks is None:
        return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap)
    if query.dim() != 4 or sinks.shape != query.shape[1:2]:
        raise TorchShapeError(f"{_WHO}: sinks must be one per head, got {list(sinks.shape)} and query {list(query.shape)}")
    out, lse = plain_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap, return_lse=True
    )
    return out * torch.sigmoid(lse - sinks[:, None])[..., None].to(out.dtype)  # the share of the keys


def is_ours(query, key, value, attn_mask):
    """Whether plain_attention() accepts them."""
    return (
        are_plain(query, key, value)
        and (dtype := query.dtype) in _DTYPES
        and dtype is key.dtype is value.dtype
        and (attn_mask is None or is_plain(attn_mask))
    )


def plain_attention(
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap=None, return_lse=False
):
    """capped_attention without sinks of tensors accepted by is_ours(); with return_lse, of 4-D ones, (out, lse)."""
    if not (type(dropout_p) is float and (scale is None or type(scale) is float)):
        refuse_learnt(_WHO, dropout_p=dropout_p, scale=scale)
    if not (type(is_causal) is type(enable_gqa) is bool):
        refuse_learnt(_WHO, is_causal=is_causal, enable_gqa=enable_gqa)
        for name, value in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
            if not isinstance(value, (bool, np.bool_)):
                raise TypeError(f"{_WHO}: {name} must be a bool, got {value!r}")
        is_causal, enable_gqa = bool(is_causal), bool(enable_gqa)
    if not 0.0 <= dropout_p <= 1.0:
        raise TorchValueError(f"{_WHO}: dropout_p must be in [0, 1], got {dropout_p}")
    if scale is not None and scale != scale:
        raise ValueError(f"{_WHO}: scale is NaN")
    q, k, v, lead = query.shape, key.shape, value.shape, None
    if not (
        len(q) == len(k) == len(v) == 4
        and q[0] == k[0] == v[0]
        and k[1] == v[1]
        and (q[1] == k[1] or k[1] == 1 or enable_gqa)
        and q[3]
    ):
        if q[-1:] == k[-1:] == (0,):  # scores of nothing are zero
            query, key, scale = F.pad(query, (0, 1)), F.pad(key, (0, 1)), 1.0
        query, key, value, attn_mask, lead = _to_four_axes(query, key, value, attn_mask, enable_gqa)
    elif attn_mask is not None and attn_mask.dim() < 2:
        _check_mask_axes(attn_mask, 4)
    keep, bias, seed = None, None, 0
    if attn_mask is not None:
        keep, bias = _mask_options(attn_mask, is_causal, query.dtype)
    if dropout_p > 0.0:
        seed = new_seed()
    options = (keep, is_causal, scale, dropout_p, seed)
    if softcap or return_lse:
        options += (return_lse, None, None, _WHO, softcap or 0.0)
    try:
        out = attend(query, key, value, bias, options)
    except _core.ShapeError as error:
        raise TorchShapeError(str(error)) from None
    return out if lead is None or return_lse else out.reshape(*lead, *out.shape[2:])
