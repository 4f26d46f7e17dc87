"""scaled_dot_product_attention as an autograd function; the tensors are shared with PyTorch, never copied."""

import functools

import torch

from .. import _core

_WHO = "scaled_dot_product_attention"
_HALVES = (torch.bfloat16, torch.float16)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_Tensor, _strided = torch.Tensor, torch.strided
_TYPES = (torch.Tensor, torch.nn.Parameter)  # not their subclasses, which mean something else
_forward = _core.torch_forward
_backward = _core.torch_backward
_num_threads, _is_grad_enabled = torch.get_num_threads, torch.is_grad_enabled
_max_seed = 2**63 - 1
_core.use_openmp_of(torch._C.__file__)  # kernels run on PyTorch's own threads, torch.get_num_threads() of them
_core.use_exchange_of(torch.Tensor)


class _NoSecondDerivative(torch.autograd.Function):
    """The gradients, tied to what they were computed from so that differentiating them is refused by name."""

    @staticmethod
    def forward(ctx, count, *tensors):
        ctx.count = len(tensors)
        return tuple(t.detach() if t is not None else None for t in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            "multihead.torch: attention has no second derivative; compute it with PyTorch's own function "
            "(torch.nn.functional.scaled_dot_product_attention outside patch())"
        )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, bias, options):
        keep, causal, scale, dropout_p, seed, *rare = options
        out, lse, ctx.call = _forward(
            query, key, value, keep, bias, causal, scale, dropout_p, seed, True, _num_threads(), *rare
        )
        ctx.save_for_backward(query, key, value, bias, out)
        if lse is None:
            return out
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, grad, *_):
        if grad is None:
            return None, None, None, None, None
        query, key, value, bias, out = ctx.saved_tensors
        grads = _backward(ctx.call, grad, query, key, value, out, *ctx.needs_input_grad[:4])
        dtype = query.dtype
        if dtype in _HALVES:  # the arithmetic was in float32
            inputs = (query, key, value, bias)
            grads = tuple(g if g is None else g.to(x.dtype) for g, x in zip(grads, inputs))
        if _is_grad_enabled():  # create_graph=True
            present = [g for g in grads if g is not None]
            inputs = [t for t in (query, key, value, bias, grad) if t is not None]
            tied = iter(_NoSecondDerivative.apply(len(present), *present, *inputs))
            grads = [next(tied) if g is not None else None for g in grads]
        return (*grads, None)


# Function.apply() without its look for functorch's wrappers: 1 us of every call.
_apply = super(torch.autograd.Function, _Attention).apply
_transforms_active = torch._C._are_functorch_transforms_active
_is_autocast = functools.partial(torch.is_autocast_enabled, "cpu")


def attend(query, key, value, bias, options):
    """The kernel on 4-D tensors, recorded by autograd if somebody wants a gradient.

    `options`: keep, causal, scale, dropout_p, seed and what may follow them, see torch_forward in torch.cc.
    """
    if _is_grad_enabled() and (
        query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or (bias is not None and bias.requires_grad)
    ):
        apply = _Attention.apply if _transforms_active() else _apply
        return apply(query, key, value, bias, options)
    keep, causal, scale, dropout_p, seed, *rare = options
    out, lse, _ = _forward(
        query, key, value, keep, bias, causal, scale, dropout_p, seed, False, _num_threads(), *rare
    )
    return out if lse is None else (out, lse)


def new_seed():
    """A seed from PyTorch's generator, so that torch.manual_seed() decides the dropout."""
    return int(torch.randint(_max_seed, ()))


def refuse(who, name, tensor):
    """Raises if the kernels cannot take the tensor: says what came and what was expected."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{who}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.is_quantized:
        raise TypeError(f"{who}: {name} is quantized ({tensor.dtype}); dequantize() it first")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{who}: {name} must be a dense tensor, got layout {tensor.layout}; use to_dense()")
    if tensor.is_nested:
        raise TypeError(f"{who}: {name} is a nested tensor; pad it, or use multihead.attention_ragged")
    if tensor.device.type != "cpu":
        raise ValueError(f"{who}: {name} must be on the CPU, got device {tensor.device}; move it with .cpu()")


def refuse_transforms(who):
    """torch.func's tensors have no memory of their own for a kernel to read."""
    if _transforms_active():
        raise RuntimeError(
            f"{who}: torch.func transforms (vmap, grad, jvp, …) need PyTorch's own function; patch() leaves them to it"
        )


def autocast(*tensors):
    """What torch.autocast("cpu") makes of attention's arguments: its dtype for all floating ones but float64."""
    if not _is_autocast():
        return tensors
    dtype = torch.get_autocast_dtype("cpu")

    def is_converted(t):
        return isinstance(t, _Tensor) and t.is_cpu and t.is_floating_point() and t.dtype is not torch.float64

    return [t.to(dtype) if is_converted(t) else t for t in tensors]


def is_plain(query, key, value):
    """Whether the kernels take them as they are: three dense CPU tensors of one dtype that we have."""
    dtype = query.dtype
    return (
        type(query) in _TYPES
        and type(key) in _TYPES
        and type(value) in _TYPES
        and query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and query.layout is key.layout is value.layout is _strided
        and dtype is key.dtype is value.dtype
        and dtype in _DTYPES
        and not (query.is_nested or key.is_nested or value.is_nested)
    )


def is_plain_mask(mask):
    return isinstance(mask, _Tensor) and mask.is_cpu and mask.layout is _strided and not mask.is_nested


