"""Text embeddings, with the arguments of sentence-transformers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ._core import (
    ImageClassifier, MultiVectorTextEncoder, SparseTextEncoder, TextClassifier, TextEncoder, TokenClassifier, VectorIndex,
    fill_mask, label_probabilities, nearest_dense, nearest_multi_vector, nearest_sparse, tensor,
)  # fmt: skip
from ._quantize import quantize_embeddings
from ._types import ArrayLike, Function, PathLike

if TYPE_CHECKING:
    import numpy as np

    from ._core import Encoder, Tokenizer

__all__ = [
    "CrossEncoder", "ImageClassifier", "MultiVectorEncoder", "SentenceEncoder", "SparseEncoder", "SparseVectors",
    "TextClassifier", "TokenClassifier", "VectorIndex", "fill_mask", "label_probabilities", "nearest", "quantize_embeddings",
]  # fmt: skip


def _batch_tokens(batch_size):
    """Assumes texts of 32 tokens. Above 1,024, activations do not fit the caches; results do not depend on it."""
    return min(32 * batch_size, 1024)


class _TextEncoder:
    """What the encoders of texts share: prompts, and how they are pickled, as their folder."""

    prompts: dict[str, str]
    default_prompt_name: str | None
    similarity_fn_name: str
    _encoder: Any

    def _take(self, path, core, similarities, options):
        self._made_of = (os.path.abspath(os.fspath(path)), {name: value for name, value in options.items() if value is not None})
        self._encoder = core
        self.precision = options["precision"]
        self.prompts = {**core.prompts, **(options["prompts"] or {})}
        self.default_prompt_name = options["default_prompt_name"] or core.default_prompt_name or None
        self._prompt(self.default_prompt_name)
        self.similarity_fn_name = options["similarity_fn_name"] or core.similarity_fn_name or next(iter(similarities))
        if self.similarity_fn_name not in similarities:
            raise ValueError(f"{type(self).__name__}: similarity_fn_name must be one of {sorted(similarities)}, "
                             f"got {self.similarity_fn_name!r}")

    def __reduce__(self):
        return _from_folder, (type(self), *self._made_of)

    def _prompt(self, name):
        if name is not None and name not in self.prompts:
            raise ValueError(f"{type(self).__name__}: prompt_name {name!r} is none of {sorted(self.prompts)}")
        return "" if name is None else self.prompts[name]

    def _chosen(self, prompt, prompt_name, otherwise):
        if prompt is None:
            return self._prompt(prompt_name or otherwise)
        if prompt_name is not None:
            raise ValueError(f"{type(self).__name__}: give prompt or prompt_name, not both")
        return prompt

    def _work(self, batch_size, show_progress_bar):
        return {"batch_tokens": _batch_tokens(batch_size), "progress": _bar if show_progress_bar else None,
                "precision": {"f32": "float32", "bf16": "bfloat16"}[self.precision]}

    def encode_query(self, sentences: Any, **options: Any) -> Any:
        """encode() with the prompt "query", if there is one and no other is given."""
        return self._encode_as("query", ["query"], sentences, options)

    def encode_document(self, sentences: Any, **options: Any) -> Any:
        """encode() with the first of the prompts "document", "passage" and "corpus", if no other is given."""
        return self._encode_as("document", ["document", "passage", "corpus"], sentences, options)

    def _encode_as(self, task, names, sentences, options):
        if options.get("prompt") is None and options.get("prompt_name") is None:
            name = next((name for name in names if name in self.prompts), None)
            options = {**options, "prompt": self.prompts[name] if name else ""}
        return self.encode(sentences, **options)  # type: ignore[attr-defined]

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


def _from_folder(cls, path, options):
    return cls(path, **options)


def _texts(sentences):
    """A list of texts, and whether there was one alone."""
    if isinstance(sentences, Mapping):
        raise TypeError("encode: sentences must be a str or a list of them, got a dict; its values are list(texts.values())")
    single = isinstance(sentences, str)
    return [sentences] if single else list(sentences), single


def _check_width(truncate_dim):
    if truncate_dim is not None and truncate_dim < 1:
        raise ValueError(f"SentenceEncoder: truncate_dim must be positive, got {truncate_dim}")


def _check_precision(who, precision):
    if precision not in ("f32", "bf16"):
        raise ValueError(f"{who}: precision must be 'f32' or 'bf16', got {precision!r}")


class SentenceEncoder(_TextEncoder):
    """A model with its tokenizer and pooling, read from a sentence-transformers folder or a plain model folder.

    The model is an encoder, a decoder (Qwen3-Embedding) or the encoder of an encoder-decoder model. A plain model's
    tokens are averaged; pooling: 'cls', 'mean', 'max', 'mean_sqrt' or 'last' in place of what the folder says.
    The vector of a text has the same bits alone and in any batch, on any number of threads. weights: 'f32',
    or 'int8' (per row), 'q8', 'q5', 'q4' (per group of 32) for less memory and time; None: as they are stored, which
    in a GGUF file may be quantised. precision: 'bf16' computes products and
    attention in bf16, the weights too unless `weights` says otherwise.
    """

    def __init__(self, model_name_or_path: PathLike, *, prompts: Mapping[str, str] | None = None, default_prompt_name: str | None = None, truncate_dim: int | None = None,
                 similarity_fn_name: str | None = None, weights: str | None = None, pooling: str | None = None, precision: str = "f32") -> None:
        _check_precision("SentenceEncoder", precision)
        _check_width(truncate_dim)
        self._routes: dict[str, TextEncoder] | None = {} if TextEncoder.has_routes(model_name_or_path) else None
        self._take(model_name_or_path, TextEncoder.load(model_name_or_path, weights or (None if precision == "f32" else precision), pooling), _SIMILARITIES, {
            "prompts": prompts, "default_prompt_name": default_prompt_name, "truncate_dim": truncate_dim,
            "similarity_fn_name": similarity_fn_name, "weights": weights, "pooling": pooling, "precision": precision})
        self.truncate_dim = truncate_dim or self._encoder.truncate_dim or None

    def encode(self, sentences: Any, prompt_name: str | None = None, prompt: str | None = None, batch_size: int = 32, show_progress_bar: bool | None = None,
               output_value: str = "sentence_embedding", precision: str | None = "float32", convert_to_numpy: bool = True, convert_to_tensor: bool = False,
               device: Any = None, normalize_embeddings: bool | None = None, truncate_dim: int | None = None, task: str | None = None) -> Any:
        """Vectors [n, dim] as NumPy f32, [dim] for a single str; convert_to_tensor=True gives a multihead Tensor.
        task: which route of a folder with a Router, 'query', 'document' or another of its own; which adapter of one
        that has them (Jina Embeddings v3), with its prompt unless another is given; others have one way.

        batch_size: how many texts of 32 tokens are computed at a time; bounds the memory and changes no bit.
        truncate_dim: at most the width; the constructor's, or else the folder's, keeps all beyond it. precision of the vectors: 'float32', or as quantize_embeddings() makes
        them. output_value and device have one value.
        """
        if output_value != "sentence_embedding":  # None asks for the vectors of all tokens, too
            raise ValueError(f"SentenceEncoder: output_value must be 'sentence_embedding', got {output_value!r}")
        _only("SentenceEncoder", device=(device, "cpu"))
        _check_width(truncate_dim)
        texts, single = _texts(sentences)
        route = self._route(task)
        own = route.default_prompt_name  # an adapter's
        prompt = self._chosen(prompt, prompt_name, (own if own != self._encoder.default_prompt_name else None) or self.default_prompt_name)
        vectors = route.encode(
            texts, prompt=prompt, normalize=normalize_embeddings or None, truncate_dim=truncate_dim or min(self.truncate_dim or 0, self._encoder.dim),
            **self._work(batch_size, show_progress_bar))
        if precision in (None, "float32") and (convert_to_tensor or not convert_to_numpy):
            return vectors[0] if single else vectors
        if convert_to_tensor:
            raise ValueError(f"SentenceEncoder: vectors of {precision} are NumPy arrays: convert_to_tensor must be False")
        array = quantize_embeddings(vectors, precision or "float32")
        return array[0] if single else array

    def similarity(self, a: ArrayLike, b: ArrayLike) -> np.ndarray[Any, Any]:
        """Between the rows of a and b, by similarity_fn_name: the folder's, else 'cosine'; 'dot', or the distances
        'euclidean' and 'manhattan', negated."""
        return _SIMILARITIES[self.similarity_fn_name](_rows(a), _rows(b))

    def _route(self, task):
        """A route's encoder, made when it is first asked for."""
        if self._routes is None or not task:
            return self._encoder
        if task not in self._routes:
            self._routes[task] = self._encoder.route(task)
        return self._routes[task]

    def _encode_as(self, task, names, sentences, options):
        return super()._encode_as(task, [*names, *(f"retrieval.{name}" for name in names)], sentences, {"task": task, **options})

    def get_sentence_embedding_dimension(self) -> int:
        return min(self.truncate_dim or self._encoder.dim, self._encoder.dim)

    def __repr__(self) -> str:
        return f"SentenceEncoder({self._encoder.dim} dimensions, {self.max_seq_length} tokens)"


