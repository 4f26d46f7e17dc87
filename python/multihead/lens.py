"""Looking inside a model and changing it: caches, hooks, ablation, attribution, patching.

Points and their names are those of multihead.Points; TransformerLens's names are understood. Functions that
take a `metric` call it with the logits [B, T, V] (a Tensor) and expect one number per row, [B]: a Tensor where
gradients are needed (attribution_patching, integrated_gradients), else anything numpy can read. Functions
named after a paper say which. They run without a tape, in f32, and leave the model as it is.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Sequence

import numpy as np

from ._core import (
    Adam, Mask, NoTape, Points, Tape, Tensor, cross_entropy, keep, mul, relu, sigmoid, sum as sum_of, tensor,
)  # fmt: skip
from ._types import ArrayLike
from .models import prune


class Cache(dict[str, Tensor]):
    """Cached tensors by point; TransformerLens's names work too."""

    def __missing__(self, name):
        ours = Points.name_of(name)
        if ours not in self:
            raise KeyError(f"{name}: not in the cache, which holds {', '.join(sorted(self)[:12])} …")
        return self[ours]

    def stack(self, point: str) -> np.ndarray[Any, Any]:
        """The point of every layer as one array [layers, ...]: stack('self_attn.z')."""
        found = []
        while f"layers.{len(found)}.{point}" in self:
            found.append(np.asarray(self[f"layers.{len(found)}.{point}"]))
        if not found:
            raise KeyError(f"layers.*.{point}: not in the cache")
        return np.stack(found)


def run_with_cache(model: Any, *inputs: Any, points: str | Sequence[str] = "*", heads: Sequence[int] | None = None, rows: Sequence[int] | None = None, **call: Any) -> tuple[Any, Cache]:
    """(model(*inputs), Cache): the tensors at `points` (one or more patterns), or only the given heads and rows.

    `model` is anything that runs our modules: a model, model.features, an nn module, a function. A list for
    each of the layers' scores or patterns costs memory of its own size: name what is needed.
    """
    look = Points()
    for pattern in [points] if isinstance(points, str) else points:
        look.keep(pattern, heads=heads, rows=rows)
    with look:
        output = model(*inputs, **call)
    return output, Cache(look.kept)


def run_with_hooks(model: Any, *inputs: Any, hooks: Any, **call: Any) -> Any:
    """model(*inputs) with hooks [(point, function)], where function(x, name) reads x or returns its replacement."""
    look = Points()
    for point, function in hooks:
        look.edit(point, function)
    with look:
        return model(*inputs, **call)


def head_gates(gates: Tensor, attentions: Sequence[str] | None = None) -> dict[str, Any]:
    """Hooks that multiply the heads' outputs z by gates [L, H] or [L, B, H], an array or a Tensor with gradient.

    attentions: the names of the L attentions, by default layers.0.self_attn and so on; those of a translator are
    encoder.layers.0.self_attn, decoder.layers.0.self_attn and decoder.layers.0.multihead_attn.
    """
    names = attentions or [f"layers.{layer}.self_attn" for layer in range(gates.shape[0])]
    gates = gates if isinstance(gates, Tensor) else tensor(np.asarray(gates, np.float32))

    def gate(layer):
        def scale(z, name):
            return mul(z, gates[layer].reshape([-1, 1, gates.shape[-1], 1]))

        return scale

    return [(f"{name}.z", gate(layer)) for layer, name in enumerate(names)]


def knock_out(pairs: Sequence[tuple[int, int]], query_count: int, key_count: int | None = None) -> Mask:
    """A mask without the (query, key) pairs, for Points.exclude('layers.3.self_attn', knock_out(pairs, T))."""
    flags = np.ones((query_count, key_count or query_count), bool)
    for query, key in pairs:
        flags[query, key] = False
    return keep(flags)


def _heads(model):
    """Heads of every layer, for results [L, H]."""
    if getattr(model.config, "pruned_heads", None):
        raise ValueError("lens: the layers of this model differ in heads (pruned_heads); measure before pruning")
    return model.config.num_heads


def _values(metric, logits):
    values = np.asarray(metric(logits), np.float64)
    if values.shape != (logits.shape[0],):
        raise ValueError(f"metric: expected one number per row, [{logits.shape[0]}], got {list(values.shape)}")
    return values


def _tokens(tokens):
    tokens = np.asarray(tokens)
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or len(tokens) == 0:
        raise ValueError(f"tokens: expected [T] or [B, T], got {list(tokens.shape)}")
    return tokens


def _one(tokens):
    tokens = _tokens(tokens)
    if len(tokens) != 1:
        raise ValueError(f"tokens: expected one sequence, got {len(tokens)}")
    return tokens


