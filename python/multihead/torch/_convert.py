"""Converts between torch.nn and multihead.nn modules, whose weights have the same names."""

import torch

from .. import nn


def _activation(layer):
    function = layer.activation
    name = getattr(function, "__name__", type(function).__name__).lower()
    if name == "gelu":
        return "gelu_tanh" if getattr(function, "approximate", "none") == "tanh" else "gelu"
    if name in ("relu", "silu"):
        return name
    raise ValueError(f"from_torch: activation {name} is not one of relu, gelu, silu")


def _attention(m):
    if m.bias_k is not None:
        raise ValueError("from_torch: nn.MultiheadAttention with add_bias_kv is not supported")
    bias = m.in_proj_bias is not None
    return nn.MultiHeadAttention(
        m.embed_dim,
        m.num_heads,
        key_dim=m.kdim,
        value_dim=m.vdim,
        query_bias=bias,
        key_bias=bias,
        value_bias=bias,
        out_bias=m.out_proj.bias is not None,
        dropout_p=m.dropout,
        zero_attn=m.add_zero_attn,
    )


def _layer_options(layer, cross):
    bias = layer.linear1.bias is not None
    return dict(
        embed_dim=layer.linear1.in_features,
        num_heads=layer.self_attn.num_heads,
        hidden_dim=layer.linear1.out_features,
        activation=_activation(layer),
        norm_first=layer.norm_first,
        norm_eps=layer.norm1.eps,
        dropout_p=layer.dropout1.p,
        attention_dropout_p=layer.self_attn.dropout,
        ffn_dropout_p=layer.dropout.p,
        cross_attention=cross,
        attention_bias=bias,
        out_bias=bias,
        ffn_bias=bias,
        norm_bias=bias,
    )


def _stack_options(module, cross):
    options = _layer_options(module.layers[0], cross)
    del options["cross_attention"]
    return dict(options, num_layers=len(module.layers), final_norm=module.norm is not None)


def _state(module):
    """PyTorch's names, with separate projections renamed to ours."""
    state = {}
    for name, tensor in module.state_dict().items():
        tensor = tensor.detach()
        for letter in "qkv":
            name = name.replace(f"{letter}_proj_weight", f"{letter}_proj.weight")
        if name.endswith("in_proj_bias") and name.replace("in_proj_bias", "q_proj_weight") in module.state_dict():
            for letter, part in zip("qkv", tensor.chunk(3)):
                state[name.replace("in_proj_bias", f"{letter}_proj.bias")] = part
            continue
        state[name] = tensor
    return state


def from_torch(module):
    """The multihead.nn module with the weights of a torch.nn one (copied).

    Accepts Linear, Embedding, LayerNorm, RMSNorm, MultiheadAttention, TransformerEncoderLayer,
    TransformerDecoderLayer, TransformerEncoder, TransformerDecoder and Transformer. multihead's modules are always
    batch-first.
    """
    t = torch.nn
    if isinstance(module, t.Linear):
        ours = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
    elif isinstance(module, t.Embedding):
        ours = nn.Embedding(module.num_embeddings, module.embedding_dim)
    elif isinstance(module, t.LayerNorm):
        if len(module.normalized_shape) != 1 or module.weight is None:
            raise ValueError("from_torch: LayerNorm must have weights over the last axis")
        ours = nn.LayerNorm(module.normalized_shape[0], eps=module.eps, bias=module.bias is not None)
    elif hasattr(t, "RMSNorm") and isinstance(module, t.RMSNorm):
        eps = module.eps if module.eps is not None else torch.finfo(module.weight.dtype).eps
        ours = nn.RMSNorm(module.normalized_shape[0], eps=eps)
    elif isinstance(module, t.MultiheadAttention):
        ours = _attention(module)
    elif isinstance(module, t.TransformerEncoderLayer):
        ours = nn.TransformerLayer(**_layer_options(module, False))
    elif isinstance(module, t.TransformerDecoderLayer):
        ours = nn.TransformerLayer(**_layer_options(module, True))
    elif isinstance(module, t.TransformerEncoder):
        ours = nn.TransformerEncoder(**_stack_options(module, False))
    elif isinstance(module, t.TransformerDecoder):
        ours = nn.TransformerDecoder(**_stack_options(module, True))
    elif isinstance(module, t.Transformer):
        ours = nn.Transformer(
            encoder=_stack_options(module.encoder, False), decoder=_stack_options(module.decoder, True)
        )
    else:
        raise TypeError(f"from_torch: no multihead.nn module for {type(module).__name__}")
    dtype = next(module.parameters()).dtype
    if dtype is not torch.float32:
        ours.to(str(dtype).removeprefix("torch."))
    ours.load_state_dict(_state(module))
    return ours


def to_torch(source, module=None):
    """A tensor over the same memory; or, given a torch.nn module, that module with the weights of `source` copied in."""
    if module is None:
        return torch.from_dlpack(source)
    own = dict(source.named_parameters())
    with torch.no_grad():
        for name, target in module.state_dict(keep_vars=True).items():
            candidates = [name]
            for letter in "qkv":
                candidates.append(name.replace(f"{letter}_proj_weight", f"{letter}_proj.weight"))
            found = next((c for c in candidates if c in own), None)
            if found is not None:
                target.copy_(torch.from_dlpack(own[found].detach()))
            elif name.endswith("in_proj_bias"):
                parts = [own[name.replace("in_proj_bias", f"{x}_proj.bias")] for x in "qkv"]
                target.copy_(torch.cat([torch.from_dlpack(p.detach()) for p in parts]))
            else:
                raise ValueError(f"to_torch: {type(source).__name__} has no parameter '{name}'")
    return module
