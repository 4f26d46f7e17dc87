"""The proof of a conversion: both modules on one random input, in float64."""

import copy

import torch

_t = torch.nn
_TOLERANCE = 1e-8  # of the largest output; rounding leaves some 1e-13


def _random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), device="cpu")


def _inputs(module):
    """Inputs [B, T, width], and how PyTorch's module and ours are called with them."""
    causal = torch.ones(3, 3, dtype=torch.bool, device="cpu").triu(1)
    if isinstance(module, _t.Embedding):
        return (torch.arange(module.num_embeddings, device="cpu")[-7:].flip(0),), {}, {}
    if isinstance(module, _t.Linear):
        return (_random(2, 3, module.in_features),), {}, {}
    if isinstance(module, (_t.LayerNorm, _t.RMSNorm)):
        return (_random(2, 3, *module.normalized_shape),), {}, {}
    if isinstance(module, _t.MultiheadAttention):
        query, memory = _random(2, 3, module.embed_dim), _random(2, 4, module.kdim + module.vdim)
        return (query, *memory.split([module.kdim, module.vdim], -1)), {"need_weights": False}, {}
    if isinstance(module, _t.Transformer):
        return (_random(2, 4, module.d_model), _random(2, 3, module.d_model)), {"tgt_mask": causal}, {}
    layer = module.layers[0] if hasattr(module, "layers") else module
    x, memory = _random(2, 3, layer.linear1.in_features), _random(2, 4, layer.linear1.in_features)
    if isinstance(module, _t.TransformerDecoder):
        return (x, memory), {"tgt_mask": causal}, {}
    if isinstance(module, _t.TransformerDecoderLayer):
        return (x,), {"memory": memory}, {"memory": memory}
    return (x,), {}, {}


def _is_time_first(module):
    """Whether a batch is the second axis. Attention knows; every part of a module has been found to agree."""
    return any(isinstance(m, _t.MultiheadAttention) and not m.batch_first for m in module.modules())


def _wide(module, weights):
    """A copy in float64 that takes PyTorch's ordinary way, as training does, without dropout."""
    result = copy.deepcopy(module).eval().double().requires_grad_()
    for original, m in zip(module.modules(), result.modules()):
        if "activation" in m._modules and "activation" not in vars(original):
            vars(m).pop("activation", None)  # PyTorch's decoder layer puts relu before its module when it is copied
        if isinstance(m, _t.RMSNorm) and m.eps is None and module.weight.dtype is not torch.float64:
            m.eps = torch.finfo(torch.float32).eps
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    return result


def prove(who, module, ours, weights=None):
    """Raises unless both modules give the same outputs; PyTorch's with `weights` instead of its own."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        inputs, options, our_options = _inputs(module)
        turn = (lambda x: x.transpose(0, 1)) if _is_time_first(module) else (lambda x: x)
        turned = {k: turn(v) if k == "memory" else v for k, v in options.items()}
        want = _wide(module, weights or {})(*map(turn, inputs), **turned)
    want = turn(want[0] if isinstance(want, tuple) else want).detach()
    our_options = {name: x.numpy() for name, x in our_options.items()}
    wide = ours.clone().to("float64")
    got = torch.from_dlpack(wide(*(x.contiguous().numpy() for x in inputs), **our_options)).detach()
    error = (got - want).abs().nan_to_num(0.0).max()
    if got.isnan().ne(want.isnan()).any() or error > _TOLERANCE * want.abs().nan_to_num(0.0).max():
        raise ValueError(
            f"{who}: the converted {type(module).__name__} gives other outputs (off by {float(error):.3g} on a random "
            "input), so something about it is not understood; nothing was changed"
        )
