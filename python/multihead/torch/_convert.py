"""Converts between torch.nn and multihead.nn modules, whose weights have the same names."""

import re

import torch

from .. import _core, _torch_guards, nn
from ._module_checks import ModuleChecks, fields, join
from ._module_proof import prove

_t = torch.nn
_OUT = _t.modules.linear.NonDynamicallyQuantizableLinear  # the type of out_proj


def _has_bias(module, name="bias"):
    return fields(module).get(name) is not None


# For every kind of module, a function (checks, module, path) -> (a module of PyTorch's making with the same options,
# our options). It reads only what it has checked; ModuleChecks.alike() then compares the rest with the former.


def _linear(checks, m, path):
    rows, columns = (checks.number(m, path, name, int) for name in ("in_features", "out_features"))
    bias = _has_bias(m)
    return type(m)(rows, columns, bias=bias, device="meta"), dict(in_features=rows, out_features=columns, bias=bias)


def _embedding(checks, m, path):
    count, width = (checks.number(m, path, name, int) for name in ("num_embeddings", "embedding_dim"))
    return _t.Embedding(count, width, device="meta"), dict(count=count, embed_dim=width)


def _norm_size(checks, m, path):
    shape = fields(m).get("normalized_shape")
    if type(shape) is not tuple or [type(n) for n in shape] != [int] or not _has_bias(m, "weight"):
        checks.refuse(path, f"must have a weight over the last axis, got normalized_shape {shape!r}")
    return shape[0]


def _layer_norm(checks, m, path):
    size, eps, bias = _norm_size(checks, m, path), checks.number(m, path, "eps"), _has_bias(m)
    return _t.LayerNorm(size, eps, bias=bias, device="meta"), dict(size=size, eps=eps, bias=bias)


def epsilon(rms_norm):
    """RMSNorm's eps. By default that of its arithmetic, which is float32 under 16-bit types."""
    if rms_norm.eps is not None:
        return rms_norm.eps
    return torch.finfo(torch.float64 if rms_norm.weight.dtype is torch.float64 else torch.float32).eps


def _rms_norm(checks, m, path):
    size = _norm_size(checks, m, path)
    eps = None if fields(m).get("eps") is None else checks.number(m, path, "eps")
    return _t.RMSNorm(size, eps, device="meta"), dict(size=size, eps=epsilon(m))


def _attention(checks, m, path):
    width, heads, key_dim, value_dim = (
        checks.number(m, path, name, int) for name in ("embed_dim", "num_heads", "kdim", "vdim")
    )
    if _has_bias(m, "bias_k") or _has_bias(m, "bias_v"):
        checks.refuse(path, "has add_bias_kv=True, which multihead.nn.MultiHeadAttention does not have")
    dropout, bias = checks.number(m, path, "dropout"), _has_bias(m, "in_proj_bias")
    zero_attn, batch_first = (checks.flag(m, path, name) for name in ("add_zero_attn", "batch_first"))
    like = _t.MultiheadAttention(
        width, heads, dropout, bias, add_zero_attn=zero_attn, kdim=key_dim, vdim=value_dim, batch_first=batch_first,
        device="meta",
    )  # fmt: skip
    return like, dict(
        embed_dim=width,
        num_heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        out_bias=bias,
        dropout_p=dropout,
        zero_attn=zero_attn,
    )


def _dropout(checks, m, path, name):
    part, at = checks.part(m, path, name, _t.Dropout)
    return checks.number(part, at, "p")