class SparseVectors:
    """Rows of weights of the vocabulary's tokens, most of them 0, as SciPy has them:
    scipy.sparse.csr_matrix((x.data, x.indices, x.indptr), x.shape)."""

    def __init__(self, data: Any, indices: Any, indptr: Any, shape: tuple[int, int]) -> None:
        self.data, self.indices, self.indptr, self.shape = data, indices, indptr, shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> SparseVectors:
        """Some rows; a single one in a matrix of its own."""
        first, last, step = rows.indices(len(self)) if isinstance(rows, slice) else (range(len(self))[rows], range(len(self))[rows] + 1, 1)
        if step != 1:
            raise ValueError(f"SparseVectors: rows must follow each other, got a step of {step}")
        begin, end = self.indptr[first], self.indptr[max(last, first)]
        return SparseVectors(self.data[begin:end], self.indices[begin:end], self.indptr[first:max(last, first) + 1] - begin,
                             (max(last - first, 0), self.shape[1]))

    def toarray(self) -> np.ndarray[Any, Any]:
        import numpy as np

        dense = np.zeros(self.shape, np.float32)
        dense[np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices] = self.data
        return dense

    def __repr__(self) -> str:
        return f"SparseVectors({self.shape[0]} x {self.shape[1]}, {len(self.data)} numbers)"