def _refuse_inputs(query, key, value):
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        refuse(_WHO, name, tensor)
    if query.dtype not in _DTYPES:
        raise TypeError(f"{_WHO}: query must be float32, float64, bfloat16 or float16, got {query.dtype}")
    if not query.dtype is key.dtype is value.dtype:
        raise TypeError(
            f"{_WHO}: query, key and value must have one dtype, got {query.dtype}, {key.dtype} and {value.dtype}"
        )


def _mask_options(attn_mask, is_causal, dtype):
    """(keep, bias): a mask is one or the other."""
    refuse(_WHO, "attn_mask", attn_mask)
    if is_causal:
        raise RuntimeError(f"{_WHO}: attn_mask and is_causal=True exclude each other")
    if attn_mask.dtype is torch.bool:
        return attn_mask, None
    if attn_mask.dtype not in (dtype, torch.float32):
        raise TypeError(f"{_WHO}: attn_mask must be bool or {dtype}, got {attn_mask.dtype}")
    return None, attn_mask.to(torch.float64 if dtype is torch.float64 else torch.float32)


def _to_four_axes(query, key, value, attn_mask):
    """[N…, H, L, E] with one batch axis, and the shape of the batch to restore."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise _core.ShapeError(f"{_WHO}: {name} must have at least 2 axes, got shape {list(tensor.shape)}")
    heads = max(query.dim(), key.dim(), value.dim()) >= 4
    tail = 3 if heads else 2
    leads = [t.shape[:-tail] if t.dim() >= tail else () for t in (query, key, value)]
    try:
        lead = torch.broadcast_shapes(*leads)
    except RuntimeError as error:
        raise _core.ShapeError(f"{_WHO}: batch axes of query, key and value do not broadcast: {error}") from None

    def flat(t):
        t = t.expand(*lead, *t.shape[-tail:]).reshape(-1, *t.shape[-tail:])
        return t if heads else t.unsqueeze(1)

    query, key, value = flat(query), flat(key), flat(value)
    if attn_mask is not None and attn_mask.dim() > 2:
        if heads:
            attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-3:]).reshape(-1, *attn_mask.shape[-3:])
        else:
            attn_mask = attn_mask.expand(*lead, *attn_mask.shape[-2:]).reshape(-1, 1, *attn_mask.shape[-2:])
    return query, key, value, attn_mask, (lead, heads)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """torch.nn.functional.scaled_dot_product_attention on the CPU, in O(L) memory forward and backward.

    Same arguments and meaning as PyTorch's: a bool mask says what may be attended to, a float mask is added,
    is_causal aligns the diagonal at the top left, dropout acts whenever dropout_p > 0, and enable_gqa lets query head
    h use key head h // (Hq / Hkv). Rows without any allowed key give zeros. torch.autocast("cpu") acts as on PyTorch's.

    Shapes    query (N, ..., Hq, L, E), key (N, ..., H, S, E), value (N, ..., H, S, Ev) -> (N, ..., Hq, L, Ev)
    Dtypes    float32, float64, bfloat16, float16
    Gradient  query, key, value and a float attn_mask; no second derivative
    Raises    TypeError, ValueError: not on the CPU, sparse, quantized, shapes that do not fit
    """
    refuse_transforms(_WHO)
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    if not (isinstance(query, _Tensor) and is_plain(query, key, value)):
        _refuse_inputs(query, key, value)
    return plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _share_heads(query, key, value, enable_gqa):
    """PyTorch repeats the heads of keys and values separately; the kernel knows one number for both."""
    heads, key_heads, value_heads = query.size(1), key.size(1), value.size(1)
    if not enable_gqa and heads != key_heads:
        raise _core.ShapeError(
            f"{_WHO}: query has {heads} heads and key {key_heads}; set enable_gqa=True to share key heads"
        )
    if key_heads == value_heads:
        return key, value
    if not enable_gqa or heads % value_heads or heads % key_heads:
        raise _core.ShapeError(f"{_WHO}: key has {key_heads} heads, value {value_heads}")
    return key.repeat_interleave(heads // key_heads, 1), value.repeat_interleave(heads // value_heads, 1)


def plain_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """scaled_dot_product_attention of tensors for which is_plain() holds."""
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"{_WHO}: dropout_p must be in [0, 1], got {dropout_p}")
    if scale is not None and scale != scale:
        raise ValueError(f"{_WHO}: scale is NaN")
    q, k, v, restore = query.shape, key.shape, value.shape, None
    if not (len(q) == len(k) == len(v) == 4 and q[0] == k[0] == v[0]):
        if attn_mask is not None:
            refuse(_WHO, "attn_mask", attn_mask)
        query, key, value, attn_mask, restore = _to_four_axes(query, key, value, attn_mask)
        q, k, v = query.shape, key.shape, value.shape
    if not q[1] == k[1] == v[1]:
        key, value = _share_heads(query, key, value, enable_gqa)
    keep, bias, seed = None, None, 0
    if attn_mask is not None:
        keep, bias = _mask_options(attn_mask, is_causal, query.dtype)
    if dropout_p > 0.0:
        seed = new_seed()
    out = attend(query, key, value, bias, (keep, is_causal, scale, dropout_p, seed))
    if restore is None:
        return out
    lead, heads = restore
    return out.reshape(*lead, *out.shape[1:]) if heads else out.reshape(*lead, *out.shape[2:])