def _layer(checks, m, path):
    attention, at = checks.part(m, path, "self_attn", _t.MultiheadAttention)
    linear, linear_at = checks.part(m, path, "linear1", _t.Linear)
    norm, norm_at = checks.part(m, path, "norm1", _t.LayerNorm)
    heads, attention_p = checks.number(attention, at, "num_heads", int), checks.number(attention, at, "dropout")
    width, hidden = (checks.number(linear, linear_at, name, int) for name in ("in_features", "out_features"))
    residual_p, hidden_p = (_dropout(checks, m, path, name) for name in ("dropout1", "dropout"))
    eps, norm_first = checks.number(norm, norm_at, "eps"), checks.flag(m, path, "norm_first")
    function, bias = fields(m).get("activation"), _has_bias(linear)
    activation = checks.activation(function, join(path, "activation"))
    like = type(m)(
        width, heads, hidden, residual_p, function, eps, checks.flag(attention, at, "batch_first"), norm_first, bias,
        device="meta",
    )  # fmt: skip
    like.dropout.p, like.self_attn.dropout = hidden_p, attention_p
    if type(m) is _t.TransformerDecoderLayer:
        like.multihead_attn.dropout = attention_p
    return like, dict(
        embed_dim=width,
        num_heads=heads,
        hidden_dim=hidden,
        activation=activation,
        norm_first=norm_first,
        norm_eps=eps,
        dropout_p=residual_p,
        attention_dropout_p=attention_p,
        ffn_dropout_p=hidden_p,
        cross_attention=type(m) is _t.TransformerDecoderLayer,
        attention_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        norm_bias=bias,
    )


_LAYERS = {
    _t.TransformerEncoder: _t.TransformerEncoderLayer,
    _t.TransformerDecoder: _t.TransformerDecoderLayer,
}


def _stack(checks, m, path):
    """All layers must be like the first, and the last norm like the layers'."""
    layers, at = checks.part(m, path, "layers", _t.ModuleList)
    if not len(layers):
        checks.refuse(at, "must have at least one layer")
    first = checks.of_type(layers[0], join(at, "0"), _LAYERS[type(m)])
    layer, options = _layer(checks, first, join(at, "0"))
    norm = None
    if fields(m).get("norm") is not None:
        norm = _t.LayerNorm(options["embed_dim"], options["norm_eps"], bias=options["norm_bias"], device="meta")
    more = {"enable_nested_tensor": False} if type(m) is _t.TransformerEncoder else {}
    like = type(m)(layer, 0, norm, **more)
    like.layers = _t.ModuleList([layer] * len(layers))
    del options["cross_attention"]
    return like, dict(options, num_layers=len(layers), final_norm=norm is not None)


def _transformer(checks, m, path):
    encoder, encoder_at = checks.part(m, path, "encoder", _t.TransformerEncoder)
    decoder, decoder_at = checks.part(m, path, "decoder", _t.TransformerDecoder)
    encoder, ours_encoder = _stack(checks, encoder, encoder_at)
    decoder, ours_decoder = _stack(checks, decoder, decoder_at)
    width, heads = ours_encoder["embed_dim"], ours_encoder["num_heads"]
    if ours_decoder["embed_dim"] != width:
        checks.refuse(decoder_at, f"must be {width} wide as its encoder, got {ours_decoder['embed_dim']}")
    batch_first = encoder.layers[0].self_attn.batch_first
    like = _t.Transformer(width, heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=batch_first)
    return like, dict(encoder=ours_encoder, decoder=ours_decoder)


_KINDS = {
    _t.Linear: (_linear, nn.Linear),
    _OUT: (_linear, nn.Linear),
    _t.Embedding: (_embedding, nn.Embedding),
    _t.LayerNorm: (_layer_norm, nn.LayerNorm),
    _t.RMSNorm: (_rms_norm, nn.RMSNorm),
    _t.MultiheadAttention: (_attention, nn.MultiHeadAttention),
    _t.TransformerEncoderLayer: (_layer, nn.TransformerLayer),
    _t.TransformerDecoderLayer: (_layer, nn.TransformerLayer),
    _t.TransformerEncoder: (_stack, nn.TransformerEncoder),
    _t.TransformerDecoder: (_stack, nn.TransformerDecoder),
    _t.Transformer: (_transformer, nn.Transformer),
}


def _checked(who, module):
    """(our kind, its options, PyTorch's parameters by name) of a module without surprises."""
    _torch_guards.refuse_tracers(who)
    if not isinstance(module, _t.Module):
        raise TypeError(f"{who}: module must be a torch.nn module, got {type(module).__name__}")
    checks = ModuleChecks(who, module)
    if type(module) not in _KINDS:
        for kind in _KINDS:
            if isinstance(module, kind):
                checks.of_type(module, "", kind)
        known = ", ".join(kind.__name__ for kind in _KINDS if kind is not _OUT)
        raise TypeError(f"{who}: no multihead.nn module for {type(module).__name__}; there are those for {known}")
    read, ours = _KINDS[type(module)]
    try:
        like, options = read(checks, module, "")
    except (RuntimeError, AssertionError, ArithmeticError) as error:
        checks.refuse("", f"has options that PyTorch's constructor refuses: {error}")
    checks.alike(module, "", like)
    return ours, options, checks.parameters()


