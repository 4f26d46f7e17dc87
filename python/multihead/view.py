"""Attention weights as a plot or a page in a notebook."""

from __future__ import annotations

import html
import os
from typing import Any, Sequence

import numpy as np

from . import _core
from ._core import Tokenizer
from ._types import ArrayLike, PathLike


class AttentionView:
    """Shows attention weights [H, Tq, Tk] or [B, H, Tq, Tk] (its first sample) as one heat map per head.

    `tokens` label the keys, `query_tokens` the queries (default: the keys' labels where the sizes agree);
    text.token_labels(tokenizer, ids) also labels parts of characters. A notebook displays it; svg() returns
    the SVG. Nothing is loaded from elsewhere.
    """

    def __init__(self, weights: ArrayLike | None, tokens: Sequence[str] | None = None, query_tokens: Sequence[str] | None = None, heads: Sequence[int] | None = None) -> None:
        weights = np.asarray(weights, dtype=np.float32)
        if weights.ndim == 4:
            weights = weights[0]
        if weights.ndim == 2:
            weights = weights[None]
        if weights.ndim != 3:
            raise ValueError(f"AttentionView: weights must be [H, Tq, Tk], got shape {weights.shape}")
        self.heads = list(range(len(weights))) if heads is None else list(heads)
        self.weights = weights[self.heads] if heads is not None else weights
        _, queries, keys = self.weights.shape
        if tokens is not None and len(tokens) != keys:
            raise ValueError(f"AttentionView: {len(tokens)} tokens for {keys} keys")
        self.tokens = [str(t) for t in tokens] if tokens is not None else None
        if query_tokens is None and self.tokens is not None and queries == keys:
            query_tokens = self.tokens
        self.query_tokens = [str(t) for t in query_tokens] if query_tokens is not None else None
        if self.query_tokens is not None and len(self.query_tokens) != queries:
            raise ValueError(f"AttentionView: {len(self.query_tokens)} query tokens for {queries} queries")

    def svg(self, cell: int = 14) -> str:
        """One SVG with a panel per head; with fewer labels if `cell` is smaller than a line of text."""
        count, queries, keys = self.weights.shape
        left = 10 + 7 * max((len(t) for t in self.query_tokens or [""]), default=0)
        top = 24 + 7 * max((len(t) for t in self.tokens or [""]), default=0)
        width, height = left + keys * cell + 16, top + queries * cell + 12
        columns = max(1, min(count, 900 // max(width, 1)))
        rows = -(-count // columns)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * width}" height="{rows * height}" '
            'font-family="sans-serif" font-size="11" fill="currentColor" role="img">'
        ]
        for index in range(count):
            x, y = index % columns * width, index // columns * height
            parts.append(f'<g transform="translate({x},{y})"><text x="{left}" y="12">head {self.heads[index]}</text>')
            parts += self._labels(left, top, cell)
            parts += self._cells(self.weights[index], left, top, cell)
            parts.append("</g>")
        parts.append("</svg>")
        return "".join(parts)

    def _labels(self, left, top, cell):
        step = -(-12 // cell)
        for i, token in list(enumerate(self.query_tokens or []))[::step]:
            yield f'<text x="{left - 4}" y="{top + (i + 0.5) * cell + 4}" text-anchor="end">{html.escape(token)}</text>'
        for j, token in list(enumerate(self.tokens or []))[::step]:
            x, y = left + (j + 0.5) * cell + 4, top - 4
            yield f'<text x="{x}" y="{y}" transform="rotate(-90 {x} {y})">{html.escape(token)}</text>'

    def _cells(self, weights, left, top, cell):
        for i, row in enumerate(weights):
            for j, weight in enumerate(row):
                opacity = min(max(float(weight), 0.0), 1.0) if weight == weight else 0.0
                names = [self.query_tokens[i] if self.query_tokens else i, self.tokens[j] if self.tokens else j]
                title = html.escape(f"{names[0]} → {names[1]}: {weight:.3f}")
                yield (
                    f'<rect x="{left + j * cell}" y="{top + i * cell}" width="{cell - 1}" height="{cell - 1}" '
                    f'fill="#2563eb" fill-opacity="{opacity:.3f}" stroke="#8884"><title>{title}</title></rect>'
                )

    def _repr_html_(self):
        return f'<div style="overflow:auto">{self.svg()}</div>'


class AttentionPage:
    """The page returned by attend(): notebooks display it, save(path) writes it, html is its text."""

    def __init__(self, text: str, height: int) -> None:
        self.html, self._height = text, height

    def save(self, path: PathLike) -> None:
        with open(os.fspath(path), "w", encoding="utf-8") as file:
            file.write(self.html)

    def _repr_html_(self):
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self._height}px;border:0"></iframe>'
        )


def attend(
    model: Any, text: str, tokenizer: Tokenizer | None = None, *, beside: str | None = None, target: str = "", layers: Sequence[int] = (), heads: Sequence[int] | None = (), rows: Sequence[int] = (), measures: bool | None = None, off: Sequence[tuple[int, int]] = (), cut: Sequence[tuple[int, int, int, int]] = (), height: int = 760
) -> AttentionPage:
    """An interactive page of a model's attention on a text: heads, matrix, lines, and the layers' predictions.

    model      a LanguageModel or Encoder with its tokenizer, or a Translator (`text` is the source, `target` what it writes; "":
               its own translation)
    beside     another text, shown side by side
    layers, heads, rows  some of them (rows: queries, by token; not of translators); empty: all
    measures   logit lens, worth of every head, shares of tokens, queries and keys; None: where they take seconds
    off, cut   heads (layer, head) at zero, edges (layer, head, query, key) that are not seen
    A long text of many heads is a ValueError that says how to have less of it.
    """
    texts = [text] if beside is None else [text, beside]
    if hasattr(model, "source_tokenizer"):
        if off or cut or rows:
            raise ValueError("attend: off, cut and rows are not for translators")
        both = model.source_tokenizer, model.target_tokenizer
        page = _core.attention_page(model.model, *both, text, texts, target, list(layers), list(heads))
    else:
        if tokenizer is None:
            raise ValueError("attend: the model needs its tokenizer")
        changes = [list(x) for x in off], [list(x) for x in cut]
        page = _core.attention_page(model, tokenizer, text, texts, list(layers), list(heads), list(rows), measures, *changes)
    return AttentionPage(page, height)


__all__ = ["AttentionPage", "AttentionView", "attend"]
