"""attn_implementation="multihead" of Hugging Face's transformers."""

import functools
import re
import sys

import torch

from .. import _core
from . import _attention

# Names that ask for another attention: the keywords of ours but the one that transformers passes, and one of its own.
_OURS = re.findall(r"(\w+): ", _core.attention.__nb_signature__[0][0].split("*, ")[1])
_REFUSED = (*(name for name in _OURS if name != "softcap"), "head_mask")


def _rows(mask, rows):
    """The rows of a mask whose axis of queries may have size 1."""
    return mask if mask is None or mask.size(-2) == 1 else mask[..., rows, :]


def _weights(query, key, keep, bias, scale, softcap, sinks, heads, query_rows):
    """Attention weights [B, heads, rows, Tk], by the kernel, without the other rows."""
    query, key, keep, bias, sinks = (t.detach() if t is not None else None for t in (query, key, keep, bias, sinks))
    if query_rows is not None:
        query, keep, bias = query[:, :, query_rows], _rows(keep, query_rows), _rows(bias, query_rows)
    capture = _core.AttentionCapture(heads=heads or [])
    mask = _core.keep(keep) if keep is not None else None
    _core.attention(
        query, key, key, mask=mask, bias=bias, scale=scale, softcap=softcap or 0.0, sinks=sinks, capture=capture,
        allow_binary_bias=True,
    )  # fmt: skip
    return torch.from_dlpack(capture.weights).to(query.dtype)


def _causal(queries, keys):
    """The causal mask that transformers leaves out: query i sees keys up to i."""
    return torch.ones(queries, keys, dtype=torch.bool).tril()


def _models_of(config_class):
    """The models of a configuration that are loaded, each with the names of its module."""
    prefix = config_class.__module__.rpartition(".")[0] + ".modeling_"
    modules = [vars(m) for name, m in list(sys.modules.items()) if name.startswith(prefix)]
    return [
        (c, m) for m in modules for c in list(m.values())
        if getattr(c, "config_class", None) is config_class and c.__module__ == m["__name__"]
    ]  # fmt: skip


@functools.cache
def _computes_its_own(config_class):
    """Whether the models of a configuration leave AttentionInterface aside. BLOOM, MPNet, … would add our boolean masks to
    their scores; transformers asks no other backend's leave."""
    models = _models_of(config_class)
    return bool(models) and not any(c._supports_attention_backend or "ALL_ATTENTION_FUNCTIONS" in m for c, m in models)


@functools.cache
def _says_what_is_causal(config_class):
    """Whether is_causal of the models' modules can be trusted where no mask is given. Models that transformers refuses
    "sdpa" (NLLB-MoE, PEGASUS-X, Splinter, …) have decoders that say False, and encoders that say nothing."""
    models = _models_of(config_class)
    return bool(models) and all(c._supports_sdpa for c, _ in models)


@functools.cache
def _passes_masks_on(config_class):
    """Whether the models of a configuration do nothing with a mask but to pass it on: "flex_attention" has an object for
    it, which nobody can add to scores."""
    models = _models_of(config_class)
    return bool(models) and all(getattr(c, "_supports_flex_attn", False) for c, _ in models)


def _wants_weights(module, options):
    """Whether the caller passed output_attentions=True. transformers 5 stores this only in a collector."""
    if "output_attentions" in options:
        return options["output_attentions"]
    try:
        from transformers.utils.output_capturing import _active_collector

        collected = _active_collector.get()
        return collected is not None and any("attentions" in key for key in collected)
    except ImportError:
        return getattr(getattr(module, "config", None), "output_attentions", False)


def register_attention(name="multihead", *, heads=None, query_rows=None):
    """Registers attn_implementation="multihead" with transformers: AutoModel.from_pretrained(folder,
    attn_implementation="multihead"), or model.set_attn_implementation("multihead").

    With output_attentions=True models return the weights, computed by the kernel beside the fused pass; with heads and
    query_rows (-1: the last) only those, [B, heads, rows, Tk], and no other weight is computed. They have no
    gradient. Soft-capped scores (Gemma 2) and attention sinks (gpt-oss) run in the kernel, too.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    for asked in (_computes_its_own, _says_what_is_causal, _passes_masks_on):
        torch.compiler.assume_constant_result(asked.__wrapped__)  # here, as it imports the compiler

    def make_mask(*args, config=None, **kwargs):
        if config is not None and _computes_its_own(type(config)):
            raise ValueError(f'attn_implementation="{name}": {config.model_type} computes attention itself; use "eager"')
        if config is None or _says_what_is_causal(type(config)):
            return sdpa_mask(*args, config=config, **kwargs)
        if _passes_masks_on(type(config)):  # a boolean mask: the kernel leaves out what it excludes
            return sdpa_mask(*args, config=config, **{**kwargs, "allow_is_causal_skip": False})
        return eager_mask(*args, config=config, **kwargs)

    def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None,
                  position_bias=None, softcap=None, s_aux=None, **kwargs):  # fmt: skip
        for option in _REFUSED:
            if kwargs.get(option) is not None:
                raise ValueError(f'attn_implementation="{name}": {option} is not supported; use "eager"')
        mask, length = attention_mask, query.size(2)
        causal, config = is_causal, getattr(module, "config", None)
        if causal is None:
            causal = getattr(module, "is_causal", True) and (config is None or _says_what_is_causal(type(config)))
        causal = bool(causal) and mask is None and length > 1
        if mask is not None and mask.size(-1) > key.size(2):
            mask = mask[..., : key.size(2)]
        if causal and key.size(2) > length:  # the room of a static cache
            key, value = key[:, :, :length], value[:, :, :length]
        if position_bias is not None:
            position_bias = position_bias[..., : key.size(2)]
            keep = _causal(length, key.size(2)) if causal else mask
            if keep is not None and keep.dtype is torch.bool:
                keep = torch.zeros(keep.shape, dtype=query.dtype).masked_fill(~keep, -torch.inf)
            mask, causal = position_bias if keep is None else position_bias + keep, False
        out = _attention.capped_attention(
            query, key, value, mask, dropout, causal, scaling, query.size(1) != key.size(1), softcap, s_aux
        )
        weights = None
        if _wants_weights(module, kwargs):
            keep = _causal(length, key.size(2)) if causal else mask
            bias = None
            if keep is not None and keep.dtype is not torch.bool:
                keep, bias = None, keep.float() if query.dtype is not torch.float64 else keep.double()
            rows = None if query_rows is None else [r % length for r in query_rows]
            weights = _weights(query, key, keep, bias, scaling, softcap, s_aux, heads, rows)
        return out.transpose(1, 2).contiguous(), weights

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, make_mask)