class SparseEncoder(_TextEncoder):
    """SPLADE: a masked language model that weighs the tokens of its vocabulary by a text. Reads a folder of
    sentence-transformers (Transformer, SpladePooling) or of any ...ForMaskedLM.

    The weights of a text have the same bits alone and in any batch, on any number of threads. weights, precision: as of
    SentenceEncoder.
    """

    def __init__(self, model_name_or_path: PathLike, *, prompts: Mapping[str, str] | None = None, default_prompt_name: str | None = None,
                 similarity_fn_name: str | None = None, max_active_dims: int | None = None, weights: str | None = None, precision: str = "f32") -> None:
        _check_precision("SparseEncoder", precision)
        if max_active_dims is not None and max_active_dims < 1:
            raise ValueError(f"SparseEncoder: max_active_dims must be positive, got {max_active_dims}")
        self._take(model_name_or_path, SparseTextEncoder.load(model_name_or_path, weights or precision), {"dot": _SIMILARITIES["dot"], **_SIMILARITIES}, {
            "prompts": prompts, "default_prompt_name": default_prompt_name, "similarity_fn_name": similarity_fn_name,
            "max_active_dims": max_active_dims, "weights": weights, "precision": precision})
        self.max_active_dims = max_active_dims or self._encoder.max_active or None

    def encode(self, sentences: Any, prompt_name: str | None = None, prompt: str | None = None, batch_size: int = 32, show_progress_bar: bool | None = None,
               convert_to_tensor: bool = True, convert_to_sparse_tensor: bool = True, device: Any = None, max_active_dims: int | None = None,
               save_to_cpu: bool = True) -> Any:
        """SparseVectors [n, vocabulary], of a single str of one row; convert_to_sparse_tensor=False: NumPy f32, all
        columns ([vocabulary] of a single str). max_active_dims: keeps the largest weights of each text.
        save_to_cpu: they are there."""
        import numpy as np

        _only("SparseEncoder", device=(device, "cpu"))
        texts, single = _texts(sentences)
        prompt = self._chosen(prompt, prompt_name, self.default_prompt_name)
        ends, columns, values = self._encoder.encode(texts, prompt=prompt, max_active=max_active_dims or self.max_active_dims or 0,
                                                     **self._work(batch_size, show_progress_bar))
        rows = SparseVectors(np.asarray(values), np.asarray(columns), np.asarray(ends), (len(texts), self._encoder.dim))
        if convert_to_sparse_tensor:
            return rows
        return rows.toarray()[0] if single else rows.toarray()

    def decode(self, embeddings: SparseVectors, top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """For each row its tokens and their weights, the largest first. A column beyond the vocabulary, which padded
        embeddings have, is called by its number: "#30523"."""
        import numpy as np

        def token(column):
            return self.tokenizer.token(column) if column < self.tokenizer.vocab_size else f"#{column}"

        result = []
        for begin, end in zip(embeddings.indptr[:-1], embeddings.indptr[1:]):
            columns, values = embeddings.indices[begin:end], embeddings.data[begin:end]
            order = np.lexsort((columns, -values))[:top_k]
            result.append([(token(int(columns[i])), float(values[i])) for i in order])
        return result

    def similarity(self, a: Any, b: Any) -> np.ndarray[Any, Any]:
        """Between the rows of a and b, SparseVectors or arrays, by similarity_fn_name: 'dot' unless the folder says
        otherwise."""
        dense = [_rows(x.toarray() if isinstance(x, SparseVectors) else x) for x in (a, b)]
        return _SIMILARITIES[self.similarity_fn_name](*dense)

    def get_sentence_embedding_dimension(self) -> int:
        return self._encoder.dim

    def __repr__(self) -> str:
        return f"SparseEncoder({self._encoder.dim} dimensions, {self.max_seq_length} tokens)"


class MultiVectorEncoder(_TextEncoder):
    """ColBERT: a vector for each token of a text; two texts are compared by MaxSim. Reads a folder of
    sentence-transformers' MultiVectorEncoder, of PyLate, or of Stanford's ColBERT.

    The vectors of a text have the same bits alone and in any batch, on any number of threads. weights, precision: as of
    SentenceEncoder. encode_query() and encode_document() are what models are trained for.
    """

    def __init__(self, model_name_or_path: PathLike, *, prompts: Mapping[str, str] | None = None, default_prompt_name: str | None = None,
                 similarity_fn_name: str | None = None, weights: str | None = None, precision: str = "f32") -> None:
        _check_precision("MultiVectorEncoder", precision)
        core = MultiVectorTextEncoder.load(model_name_or_path, weights or precision)
        saved = core.similarity_fn_name if core.similarity_fn_name in _MULTI_VECTOR_SIMILARITIES else "maxsim"
        self._take(model_name_or_path, core, _MULTI_VECTOR_SIMILARITIES, {
            "prompts": prompts, "default_prompt_name": default_prompt_name, "similarity_fn_name": similarity_fn_name or saved,
            "weights": weights, "precision": precision})

    def encode(self, sentences: Any, prompt_name: str | None = None, prompt: str | None = None, batch_size: int = 32, show_progress_bar: bool | None = None,
               convert_to_numpy: bool = True, device: Any = None, normalize_embeddings: bool = False, task: str | None = None) -> Any:
        """A list of NumPy f32 [tokens, dim], one for each text; for a single str the array itself. task: 'query' or
        'document'."""
        import numpy as np

        _only("MultiVectorEncoder", device=(device, "cpu"), convert_to_numpy=(convert_to_numpy, "True"))
        if task not in (None, "query", "document"):
            raise ValueError(f"MultiVectorEncoder: task must be 'query', 'document' or None, got {task!r}")
        texts, single = _texts(sentences)
        prompt = self._chosen(prompt, prompt_name, self.default_prompt_name)
        vectors, ends = self._encoder.encode(texts, task=task or "none", prompt=prompt, normalize=normalize_embeddings or None,
                                             **self._work(batch_size, show_progress_bar))
        parts = np.split(np.asarray(vectors), np.asarray(ends)[1:-1]) if texts else []
        return parts[0] if single else parts

    def _encode_as(self, task, names, sentences, options):
        return super()._encode_as(task, names, sentences, {"task": task, **options})

    def similarity(self, a: Any, b: Any) -> np.ndarray[Any, Any]:
        """[n, m] of the texts of a and b, lists of arrays [tokens, dim] or single ones: the sum over a text's vectors of
        the largest inner product with one of the other's ('maxsim'), or their mean ('meanmaxsim')."""
        return _MULTI_VECTOR_SIMILARITIES[self.similarity_fn_name](_as_list(a), _as_list(b))

    def get_sentence_embedding_dimension(self) -> int:
        return self._encoder.dim

    def __repr__(self) -> str:
        return f"MultiVectorEncoder({self._encoder.dim} dimensions, {self.max_seq_length} tokens)"


def nearest(queries: Any, corpus: Any, count: int = 10, similarity: str = "dot") -> list[list[tuple[int, float]]]:
    """For each query the (row, score) of the rows of corpus with the largest similarity, largest first: of arrays
    [n, dim] or SparseVectors by 'dot', 'cosine', or the distances 'euclidean' and 'manhattan', negated (an encoder's
    similarity_fn_name), or of lists of arrays [tokens, dim], by MaxSim."""
    if isinstance(queries, SparseVectors) or isinstance(corpus, SparseVectors):
        if not isinstance(queries, SparseVectors) or not isinstance(corpus, SparseVectors) or queries.shape[1] != corpus.shape[1]:
            raise ValueError("nearest: queries and corpus must both be SparseVectors of one width")
        parts = [tensor(part) for x in (queries, corpus) for part in (x.indptr, x.indices, x.data)]
        return nearest_sparse(*parts, queries.shape[1], count, similarity)
    if isinstance(corpus, (list, tuple)) and len(corpus) > 0 and getattr(corpus[0], "ndim", 1) == 2:
        if similarity not in ("dot", "maxsim"):
            raise ValueError(f"nearest: texts of several vectors are compared by 'maxsim', got {similarity!r}")
        queries = _as_list(queries)
        return nearest_multi_vector(*_joined(queries), *_joined(corpus), count) if queries else []
    return nearest_dense(_as_tensor(queries), _as_tensor(corpus), count, similarity)


class CrossEncoder:
    """A model that scores two texts in one sequence, with the arguments of sentence-transformers."""

    def __init__(self, model_name_or_path: PathLike, *, max_length: int | None = None, activation_fn: Function | None = None, device: Any = None, weights: str | None = "f32") -> None:
        _only("CrossEncoder", device=(device, "cpu"))
        self._classifier = TextClassifier.load(model_name_or_path, weights)
        self.activation_fn = activation_fn
        context = self.model.config.context
        if max_length is not None and not 0 < max_length <= context:
            raise ValueError(f"CrossEncoder: max_length must be in [1, {context}], the tokens that the model reads, got {max_length}")
        self.max_length = max_length or self._classifier.max_length

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
        if activation_fn is not None and apply_sigmoid is not None:
            raise ValueError("CrossEncoder: give activation_fn or apply_sigmoid, not both")
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


def _rows(vectors):
    """[n, dim]: bytes and f16 as f32, which sums of products do not leave."""
    import numpy as np

    x = np.atleast_2d(np.asarray(vectors))
    return x.astype(np.result_type(x, np.float32), copy=False)


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


def _as_list(texts):
    return [texts] if getattr(texts, "ndim", 0) == 2 else list(texts)


def _joined(texts):
    """Vectors of all texts, and where each ends."""
    import numpy as np

    return (tensor(np.ascontiguousarray(np.concatenate(texts), np.float32)),
            tensor(np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)))


def _as_tensor(vectors):
    import numpy as np

    return tensor(np.ascontiguousarray(vectors, np.float32))


def _max_sim(a, b):
    import numpy as np

    return np.array([[(x @ y.T).max(1).sum() for y in map(_rows, b)] for x in map(_rows, a)], np.float32)


_MULTI_VECTOR_SIMILARITIES = {
    "maxsim": _max_sim,
    "meanmaxsim": lambda a, b: _max_sim(a, b) / [[len(x)] for x in a],
}


def _bar(done, total):
    width = 40 * done // total
    print(f"\r[{'=' * width}{' ' * (40 - width)}] {done}/{total}", end="\n" if done == total else "", file=sys.stderr)