def _check_linear(model):
    config = model.config
    if not (config.norm_first and config.final_norm) or config.logit_softcap > 0 or config.logit_divisor != 1:
        raise ValueError("attribution to logits needs pre-norm layers, a final norm and neither logit_softcap nor logit_divisor")


# ---- what each part adds to a logit ----


def logit_lens(model: Any, tokens: ArrayLike, rows: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
    """Logits [L + 1, B, rows, V] as if the model ended before each layer (nostalgebraist 2020); last, its own."""
    layers = model.config.num_layers
    last, cache = run_with_cache(model.features, _tokens(tokens), points="layers.*.resid_pre", rows=rows)
    ends = [model.features_from(layers, cache[f"layers.{i}.resid_pre"]) for i in range(layers)]
    ends.append(last if rows is None else np.asarray(last)[:, rows])
    return np.stack([np.asarray(model.logits(features)) for features in ends])


def direct_logit_attribution(model: Any, tokens: ArrayLike, target: int, *, against: int | None = None, row: int = -1) -> Any:
    """Contributions of all components to the logit of `target` (minus that of `against`) at a row: {name: float}.

    They sum to that logit. Names are embed, pos_embed, layers.i.head.j, layers.i.attn_bias, layers.i.mlp_out and
    bias (of norm and output layer). The scale of the final norm is held fixed.
    """
    _check_linear(model)
    config, layers = model.config, model.config.num_layers
    points = ["embed", "layers.*.self_attn.result", "layers.*.attn_out", "final_norm.scale"]
    if config.block != "attention_only":
        points.append("layers.*.mlp_out")
    if config.positions == "learned":
        points.append("pos_embed")
    if config.positions == "sinusoidal":
        raise ValueError("direct_logit_attribution: sinusoidal positions are no point of their own")
    _, cache = run_with_cache(model.features, _one(tokens), points=points, rows=[row])
    head = np.asarray(model.head_weight, np.float64)
    direction = head[target] - (head[against] if against is not None else 0)
    weight = np.asarray(model.final_norm.weight, np.float64) + (1 if config.norm == "rms_from_one" else 0)
    read = direction * weight / float(np.asarray(cache["final_norm.scale"]).ravel()[0])
    if config.norm == "layer":
        read = read - read.mean()  # centring is linear: it may as well be done to what reads
    vector = lambda name: np.asarray(cache[name], np.float64)[0, 0]  # noqa: E731
    parts = {"embed": vector("embed") @ read}
    if "pos_embed" in points:
        parts["pos_embed"] = vector("pos_embed") @ read
    for i in range(layers):
        result = vector(f"layers.{i}.self_attn.result")
        if config.block in ("sandwich", "output_norms") or config.residual_factor != 1:
            parts[f"layers.{i}.attn_out"] = vector(f"layers.{i}.attn_out") @ read
        else:
            parts.update({f"layers.{i}.head.{h}": r @ read for h, r in enumerate(result)})
            parts[f"layers.{i}.attn_bias"] = (vector(f"layers.{i}.attn_out") - result.sum(0)) @ read
        if config.block != "attention_only":
            parts[f"layers.{i}.mlp_out"] = vector(f"layers.{i}.mlp_out") @ read
    bias = 0.0
    if model.final_norm.bias is not None:
        bias += np.asarray(model.final_norm.bias, np.float64) @ direction
    if model.head_bias is not None:
        b = np.asarray(model.head_bias, np.float64)
        bias += b[target] - (b[against] if against is not None else 0)
    parts["bias"] = bias
    return {name: float(value) for name, value in parts.items()}


# ---- ablation and patching ----


def ablate_heads(model: Any, tokens: ArrayLike, metric: Callable[[Tensor], Any], *, value: str = "zero", rows: Sequence[int] | None = None, batch: int = 64, rng: Any = None) -> np.ndarray[Any, Any]:
    """The metric with each head ablated in turn, [L, H] (mean over the rows of `tokens`), in one sweep.

    value: 'zero', 'mean' (over the tokens of the batch, Wang et al. 2022) or 'resample' (another row's). The
    layers before a head are computed once, and heads of a layer are rows of one batch. With `rows` the metric
    gets the logits of those tokens alone: [-1] spares a large vocabulary most of its products.
    """
    tokens = _tokens(tokens)
    if value not in ("zero", "mean", "resample"):
        raise ValueError(f"value: expected 'zero', 'mean' or 'resample', got {value!r}")
    count, layers, heads = len(tokens), model.config.num_layers, _heads(model)
    order = (rng or np.random.default_rng(0)).permutation(count)
    with NoTape():
        _, cache = run_with_cache(model.features, tokens, points=["layers.*.resid_pre", "layers.*.self_attn.z"])
        out = np.empty((layers, heads))
        for layer in range(layers):
            z = np.asarray(cache[f"layers.{layer}.self_attn.z"])
            mean = np.broadcast_to(z.mean((0, 1)), z.shape)
            replacement = {"zero": np.zeros_like(z), "mean": mean, "resample": z[order]}[value]
            resid = np.asarray(cache[f"layers.{layer}.resid_pre"])
            each = max(1, batch // count)
            for first in range(0, heads, each):
                some = range(first, min(first + each, heads))
                patched = np.concatenate([z] * len(some))
                for n, head in enumerate(some):
                    patched[n * count : (n + 1) * count, :, head] = replacement[:, :, head]
                begin = np.concatenate([resid] * len(some))
                values = _from_layer(model, layer, begin, metric, rows, "self_attn.z", patched)
                out[layer, list(some)] = values.reshape(len(some), count).mean(1)
    return out


def _from_layer(model, layer, resid, metric, rows, point, value):
    look = Points().edit(f"layers.{layer}.{point}", lambda x, name: value)
    with look:
        features = model.features_from(layer, resid)
    if rows is not None:
        features = np.asarray(features)[:, rows]
    return _values(metric, model.logits(features))


def activation_patching(model: Any, clean: ArrayLike, corrupted: ArrayLike, metric: Callable[[Tensor], Any], *, point: str = "resid_pre", rows: Sequence[int] | None = None, batch: int = 64) -> np.ndarray[Any, Any]:
    """The metric of the corrupted run with one activation of the clean run patched in (Meng et al. 2022).

    [L, T] over tokens for points such as 'resid_pre', 'attn_out', 'mlp_out'; [L, H] over heads, whole rows, for
    'self_attn.z', '.q', '.k' and '.v'. Both are one sequence of the same length; `rows` as in ablate_heads().
    """
    clean, corrupted = _one(clean), _one(corrupted)
    if clean.shape != corrupted.shape:
        raise ValueError(f"activation_patching: lengths differ, {clean.shape[1]} and {corrupted.shape[1]}")
    by_head = point.startswith("self_attn.")
    result = []
    with NoTape():
        _, theirs = run_with_cache(model.features, corrupted, points=["layers.*.resid_pre", f"layers.*.{point}"])
        _, ours = run_with_cache(model.features, clean, points=f"layers.*.{point}")
        for layer in range(model.config.num_layers):
            source, target = (np.asarray(c[f"layers.{layer}.{point}"]) for c in (ours, theirs))
            resid = np.asarray(theirs[f"layers.{layer}.resid_pre"])
            count = source.shape[2] if by_head else source.shape[1]
            values = []
            for first in range(0, count, batch):
                some = range(first, min(first + batch, count))
                patched = np.repeat(target, len(some), 0)
                for n, i in enumerate(some):
                    at = (n, slice(None), i) if by_head else (n, i)
                    patched[at] = source[0, :, i] if by_head else source[0, i]
                begin = np.repeat(resid, len(some), 0)
                values.append(_from_layer(model, layer, begin, metric, rows, point, patched))
            result.append(np.concatenate(values))
    return np.stack(result)


def path_patching(model: Any, clean: ArrayLike, corrupted: ArrayLike, sender: Any, receivers: Any, metric: Callable[[Tensor], Any]) -> Any:
    """The metric of the clean run if receivers see the sender's output of the corrupted run (Goldowsky-Dill 2023).

    sender (layer, head); receivers are later points such as 'layers.9.self_attn.q' or 'layers.3.mlp_pre'.
    All other heads keep their clean outputs on the way; feed-forward layers are computed anew.
    """
    clean, corrupted = _one(clean), _one(corrupted)
    layer, head = sender
    with NoTape():
        _, ours = run_with_cache(model.features, clean, points="layers.*.self_attn.z")
        _, theirs = run_with_cache(model.features, corrupted, points=f"layers.{layer}.self_attn.z")

        def frozen(z, name):
            z = np.array(ours[name])
            if name == f"layers.{layer}.self_attn.z":
                z[:, :, head] = np.asarray(theirs[name])[:, :, head]
            return z

        look = Points().edit("layers.*.self_attn.z", frozen)
        for receiver in receivers:
            look.keep(receiver)
        with look:
            model.features(clean)
        hooks = [(name, lambda x, name, value=look.kept[Points.name_of(name)]: value) for name in receivers]
        return float(_values(metric, run_with_hooks(model, clean, hooks=hooks))[0])


def attribution_patching(model: Any, clean: ArrayLike, corrupted: ArrayLike, metric: Callable[[Tensor], Any], *, points: str | Sequence[str] = "layers.*.resid_pre") -> Any:
    """activation_patching() to first order: (clean - corrupted) * gradient of the corrupted metric (Nanda 2023).

    A Cache of arrays of the points' shapes; their sum over an axis is the effect of patching all of it.
    """
    clean, corrupted = _one(clean), _one(corrupted)
    with NoTape():
        _, ours = run_with_cache(model.features, clean, points=points)
    values, gradients = _gradients(model, corrupted, metric, points)
    return Cache({name: (np.asarray(ours[name]) - values[name]) * gradients[name] for name in values})


@contextlib.contextmanager
def _frozen(model):
    """Skips the gradients of weights."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.requires_grad = False
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad = True


def _gradients(model, tokens, metric, points, edits=()):
    """Values and gradients of sum(metric) at the points."""
    look = Points()
    for point, function in edits:
        look.edit(point, function)
    for pattern in [points] if isinstance(points, str) else points:
        look.keep(pattern).keep_gradient(pattern)
    with _frozen(model), Tape() as tape, look:
        values = metric(model(tokens))
        if not isinstance(values, Tensor):
            raise ValueError("metric: gradients need a Tensor made by multihead's functions")
        if len(tokens) > 1 and tuple(values.shape[:1]) != (len(tokens),):
            raise ValueError(f"metric: expected one number per row, {len(tokens)}, got shape {tuple(values.shape)}")
        tape.backward(sum_of(values))
    missing = [name for name in look.kept if name not in look.gradients]
    if missing:
        raise ValueError(f"metric: no gradient reaches {missing[0]}")
    arrays = lambda tensors: {name: np.array(x) for name, x in tensors.items()}  # noqa: E731
    return arrays(look.kept), arrays(look.gradients)


def integrated_gradients(model: Any, tokens: ArrayLike, metric: Callable[[Tensor], Any], *, baseline: Any = None, steps: int = 32) -> np.ndarray[Any, Any]:
    """Attribution [T, E] of the metric to the token embeddings, relative to a baseline (Sundararajan et al. 2017).

    baseline [T, E]; None: the mean of all tokens' embeddings. The sum is metric(tokens) - metric(baseline), up
    to the error of `steps`.
    """
    tokens = _one(tokens)
    _, cache = run_with_cache(model.features, tokens, points="embed")
    own = np.asarray(cache["embed"])[0]
    if model.token_embedding is None:
        raise ValueError("integrated_gradients: packed weights carry no gradient; load the model with packed=False")
    if baseline is None:
        if model.config.embedding_norm:
            raise ValueError("integrated_gradients: this model normalises its embeddings; give a baseline")
        scale = model.config.embedding_factor * (np.sqrt(own.shape[-1]) if model.config.scale_embeddings else 1)
        baseline = np.asarray(model.token_embedding.weight).mean(0) * scale
    start = np.broadcast_to(np.asarray(baseline, own.dtype), own.shape)
    where = (np.arange(steps) + 0.5) / steps
    path = start + where[:, None, None].astype(own.dtype) * (own - start)
    # The edit comes first, so that what is watched is the point on the way.
    edits = [("embed", lambda x, name: path)]
    _, gradients = _gradients(model, np.repeat(tokens, steps, 0), metric, "embed", edits)
    return (own - start) * gradients["embed"].mean(0)


# ---- heads ----


def head_importance(model: Any, tokens: ArrayLike, targets: ArrayLike | None = None) -> Any:
    """Expected |d loss / d gate| of every head, [L, H], normalised per layer to length 1 (Michel et al. 2019, eq. 2).

    tokens [B, T]; targets default to the next tokens. The loss is each sequence's mean.
    """
    tokens = _tokens(tokens)
    x, y = (tokens[:, :-1], tokens[:, 1:]) if targets is None else (tokens, np.asarray(targets))
    raw = np.zeros((model.config.num_layers, _heads(model)))
    for inputs, labels in zip(x, y):
        loss = lambda logits, labels=labels: cross_entropy(logits, labels[None])  # noqa: E731
        z, dz = _gradients(model, inputs[None], loss, "layers.*.self_attn.z")
        for layer in range(len(raw)):
            name = f"layers.{layer}.self_attn.z"
            raw[layer] += np.abs((z[name] * dz[name]).sum((0, 1, 3)))
    raw /= len(x)
    return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-30)


def attention_rollout(patterns: Any, residual: float = 0.5) -> np.ndarray[Any, Any]:
    """Attention of the last layer to the input [B, T, T] through all layers (Abnar & Zuidema 2020).

    patterns: a Cache with 'layers.*.self_attn.pattern', or arrays [L, B, H, T, T]. Heads are averaged; `residual`
    is the share of the connection around the layer.
    """
    stack = patterns.stack("self_attn.pattern") if isinstance(patterns, Cache) else np.asarray(patterns)
    mean = stack.mean(2)
    mixed = (1 - residual) * mean + residual * np.eye(mean.shape[-1])
    mixed /= mixed.sum(-1, keepdims=True)
    out = mixed[0]
    for layer in mixed[1:]:
        out = layer @ out
    return out


def _said_twice(model, length, batch, seed):
    half = np.random.default_rng(seed).integers(0, model.config.vocab_size, (batch, length))
    return np.concatenate([half, half], 1)


def head_scores(model: Any, *, length: int = 50, batch: int = 8, seed: int = 0) -> dict[str, Any]:
    """{'induction', 'previous_token', 'duplicate_token'}: [L, H], mean attention on repeated random tokens.

    To the token after the earlier occurrence (prefix matching, Olsson et al. 2022), to the token before, and
    to the earlier occurrence itself.
    """
    tokens = _said_twice(model, length, batch, seed)
    _, cache = run_with_cache(model.features, tokens, points="layers.*.self_attn.pattern")
    pattern = cache.stack("self_attn.pattern")
    diagonal = lambda offset: np.diagonal(pattern, offset, -2, -1)  # noqa: E731
    return {
        "induction": diagonal(1 - length)[..., 1:].mean((1, 3)),
        "previous_token": diagonal(-1).mean((1, 3)),
        "duplicate_token": diagonal(-length).mean((1, 3)),
    }


def copying_accuracy(model: Any, *, length: int = 50, batch: int = 8, seed: int = 0, hooks: Any = ()) -> float:
    """Top-1 accuracy on the second half of repeated random tokens."""
    tokens = _said_twice(model, length, batch, seed)
    logits = np.asarray(run_with_hooks(model, tokens, hooks=list(hooks)))
    guess = logits[:, length:-1].argmax(-1)
    return float((guess == tokens[:, length + 1 :]).mean())


def train_head_gates(model: Any, batches: Any, *, penalty: float = 0.02, lr: float = 0.1, seed: int = 0, attentions: Sequence[str] | None = None, loss: Any = None, weights: Any = None) -> Any:
    """Gates [L, H] in [0, 1] that keep the loss low with few heads open (Voita et al. 2019; L0 of Louizos et al. 2018).

    batches: the arguments of loss(), by default model.loss, one step each. The model's weights stay as they are, or
    learn with the gates, as in the paper, by the optimiser `weights`. penalty: of a head that is open, in nats.
    attentions: as in head_gates(). Heads whose gate ends at 0 can be removed by prune().
    """
    low, high, temperature = -0.1, 1.1, 1 / 3  # of the hard concrete distribution
    count = len(attentions) if attentions else model.config.num_layers
    logit = tensor(np.full((count, _heads(model)), 2, np.float32), requires_grad=True)
    optimizer, rng = Adam([logit], lr=lr), np.random.default_rng(seed)
    with contextlib.nullcontext() if weights else _frozen(model):
        for batch in batches:
            u = rng.uniform(1e-6, 1 - 1e-6, logit.shape).astype(np.float32)
            with Tape() as tape:
                drawn = sigmoid((logit + (np.log(u) - np.log1p(-u))) * (1 / temperature))
                stretched = drawn * (high - low) + low
                gates = relu(stretched) - relu(stretched - 1)
                open_heads = sum_of(sigmoid(logit - temperature * np.log(-low / high)))
                value = run_with_hooks(loss or model.loss, *batch, hooks=head_gates(gates, attentions))
                tape.backward(value + open_heads * penalty)
            for each in (optimizer, weights) if weights else (optimizer,):
                each.step()
                each.zero_grad()
    mean = 1 / (1 + np.exp(-np.asarray(logit, np.float64)))
    return np.clip(mean * (high - low) + low, 0, 1)


__all__ = [
    "Cache", "ablate_heads", "activation_patching", "attention_rollout", "attribution_patching", "copying_accuracy",
    "direct_logit_attribution", "head_gates", "head_importance", "head_scores", "integrated_gradients", "knock_out",
    "logit_lens", "path_patching", "prune", "run_with_cache", "run_with_hooks", "train_head_gates",
]  # fmt: skip
