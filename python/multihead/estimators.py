"""Estimators for scikit-learn, which this module needs and no other: texts in, labels or vectors out.

They work in Pipeline, cross_val_score and GridSearchCV; clone() and pickle work. X is a list, a NumPy array or a pandas
Series of str.
"""

from __future__ import annotations

import functools
import json
import pathlib
import tempfile
from typing import Any, Mapping

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from ._types import PathLike
from .embed import SentenceEncoder, TextClassifier
from .train import fit_linear_head, train_classifier

__all__ = ["EmbeddingClassifier", "FineTunedClassifier", "TextEmbedder"]


def __dir__():
    return __all__


def _texts(who, X):
    """X as a list of str; a column of a table is one, too."""
    if isinstance(X, str):
        raise ValueError(f"{who}: X must be a list of texts, got a single one")
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.shape[1] == 1:
        X = X[:, 0]
    texts = list(X)
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{who}: X must hold texts (str), got {type(text).__name__}")
    if not texts:
        raise ValueError(f"{who}: X holds no text; a minimum of 1 is required")
    return [str(text) for text in texts]


@functools.lru_cache(maxsize=2)
def _loaded(path, pooling, weights, files):
    return SentenceEncoder(path, pooling=pooling, weights=weights)


def _encoder(estimator):
    """The encoder, loaded again if a file of its folder is another one now."""
    path = pathlib.Path(estimator.model).absolute()
    stats = [(file, file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
    files = tuple((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in stats)
    return _loaded(str(path), estimator.pooling, estimator.weights, files)


def _vectors(estimator, texts):
    return _encoder(estimator).encode(texts, prompt=estimator.prompt, batch_size=estimator.batch_size)


class _ReadsTexts(BaseEstimator):
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        tags.no_validation = True
        return tags


class _Classifies(ClassifierMixin, _ReadsTexts):
    classes_: np.ndarray[Any, Any]

    def _read(self, X, y):
        """Texts and the places of their labels in classes_."""
        who = type(self).__name__
        texts = _texts(who, X)
        if y is None:
            raise ValueError(f"{who}: requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        check_consistent_length(texts, y)
        check_classification_targets(y)
        classes, places = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{who}: the labels hold one class, {classes[0]!r}; a classifier needs two")
        self.classes_ = classes
        return texts, places

    def _logits(self, texts) -> np.ndarray[Any, Any]:
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """The logits [n, classes]; of two classes those of the second over the first, [n]."""
        check_is_fitted(self, "classes_")
        logits = self._logits(_texts(type(self).__name__, X))
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """[n, classes], in the order of classes_."""
        check_is_fitted(self, "classes_")
        logits = np.asarray(self._logits(_texts(type(self).__name__, X)), dtype=np.float64)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The most probable class of each text."""
        best = self.predict_proba(X).argmax(axis=1)  # which is refused first where there is nothing fitted
        return self.classes_[best]


class TextEmbedder(TransformerMixin, _ReadsTexts):
    """Vectors of texts, [n, dim]: SentenceEncoder(model) as a step of a pipeline. It learns nothing.

    model     a folder of sentence-transformers or of a model
    pooling, weights, prompt, batch_size   as SentenceEncoder and its encode() take them
    """

    def __init__(self, model: PathLike, *, pooling: str | None = None, weights: str | None = None, prompt: str | None = None, batch_size: int = 32) -> None:
        self.model = model
        self.pooling = pooling
        self.weights = weights
        self.prompt = prompt
        self.batch_size = batch_size

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def fit(self, X: Any, y: Any = None) -> TextEmbedder:
        _texts("TextEmbedder", X)
        return self

    def transform(self, X: Any) -> np.ndarray[Any, Any]:
        vectors: np.ndarray[Any, Any] = _vectors(self, _texts("TextEmbedder", X))
        return vectors

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray[Any, Any]:
        dim = _encoder(self).get_sentence_embedding_dimension()
        return np.asarray([f"textembedder{i}" for i in range(dim)], dtype=object)


class EmbeddingClassifier(_Classifies):
    """Logistic regression on the vectors of a text encoder, which stays as it is: the best there is for few texts.

    model     a folder of sentence-transformers or of a model
    C         as LogisticRegression's; None: the best of .01, .1, 1, 10, 100 and 1000 in five-fold cross-validation
    pooling, weights, prompt, batch_size   as SentenceEncoder and its encode() take them
    random_state   of the folds

    After fit(): classes_, coef_ and intercept_ (as LogisticRegression's), C_, n_iter_.
    """

    def __init__(self, model: PathLike, *, C: float | None = None, class_weight: str | None = None, pooling: str | None = None, weights: str | None = None,
                 prompt: str | None = None, batch_size: int = 32, random_state: int | None = None) -> None:
        self.model = model
        self.C = C
        self.class_weight = class_weight
        self.pooling = pooling
        self.weights = weights
        self.prompt = prompt
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> EmbeddingClassifier:
        if self.C is not None and not self.C > 0:
            raise ValueError(f"EmbeddingClassifier: C must be positive or None, got {self.C!r}")
        if self.class_weight not in (None, "balanced"):
            raise ValueError(f"EmbeddingClassifier: class_weight must be None or 'balanced', got {self.class_weight!r}")
        texts, places = self._read(X, y)
        head = fit_linear_head(_vectors(self, texts), places.astype(np.int64), len(self.classes_), c=self.C or 0.0, seed=self.random_state or 0,
                               balanced=self.class_weight == "balanced")  # fmt: skip
        weight, bias = np.array(head["weight"]), np.array(head["bias"])
        if len(self.classes_) == 2:  # minus and plus half of one logit
            weight, bias = 2 * weight[1:], 2 * bias[1:]
        self.coef_, self.intercept_, self.C_, self.n_iter_ = weight, bias, head["c"], head["steps"]
        return self

    def _logits(self, texts):
        logits = _vectors(self, texts) @ self.coef_.T + self.intercept_
        return np.concatenate([-logits / 2, logits / 2], axis=1) if len(self.classes_) == 2 else logits


class FineTunedClassifier(_Classifies):
    """An encoder that train_classifier() tunes with a new head, all weights or as `settings` say.

    model     the encoder's folder that every fit() starts from
    epochs, lr, batch, max_length, patience   as train_classifier() takes them; None: by the data and the model
    validation_fraction   of the texts, evenly spread, which choose the best checkpoint and act for patience; 0: none
    random_state   the seed of head, order and dropout
    settings  others of train_classifier(), by name: {"lora_rank": 8}

    After fit(): classes_, summary_, and save(folder). A pickle holds the tuned model.
    """

    def __init__(self, model: PathLike, *, epochs: float | None = None, lr: float | None = None, batch: int | None = None, max_length: int | None = None,
                 validation_fraction: float = 0.0, patience: int | None = None, random_state: int | None = None, settings: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.epochs = epochs
        self.lr = lr
        self.batch = batch
        self.max_length = max_length
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: Any) -> FineTunedClassifier:
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"FineTunedClassifier: validation_fraction must be in [0, 1), got {self.validation_fraction!r}")
        texts, places = self._read(X, y)
        names = self._names()
        rows = [json.dumps({"text": text, "label": names[place]}) + "\n" for text, place in zip(texts, places)]
        given = {"epochs": self.epochs, "lr": self.lr, "batch": self.batch, "max_length": self.max_length, "patience": self.patience,
                 "seed": self.random_state, **(self.settings or {})}
        with tempfile.TemporaryDirectory(prefix="multihead-") as name:
            folder = pathlib.Path(name)
            held = set(self._held(len(rows)))
            (folder / "train.jsonl").write_text("".join(row for i, row in enumerate(rows) if i not in held), encoding="utf-8")
            (folder / "valid.jsonl").write_text("".join(row for i, row in enumerate(rows) if i in held), encoding="utf-8")
            self.summary_ = train_classifier(folder / "train.jsonl", folder / "out", init=self.model, valid=folder / "valid.jsonl" if held else "",
                                             **{key: value for key, value in given.items() if value is not None})
            self.files_ = {str(path.relative_to(folder / "out")): path.read_bytes() for path in self._model_files(folder / "out")}
            self._tuned = TextClassifier.load(folder / "out")
        self._order = [self._tuned.labels.index(name) for name in names]
        return self

    def _names(self):
        """The classes as labels in a file: by name if they are names, by number otherwise."""
        names = [str(label) for label in self.classes_]
        are_names = all(isinstance(label, str) and label == label.strip() != "" and label[0] != "[" for label in self.classes_)
        return names if are_names and any(not name.isdigit() for name in names) else [str(i) for i in range(len(names))]

    def _held(self, count):
        wanted = round(self.validation_fraction * count)
        return [i * count // wanted for i in range(wanted)]

    @staticmethod
    def _model_files(folder):
        """The model without its checkpoints and records."""
        for path in sorted(folder.rglob("*")):
            own = path.relative_to(folder).parts[0]
            if path.is_file() and not own.startswith(("checkpoint-", "metrics.", ".")) and own not in ("train_config.json", "summary.json"):
                yield path

    def save(self, folder: PathLike) -> None:
        """Writes the tuned model, a new folder that TextClassifier.load and `multihead classify` read."""
        check_is_fitted(self, "files_")
        for name, content in self.files_.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)

    def _logits(self, texts):
        if self._tuned is None:
            with tempfile.TemporaryDirectory(prefix="multihead-") as name:
                self.save(name)
                self._tuned = TextClassifier.load(name)
        return np.asarray(self._tuned.logits(texts))[:, self._order]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_tuned": None} if "_tuned" in state else state
