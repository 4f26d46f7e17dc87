"""ONNX operators on NumPy arrays: Attention (opsets 23 to 25), RotaryEmbedding, RMSNormalization (23), LinearAttention.

A reference for testing ONNX runtimes: the semantics of ONNX 1.23, computed in float32 for 16-bit inputs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _core
from ._types import ArrayLike

_TYPES = ("float16", "float32", "float64", "bfloat16")


def _check(name, array, rank=(3, 4)):
    array = np.asarray(array)
    if str(array.dtype) not in _TYPES:
        raise TypeError(f"onnx_attention: {name} must be one of {', '.join(_TYPES)}, got {array.dtype}")
    if array.ndim not in rank:
        raise _core.ShapeError(f"onnx_attention: {name} must have {' or '.join(map(str, rank))} axes, got {array.shape}")
    return array


def _wide(array, dtype=np.float32):
    return array.astype(np.float64 if array.dtype == np.float64 else dtype)


def _split(name, x, heads):
    if x.ndim == 4:
        return x
    if heads <= 0:
        raise ValueError(f"onnx_attention: 3-D inputs need q_num_heads and kv_num_heads, got {heads} for {name}")
    if x.shape[2] % heads:
        raise _core.ShapeError(f"onnx_attention: {name} has {x.shape[2]} features, not a multiple of {heads} heads")
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)


def _past(name, past, x):
    if past is None:
        return x
    past = _check(name, past, (4,))
    expected = (x.shape[0], x.shape[1], x.shape[3])
    if (past.shape[0], past.shape[1], past.shape[3]) != expected:
        raise _core.ShapeError(f"onnx_attention: {name} must be (B, H, P, D) to match {x.shape}, got {past.shape}")
    return np.concatenate([past, x.astype(past.dtype)], axis=2)


def _pad_mask(mask, keys):
    """Pads shorter masks with excluded keys."""
    missing = keys - mask.shape[-1]
    if missing <= 0 or mask.shape[-1] == 1:
        return mask
    fill = False if mask.dtype == bool else -np.inf
    widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
    return np.pad(mask, widths, constant_values=fill)


def _allowed(b, queries, keys, causal, offsets, lengths, left, right):
    """bool (B or 1, 1, Tq, Tk) of pairs allowed by causality, windows and cache lengths, or None for all."""
    if not causal and lengths is None and left < 0 and right < 0:
        return None
    i = np.arange(queries)[None, :, None] + offsets[:, None, None]
    j = np.arange(keys)[None, None, :]
    allowed = np.ones((len(offsets), queries, keys), dtype=bool)
    if causal:
        allowed &= j <= i
    if left >= 0:
        allowed &= j >= i - left
    if right >= 0:
        allowed &= j <= i + right
    if lengths is not None:
        allowed = allowed & (j < lengths[:, None, None])
    return allowed[:, None]


def _lengths(nonpad_kv_seqlen, batch, keys):
    if nonpad_kv_seqlen is None:
        return None
    lengths = np.asarray(nonpad_kv_seqlen, dtype=np.int64)
    if lengths.shape != (batch,) or lengths.min(initial=0) < 0 or lengths.max(initial=0) > keys:
        raise ValueError(f"onnx_attention: nonpad_kv_seqlen must be ({batch},) within 0 to {keys}, got {lengths}")
    return lengths


def _with_mask(allowed, mask, keys):
    """(pairs that are allowed, bias or None) with the operator's mask, which is either."""
    if mask is None:
        return allowed, None
    mask = _pad_mask(np.asarray(mask), keys)
    if not 1 <= mask.ndim <= 4:
        raise _core.ShapeError(f"onnx_attention: attn_mask must have 1 to 4 axes, got {mask.shape}")
    if mask.dtype == bool:
        return mask if allowed is None else allowed & mask, None
    if str(mask.dtype) in _TYPES:
        return allowed, mask
    raise TypeError(f"onnx_attention: attn_mask must be bool or floating, got {mask.dtype}")