def _counterparts(names):
    """PyTorch's name of every parameter, and ours of its parts: separate projections have separate biases."""
    for name in names:
        if name.endswith("in_proj_bias") and name.replace("in_proj_bias", "q_proj_weight") in names:
            yield name, [name.replace("in_proj_bias", f"{letter}_proj.bias") for letter in "qkv"]
        else:
            yield name, [re.sub(r"([qkv]_proj)_weight$", r"\1.weight", name)]


def from_torch(module):
    """The multihead.nn module with the weights of a torch.nn one (copied) and its requires_grad flags.

    Accepts Linear, Embedding, LayerNorm, RMSNorm, MultiheadAttention, TransformerEncoderLayer,
    TransformerDecoderLayer, TransformerEncoder, TransformerDecoder and Transformer, as PyTorch's constructors make
    them, with all layers alike: a subclass, a hook, a pruned, parametrised or shared weight, an activation other than
    relu, gelu and silu, and whatever else is not understood is refused with its path. Before it returns, the result and
    the original have given the same outputs for a random input, in float64. multihead's modules are always
    batch-first; a TransformerDecoder is causal.

    Raises    TypeError (a module of another class), ValueError
    """
    kind, options, theirs = _checked("from_torch", module)
    ours = kind(**options) if kind in (nn.LayerNorm, nn.RMSNorm) else kind(**options, rng=_core.Rng(0))
    dtype = next(iter(theirs.values())).dtype
    if dtype is not torch.float32:
        ours.to(str(dtype).removeprefix("torch."))
    state, flags = {}, {}
    for name, parts in _counterparts(theirs):
        state |= zip(parts, theirs[name].detach().chunk(len(parts)))
        flags |= dict.fromkeys(parts, theirs[name].requires_grad)
    ours.load_state_dict(state)
    prove("from_torch", module, ours)
    for name, parameter in ours.named_parameters():
        parameter.requires_grad = flags[name]
    return ours


def to_torch(source, module=None):
    """A tensor over the same memory; or, given a torch.nn module, that module with the weights of `source` copied in.

    The module must be one that from_torch() accepts, of the same dtype, and is changed only if it then gives the
    outputs of `source`; its rates of dropout stay its own.

    Raises    TypeError, ValueError
    """
    if module is None:
        if not isinstance(source, _core.Tensor):
            got = type(source).__name__
            raise TypeError(f"to_torch: source must be a multihead.Tensor, or come with a module; got {got}")
        return torch.from_dlpack(source)
    kind, options, theirs = _checked("to_torch", module)
    expected = type(nn.LayerNorm(1)) if kind in (nn.LayerNorm, nn.RMSNorm) else kind
    if type(source) is not expected:
        raise TypeError(f"to_torch: source must be a {expected.__name__}, got {type(source).__name__}")
    own = {name: torch.from_dlpack(tensor.detach()) for name, tensor in source.named_parameters()}
    counterparts = dict(_counterparts(theirs))
    missing = [name for parts in counterparts.values() for name in parts if name not in own]
    left = set(own) - {name for parts in counterparts.values() for name in parts}
    if missing or left:
        raise ValueError(f"to_torch: parameters differ: source lacks {missing}, module lacks {sorted(left)}")
    values = {}
    for name, parts in counterparts.items():
        target, value = theirs[name], [own[part] for part in parts]
        value = value[0] if len(value) == 1 else torch.cat(value)
        if value.shape != target.shape or value.dtype != target.dtype:
            raise ValueError(
                f"to_torch: '{name}' must be {target.dtype} {list(target.shape)}, got {value.dtype} {list(value.shape)}"
            )
        values[name] = value
    prove("to_torch", module, source, values)
    with torch.no_grad():
        for name, value in values.items():
            theirs[name].copy_(value)
    return module
