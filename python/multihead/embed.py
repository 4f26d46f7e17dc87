"""Text embeddings, with the arguments of sentence-transformers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ._core import (
    ImageClassifier, TextClassifier, TextEncoder, TokenClassifier, fill_mask, label_probabilities, nearest, tensor,
)  # fmt: skip
from ._types import ArrayLike, Function, PathLike

if TYPE_CHECKING:
    import numpy as np

    from ._core import Encoder, Tokenizer

__all__ = [
    "CrossEncoder", "ImageClassifier", "SentenceEncoder", "TextClassifier", "TokenClassifier", "fill_mask",
    "label_probabilities", "nearest",
]  # fmt: skip


def _batch_tokens(batch_size):
    """Assumes texts of 32 tokens. Above 1,024, activations do not fit the caches; results do not depend on it."""
    return min(32 * batch_size, 1024)


class SentenceEncoder:
    """A model with its tokenizer and pooling, read from a sentence-transformers folder or a plain model folder.

    The model is an encoder, a decoder (Qwen3-Embedding) or the encoder of an encoder-decoder model. A plain model's
    tokens are averaged; pooling: 'cls', 'mean', 'max', 'mean_sqrt' or 'last' in place of what the folder says.
    The vector of a text has the same bits alone and in any batch, on any number of threads. weights: 'f32', or
    'int8' (per row), 'q8', 'q5', 'q4' (per group of 32) for less memory and time. precision: 'bf16' computes products and
    attention in bf16, the weights too unless `weights` says otherwise.
    """

    def __init__(self, model_name_or_path: PathLike, *, prompts: Mapping[str, str] | None = None, default_prompt_name: str | None = None, truncate_dim: int | None = None,
                 similarity_fn_name: str | None = None, weights: str | None = None, pooling: str | None = None, precision: str = "f32") -> None:
        if precision not in ("f32", "bf16"):
            raise ValueError(f"SentenceEncoder: precision must be 'f32' or 'bf16', got {precision!r}")
        self._encoder = TextEncoder.load(model_name_or_path, weights or precision, pooling)
        self.precision = precision
        self.prompts = {**self._encoder.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or self._encoder.default_prompt_name or None
        self._prompt(self.default_prompt_name)
        if truncate_dim is not None and truncate_dim < 1:
            raise ValueError(f"SentenceEncoder: truncate_dim must be positive, got {truncate_dim}")
        self.truncate_dim = truncate_dim
        self.similarity_fn_name = similarity_fn_name or self._encoder.similarity_fn_name or "cosine"
        if self.similarity_fn_name not in _SIMILARITIES:
            raise ValueError(f"SentenceEncoder: similarity_fn_name must be one of {sorted(_SIMILARITIES)}, "
                             f"got {self.similarity_fn_name!r}")

    def _prompt(self, name):
        if name is not None and name not in self.prompts:
            raise ValueError(f"SentenceEncoder: prompt_name {name!r} is none of {sorted(self.prompts)}")
        return "" if name is None else self.prompts[name]

    def encode(self, sentences: Any, prompt_name: str | None = None, prompt: str | None = None, batch_size: int = 32, show_progress_bar: bool | None = None,
               output_value: str = "sentence_embedding", precision: str = "float32", convert_to_numpy: bool = True, convert_to_tensor: bool = False,
               device: Any = None, normalize_embeddings: bool | None = None, truncate_dim: int | None = None) -> Any:
        """Vectors [n, dim] as NumPy f32, [dim] for a single str; convert_to_tensor=True gives a multihead Tensor.

        batch_size: how many texts of 32 tokens are computed at a time; bounds the memory and changes no bit.
        truncate_dim beyond the width keeps all. output_value, precision (of the vectors) and device have one value.
        """
        _only("SentenceEncoder", output_value=(output_value, "sentence_embedding"), precision=(precision, "float32"),
              device=(device, "cpu"))
        single = isinstance(sentences, str)
        texts = [sentences] if single else list(sentences)
        prompt_name = prompt_name or self.default_prompt_name
        if prompt is None:
            prompt = self._prompt(prompt_name)
        vectors = self._encoder.encode(
            texts, prompt=prompt, normalize=normalize_embeddings or None, batch_tokens=_batch_tokens(batch_size),
            precision={"f32": "float32", "bf16": "bfloat16"}[self.precision],
            truncate_dim=truncate_dim or self.truncate_dim or 0, progress=_bar if show_progress_bar else None)
        if convert_to_tensor or not convert_to_numpy:
            return vectors[0] if single else vectors
        import numpy as np

        array = np.asarray(vectors)
        return array[0] if single else array

    def encode_query(self, sentences: Any, **options: Any) -> Any:
        """encode() with the prompt "query", if there is one and no other is given."""
        return self._encode_as(["query"], sentences, options)

    def encode_document(self, sentences: Any, **options: Any) -> Any:
        """encode() with the first of the prompts "document", "passage" and "corpus", if no other is given."""
        return self._encode_as(["document", "passage", "corpus"], sentences, options)

    def _encode_as(self, names, sentences, options):
        if options.get("prompt") is None and options.get("prompt_name") is None:
            name = next((name for name in names if name in self.prompts), None)
            options = {**options, "prompt": self.prompts[name] if name else ""}
        return self.encode(sentences, **options)

    def similarity(self, a: ArrayLike, b: ArrayLike) -> np.ndarray[Any, Any]:
        """Between the rows of a and b, by similarity_fn_name: the folder's, else 'cosine'; 'dot', or the distances
        'euclidean' and 'manhattan', negated."""
        import numpy as np

        return _SIMILARITIES[self.similarity_fn_name](np.atleast_2d(np.asarray(a)), np.atleast_2d(np.asarray(b)))

    def get_sentence_embedding_dimension(self) -> int:
        return min(self.truncate_dim or self._encoder.dim, self._encoder.dim)

    @property
    def max_seq_length(self) -> int:
        return self._encoder.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        return self._encoder.tokenizer

    @property
    def encoder(self) -> Any:
        """The Encoder, LanguageModel or Seq2Seq."""
        return self._encoder.model

    def __repr__(self) -> str:
        return f"SentenceEncoder({self._encoder.dim} dimensions, {self.max_seq_length} tokens)"


class CrossEncoder:
    """A model that scores two texts in one sequence, with the arguments of sentence-transformers."""

    def __init__(self, model_name_or_path: PathLike, *, max_length: int | None = None, activation_fn: Function | None = None, device: Any = None, weights: str | None = "f32") -> None:
        _only("CrossEncoder", device=(device, "cpu"))
        self._classifier = TextClassifier.load(model_name_or_path, weights)
        self.activation_fn = activation_fn
        self.max_length = min(max_length or self._classifier.max_length, self.model.config.context)

    def __repr__(self) -> str:
        return f"CrossEncoder({len(self._classifier.labels)} labels, {self.max_length} tokens)"

    @property
    def model(self) -> Encoder:
        return self._classifier.encoder

    @property
    def tokenizer(self) -> Tokenizer:
        return self._classifier.tokenizer

    def predict(self, sentences: Any, batch_size: int = 32, show_progress_bar: bool | None = None, activation_fn: Function | None = None, apply_softmax: bool = False,
                convert_to_numpy: bool = True, convert_to_tensor: bool = False, apply_sigmoid: bool | None = None) -> Any:
        """Scores [n] of pairs of texts, or [n, labels] if the model has several labels; NumPy f32, or a multihead
        Tensor with convert_to_tensor=True.

        activation_fn: a function of logits [n, labels], NumPy's or a torch module; else that of the constructor, else
        the logistic function for a single label, unless the folder's activation_fn says otherwise, as in
        sentence-transformers. apply_sigmoid=True or False says so by hand. apply_softmax: over several labels, after
        it.
        """
        import numpy as np

        single = len(sentences) == 2 and all(isinstance(text, str) for text in sentences)
        pairs = [tuple(sentences)] if single else [tuple(pair) for pair in sentences]
        labels = self.model.config.num_labels
        scores = np.asarray(self._classifier.logits(
            pairs, max_length=self.max_length, batch_tokens=_batch_tokens(batch_size),
            progress=_bar if show_progress_bar else None)) if pairs else np.empty((0, labels), np.float32)
        activate = activation_fn or self.activation_fn
        if activate is not None and apply_sigmoid is None:
            scores = _activated(activate, scores)
        elif self._classifier.has_sigmoid if apply_sigmoid is None else apply_sigmoid:
            scores = 1 / (1 + np.exp(-scores))
        if apply_softmax and labels > 1:
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
        scores = scores[:, 0] if labels == 1 else scores
        scores = scores[0] if single else scores
        return scores if convert_to_numpy and not convert_to_tensor else tensor(np.ascontiguousarray(scores))

    def rank(self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False, batch_size: int = 32, show_progress_bar: bool | None = None,
             activation_fn: Function | None = None, apply_softmax: bool = False) -> list[dict[str, Any]]:
        """Documents ranked by their score with the query, best first: [{"corpus_id", "score"(, "text")}]."""
        if self.model.config.num_labels != 1:
            raise ValueError(f"CrossEncoder: ranking needs one label, the model has {self.model.config.num_labels}")
        scores = self.predict([(query, document) for document in documents], batch_size, show_progress_bar,
                              activation_fn, apply_softmax)
        order = sorted(range(len(documents)), key=lambda i: (-scores[i], i))[:top_k]
        return [{"corpus_id": i, "score": float(scores[i]), **({"text": documents[i]} if return_documents else {})}
                for i in order]


def _only(who, **arguments):
    """Refuses values of sentence-transformers' arguments but the one there is."""
    for name, (given, value) in arguments.items():
        if given is not None and str(given) != value:
            raise ValueError(f"{who}: {name} must be {value!r}, got {given!r}")


def _activated(function, scores):
    import numpy as np

    if any(cls.__module__.split(".")[0] == "torch" for cls in type(function).__mro__):
        import torch

        with torch.no_grad():
            return function(torch.from_numpy(scores)).numpy()
    return np.asarray(function(scores), np.float32)


def _cosine(a, b):
    import numpy as np

    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)[None]
    return a @ b.T / np.maximum(norms, 1e-12)


_SIMILARITIES = {
    "cosine": _cosine,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -((a[:, None] - b[None]) ** 2).sum(-1) ** 0.5,
    "manhattan": lambda a, b: -abs(a[:, None] - b[None]).sum(-1),
}


def _bar(done, total):
    width = 40 * done // total
    print(f"\r[{'=' * width}{' ' * (40 - width)}] {done}/{total}", end="\n" if done == total else "", file=sys.stderr)