def onnx_attention(
    Q: ArrayLike,
    K: ArrayLike,
    V: ArrayLike,
    attn_mask: ArrayLike | None = None,
    past_key: ArrayLike | None = None,
    past_value: ArrayLike | None = None,
    nonpad_kv_seqlen: ArrayLike | None = None,
    *,
    opset: int = 24,
    is_causal: int = 0,
    scale: Any = None,
    softcap: float = 0.0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    softmax_precision: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
) -> tuple[Any, Any, Any, Any]:
    """The ONNX Attention operator: returns (Y, present_key, present_value, qk_matmul_output).

    Inputs      Q (B, Hq, L, D) or (B, L, Hq*D) with q_num_heads, K, V, past_*: as in the standard; a rank-3
                mask broadcasts as (H, L, S); nonpad_kv_seqlen int64 (B) from opset 24
    Types       float16, bfloat16 (ml_dtypes), float32, float64; 16-bit inputs are computed in float32
    Order       scale, softcap, mask, softmax; fully masked rows give zeros
    Raises      TypeError, ShapeError, ValueError
    """
    refused = (
        (opset not in (23, 24, 25), f"opset must be 23, 24 or 25, got {opset}"),
        (opset < 25 and (left_window_size != -1 or right_window_size != -1),
         f"windows came with opset 25, got opset {opset}"),
        (opset < 24 and nonpad_kv_seqlen is not None, "nonpad_kv_seqlen came with opset 24"),
        (nonpad_kv_seqlen is not None and (past_key is not None or past_value is not None),
         "nonpad_kv_seqlen and past_key/past_value exclude each other"),
        ((past_key is None) != (past_value is None), "past_key and past_value come together"),
        (qk_matmul_output_mode not in (0, 1, 2, 3), f"qk_matmul_output_mode must be 0 to 3, got {qk_matmul_output_mode}"),
        (scale is not None and scale != scale, "scale is NaN"),
        (not softcap >= 0, f"softcap must be >= 0, got {softcap}"),
        (opset >= 25 and np.ndim(Q) == 4 and (q_num_heads or kv_num_heads),
         "q_num_heads and kv_num_heads are for 3-D inputs"),
    )  # fmt: skip
    for is_wrong, message in refused:
        if is_wrong:
            raise ValueError(f"onnx_attention: {message}")
    Q, K, V = _check("Q", Q), _check("K", K), _check("V", V)
    # TensorProto's types; of 16-bit inputs the softmax is f32's, which is more than they ask for.
    fitting = (11,) if np.float64 in (Q.dtype, K.dtype, V.dtype) else (1, 10, 16)
    if softmax_precision not in (None, *fitting):
        raise ValueError(f"onnx_attention: softmax_precision must be one of {fitting} for these types, got {softmax_precision}")
    q, k, v = _split("Q", Q, q_num_heads), _split("K", K, kv_num_heads), _split("V", V, kv_num_heads)
    past = 0 if past_key is None else np.asarray(past_key).shape[2]
    k, v = _past("past_key", past_key, k), _past("past_value", past_value, v)
    batch, heads, queries, head_dim = q.shape
    keys = k.shape[2]
    if k.shape[1] == 0 or heads % k.shape[1]:
        raise _core.ShapeError(f"onnx_attention: {heads} query heads are not a multiple of {k.shape[1]} key heads")
    lengths = _lengths(nonpad_kv_seqlen, batch, keys)
    offsets = np.full(1, past, dtype=np.int64) if lengths is None else lengths - queries
    allowed = _allowed(batch, queries, keys, is_causal, offsets, lengths, left_window_size, right_window_size)
    allowed, bias = _with_mask(allowed, attn_mask, keys)
    factor = 1.0 / math.sqrt(head_dim) if scale is None else float(scale)

    wide = np.float64 if np.float64 in (Q.dtype, K.dtype, V.dtype) else np.float32
    wq, wk, wv = (np.ascontiguousarray(x, dtype=wide) for x in (q, k, v))
    masks = None if allowed is None else _core.keep(np.ascontiguousarray(allowed))
    wide_bias = None if bias is None else np.ascontiguousarray(bias, dtype=wide)
    y = _core.attention(
        wq, wk, wv, mask=masks, scale=factor, softcap=float(softcap), bias=wide_bias, allow_binary_bias=True
    )
    y = np.asarray(y).astype(Q.dtype)
    scores = _matmul_output(wq, wk, factor, softcap, bias, allowed, qk_matmul_output_mode).astype(Q.dtype)
    if Q.ndim == 3:
        y = y.transpose(0, 2, 1, 3).reshape(batch, queries, -1)
    return y, k, v, scores


def _matmul_output(q, k, scale, softcap, bias, allowed, mode):
    """The scores at one point of the pipeline: 0 raw, 1 after the softcap, 2 after the mask, 3 after the softmax."""
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    root = math.sqrt(abs(scale))
    scores = (q * root) @ np.swapaxes(k * math.copysign(root, scale), -1, -2)
    if mode == 0:
        return scores
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
    if mode == 1:
        return scores
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    if mode == 2:
        return scores
    return np.asarray(_core.softmax(np.ascontiguousarray(scores)))


