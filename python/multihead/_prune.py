"""Models without some of their heads and feed-forward units."""

import numpy as np


def prune(model, *, heads=None, units=None):
    """A smaller LanguageModel without these heads and feed-forward units, equal to the model with them at zero.

    heads: for each layer the heads to remove, as many in every layer (with grouped-query attention as many of each
    group, or whole groups); units: likewise the units of the feed-forward layers. Where the family has a head_dim
    of its own (Llama, Mistral, Qwen 3, Gemma) the saved folder loads in transformers; else it is one of ours.
    """
    config, layers = model.config, model.config.num_layers
    kept_heads = _kept("heads", heads, layers, config.num_heads)
    kept_units = _kept("units", units, layers, config.ffn_dim)
    group = config.num_heads // config.num_kv_heads
    kept_groups = [sorted({h // group for h in some}) for some in kept_heads]
    sizes = {len([h for h in some if h // group == g]) for some in kept_heads for g in {h // group for h in some}}
    if len(sizes) > 1 or len({len(some) for some in kept_groups}) > 1:
        raise ValueError("prune: the layers must keep as many heads of each group of query heads, in as many groups")
    if config.positions == "alibi" and heads is not None:
        raise ValueError("prune: ALiBi's slopes follow from the number of heads; heads cannot be removed")
    fields = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    fields |= {"num_heads": len(kept_heads[0]), "num_kv_heads": len(kept_groups[0]), "ffn_dim": len(kept_units[0])}
    smaller = type(model)(type(config)(**fields))
    state = {name: np.asarray(x) for name, x in model.state_dict().items()}
    for i in range(layers):
        _prune_layer(state, f"layers.{i}.", config, kept_heads[i], kept_groups[i], kept_units[i])
    smaller.load_state_dict({name: np.ascontiguousarray(x) for name, x in state.items()})
    return smaller


def _kept(what, removed, layers, count):
    removed = [[]] * layers if removed is None else [sorted({int(i) for i in some}) for some in removed]
    if len(removed) != layers or len({len(some) for some in removed}) != 1:
        raise ValueError(f"prune: {what} must name as many in each of the {layers} layers")
    if any(not 0 <= i < count for some in removed for i in some) or len(removed[0]) >= count:
        raise ValueError(f"prune: {what} must be in [0, {count}), and some must stay")
    return [[i for i in range(count) if i not in some] for some in removed]


def _prune_layer(state, prefix, config, heads, groups, units):
    size, width = config.head_dim, config.num_heads * config.head_dim
    blocks = lambda at, start: [start + i * size + d for i in at for d in range(size)]  # noqa: E731
    keys = config.num_kv_heads * size
    rows = blocks(heads, 0) + blocks(groups, width) + blocks(groups, width + keys)
    cut = {
        "self_attn.in_proj_weight": (0, rows),
        "self_attn.in_proj_bias": (0, rows),
        "self_attn.out_proj.weight": (1, blocks(heads, 0)),
        "linear1.weight": (0, units + ([config.ffn_dim + u for u in units] if config.gated else [])),
        "linear1.bias": (0, units + ([config.ffn_dim + u for u in units] if config.gated else [])),
        "linear2.weight": (1, units),
    }
    for name, (axis, indices) in cut.items():
        if prefix + name in state:
            state[prefix + name] = np.take(state[prefix + name], indices, axis)
