"""Attention's gradients in PyTorch's own operations, which can be differentiated again (create_graph=True)."""

import torch
from torch.utils.checkpoint import checkpoint

# Scores of a block of rows, which its derivative computes again. Above 32 MB: glibc gives that back when it is freed;
# of smaller blocks 8,192 tokens left 3.5 to 6 GB of holes in its heap.
_MOST_SCORES = 9 * 2**20


def _of_rows(query, key, value, bias, keep, d_out, d_lse, scale, softcap):
    """What rows add to the gradients of query, key, value and bias."""
    scores, slope = query @ key.mT * scale, None
    if softcap:
        capped = torch.tanh(scores / softcap)
        scores, slope = softcap * capped, 1 - capped * capped
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    is_empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(is_empty, 0).softmax(-1).masked_fill(is_empty, 0)
    d_weights = d_out @ value.mT
    d_sum = (weights * d_weights).sum(-1, keepdim=True)
    d_scores = weights * (d_weights - (d_sum if d_lse is None else d_sum - d_lse[..., None]))
    d_bias = None if bias is None else d_scores.sum_to_size(bias.shape)
    if slope is not None:
        d_scores = d_scores * slope
    return d_scores @ key * scale, d_scores.mT @ query * scale, weights.mT @ d_out, d_bias


def _all_rows(query, key, value, bias, keep, d_out, d_lse, causal, scale, softcap):
    (batch, heads, length, _), keys = query.shape, key.size(2)
    step = max(_MOST_SCORES // max(batch * heads * keys, 1), 1)
    d_query, d_key, d_value, d_bias = [], 0, 0, []
    for begin in range(0, max(length, 1), step):
        end = min(begin + step, length)
        rows = lambda t: t if t is None or t.size(2) == 1 < length else t[:, :, begin:end]  # noqa: B023, E731
        kept = rows(keep)
        if causal:
            past = torch.ones(end - begin, keys, dtype=torch.bool).tril(begin)
            kept = past if kept is None else kept & past
        own = (rows(query), key, value, rows(bias), kept, rows(d_out), rows(d_lse), scale, softcap)
        if step >= length:
            return _of_rows(*own)
        d_q, d_k, d_v, d_b = checkpoint(_of_rows, *own, use_reentrant=False, preserve_rng_state=False)
        d_query.append(d_q)
        d_key, d_value = d_key + d_k, d_value + d_v
        d_bias.append(d_b)
    if bias is not None:
        d_bias = sum(d_bias) if bias.size(2) == 1 < length else torch.cat(d_bias, 2)
    return torch.cat(d_query, 2), d_key, d_value, d_bias


def gradients(query, key, value, bias, keep, d_out, d_lse, causal, scale, softcap):
    """Gradients of query, key, value and bias, as functions of them and of d_out and d_lse (None: of the output alone).

    Memory: O(L + S) rows and a block of scores; as much for the derivatives of what is returned. Arithmetic in float32,
    or float64 if that is the query's type.
    """
    given, shared = (query, key, value, bias), query.size(1) // max(key.size(1), 1)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    query, key, value, d_out = (t.to(dtype) for t in (query, key, value, d_out))
    key, value = (t.repeat_interleave(shared, 1) for t in (key, value))
    bias, keep = (t if t is None else t[(None,) * (4 - t.dim())] for t in (bias, keep))
    scale = query.size(3) ** -0.5 if scale is None else scale
    with torch.autocast("cpu", enabled=False):
        d_query, d_key, d_value, d_bias = _all_rows(
            query, key, value, bias, keep, d_out, d_lse, causal, scale, softcap
        )
    d_key, d_value = (d.unflatten(1, (-1, shared)).sum(2) if shared > 1 else d for d in (d_key, d_value))
    found = (d_query, d_key, d_value, None if bias is None else d_bias.reshape(given[3].shape))
    return [d if d is None else d.to(t.dtype) for d, t in zip(found, given)]