def rotary_embedding(
    X: ArrayLike, cos_cache: ArrayLike, sin_cache: ArrayLike, position_ids: ArrayLike | None = None, *, interleaved: int = 0, rotary_embedding_dim: int = 0, num_heads: int = 0
) -> np.ndarray[Any, Any]:
    """The ONNX RotaryEmbedding operator (opset 23): X (B, H, S, D) or (B, S, H*D) with num_heads."""
    X = _check("X", X)
    if X.ndim == 3 and num_heads <= 0:
        raise ValueError("rotary_embedding: 3-D inputs need num_heads")
    x = _split("X", X, num_heads).transpose(0, 2, 1, 3) if X.ndim == 3 else X.transpose(0, 2, 1, 3)
    size = rotary_embedding_dim or x.shape[-1]
    cos, sin = np.asarray(cos_cache), np.asarray(sin_cache)
    if position_ids is not None:
        cos, sin = cos[position_ids], sin[position_ids]
    if cos.shape != sin.shape or cos.shape[-1] != size // 2 or cos.ndim != 3:
        raise _core.ShapeError(
            f"rotary_embedding: caches must give (B, S, {size // 2}), got {cos.shape} and {sin.shape}"
        )
    cos, sin = _wide(cos)[:, :, None], _wide(sin)[:, :, None]
    rotated, rest = _wide(x[..., :size]), x[..., size:]
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
    else:
        a, b = np.split(rotated, 2, axis=-1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    if interleaved:
        joined = np.stack([real, imaginary], axis=-1).reshape(rotated.shape)
    else:
        joined = np.concatenate([real, imaginary], axis=-1)
    y = np.concatenate([joined.astype(X.dtype), rest], axis=-1)
    return y.reshape(X.shape) if X.ndim == 3 else y.transpose(0, 2, 1, 3)


def rms_normalization(X: ArrayLike, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> np.ndarray[Any, Any]:
    """The ONNX RMSNormalization operator (opset 23): X / sqrt(mean(X^2) + epsilon) * scale over axes >= axis."""
    X, scale = np.asarray(X), np.asarray(scale)
    if str(X.dtype) not in _TYPES:
        raise TypeError(f"rms_normalization: X must be one of {', '.join(_TYPES)}, got {X.dtype}")
    if not -X.ndim <= axis < X.ndim:
        raise ValueError(f"rms_normalization: axis {axis} is outside [-{X.ndim}, {X.ndim})")
    axes = tuple(range(axis % X.ndim, X.ndim))
    wide = np.float64 if X.dtype == np.float64 and stash_type != 1 else np.float32 if stash_type == 1 else X.dtype
    x = X.astype(wide)
    normed = x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + np.asarray(epsilon, dtype=wide))
    return normed.astype(X.dtype) * scale


def onnx_linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    past_state: ArrayLike | None = None,
    decay: Any = None,
    beta: Any = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    update_rule: str = "gated_delta",
    scale: float = 0.0,
    chunk_size: int = 64,
) -> tuple[Any, Any]:
    """The ONNX LinearAttention operator: (output, present_state) of linear_attention() on arrays [B, T, heads * D]."""
    rules = {"linear": "retention", "gated": "retention", "delta": "delta", "gated_delta": "gated_delta"}
    if update_rule not in rules:
        raise ValueError(f"onnx_linear_attention: update_rule must be one of {', '.join(rules)}, got '{update_rule}'")
    for name, given, wanted in (("decay", decay, "gated" in update_rule), ("beta", beta, "delta" in update_rule)):
        if (given is not None) != wanted:
            raise ValueError(f"onnx_linear_attention: '{update_rule}' {'needs' if wanted else 'has no'} {name}")
    arrays = [_check(name, x, (3,)) for name, x in (("query", query), ("key", key), ("value", value))]
    if arrays[0].dtype == np.float64:
        raise TypeError("onnx_linear_attention: ONNX has no float64 here; use linear_attention")
    q, k, v = (_wide(_split("heads", x, n)) for x, n in zip(arrays, (q_num_heads, kv_num_heads, kv_num_heads)))
    if decay is not None:
        decay = _wide(_split("decay", _check("decay", decay, (3,)), kv_num_heads))
        decay = decay[..., 0] if decay.shape[-1] == 1 and k.shape[-1] != 1 else decay
    if beta is not None:
        beta = np.broadcast_to(_wide(_check("beta", beta, (3,))).transpose(0, 2, 1), k.shape[:3])
    state = None if past_state is None else _wide(_check("past_state", past_state, (4,)))
    out, present = _core.linear_attention(
        *map(np.ascontiguousarray, (q, k, v)),
        log_decay=None if decay is None else np.ascontiguousarray(decay),
        beta=None if beta is None else np.ascontiguousarray(beta),
        rule=rules[update_rule],
        scale=scale or None,
        chunk=chunk_size or 64,
        state=state,
    )
    dtype = arrays[0].dtype
    output = out.numpy().transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1).astype(dtype)
    return output, present.numpy().astype(dtype if past_state is None else np.asarray(past_state).dtype)


__all__ = ["onnx_attention", "onnx_linear_attention", "rms_normalization", "rotary_embedding"]
