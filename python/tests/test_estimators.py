"""Estimators for scikit-learn: its own checks, pipelines, cross-validation, grid search, copies."""

import atexit
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn", minversion="1.6")
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import multihead as mh
from multihead.estimators import EmbeddingClassifier, FineTunedClassifier, TextEmbedder
from small_bert import make_bert

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the fixtures lie in a checkout")
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sat on a mat red sun sea green night water fire".split()
FAST = dict(epochs=4, lr=1e-2, batch=8)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return make_bert(tmp_path_factory.mktemp("estimators") / "bert", WORDS)


def texts_and_labels(count=60, classes=("low", "high", "odd")):
    rng = np.random.default_rng(3)
    y = rng.integers(0, len(classes), count)
    return [" ".join(rng.choice(WORDS[5 + 4 * k:9 + 4 * k], 5)) for k in y], np.asarray(classes)[y]


# --- scikit-learn's own suite ---------------------------------------------------------------------------------------
# Its checks give tables of numbers. _Numbers writes each row as words, so that they run; for an estimator of texts it has
# but the first, which the second test runs.


class _Numbers:
    """The same estimator on the rows of a table, each written as words by its largest columns."""

    def _words(self, X):
        X = sklearn.utils.validation.validate_data(self, X, reset=False) if hasattr(self, "n_features_in_") else sklearn.utils.check_array(X)
        bins = np.clip(np.floor(X[:, :6] * 2) + 7, 0, 13).astype(int)
        return [" ".join(WORDS[5 + b] for b in row) for row in bins]

    def __repr__(self, **_):  # names the tests, in each of pytest's processes alike: without the folder
        return type(self).__name__

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        tags.classifier_tags.poor_score = True  # words do not have the table's order
        return tags

    def fit(self, X, y=None):
        if y is None:
            return super().fit(["a"], None)
        X, y = sklearn.utils.validation.validate_data(self, X, y)
        return super().fit(self._words(X), y)

    def predict(self, X):
        sklearn.utils.validation.check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X):
        sklearn.utils.validation.check_is_fitted(self)
        return super().predict_proba(self._words(X))

    def decision_function(self, X):
        sklearn.utils.validation.check_is_fitted(self)
        return super().decision_function(self._words(X))


class EmbeddingOfNumbers(_Numbers, EmbeddingClassifier):
    def __init__(self, model=None, *, C=1.0):
        super().__init__(model, C=C)


_FOLDER = []


def _folder():
    if not _FOLDER:
        made = pathlib.Path(tempfile.mkdtemp(prefix="multihead-estimators-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        _FOLDER.append(make_bert(made / "bert", WORDS))
    return _FOLDER[0]


@parametrize_with_checks([EmbeddingOfNumbers(str(_folder()))] if DATA.exists() else [])
def test_scikit_learn_s_checks(estimator, check):
    check(estimator)


@parametrize_with_checks([EmbeddingClassifier("folder"), FineTunedClassifier("folder"), TextEmbedder("folder")])
def test_scikit_learn_s_checks_for_texts(estimator, check):
    check(estimator)


# --- what users do --------------------------------------------------------------------------------------------------


def test_an_embedding_classifier_is_a_pipeline_of_scikit_learn(bert):
    X, y = texts_and_labels()
    ours = EmbeddingClassifier(bert, C=3.0).fit(X, y)
    vectors = TextEmbedder(bert).transform(X).astype(np.float64)  # of f32 scikit-learn finds the minimum to some 1e-4
    theirs = LogisticRegression(C=3.0, tol=1e-10, max_iter=10_000).fit(vectors, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(vectors), atol=2e-5)
    assert (ours.predict(X) == theirs.predict(vectors)).all() and list(ours.classes_) == ["high", "low", "odd"]
    assert ours.score(X, y) > 0.9 and ours.coef_.shape == (3, 20) and ours.C_ == 3.0


def test_two_classes_have_one_logit(bert):
    X, y = texts_and_labels(classes=(True, False))
    ours = EmbeddingClassifier(bert, C=1.0).fit(X, y)
    vectors = TextEmbedder(bert).transform(X).astype(np.float64)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(vectors, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(vectors), atol=1e-4)
    np.testing.assert_allclose(ours.predict_proba(X).sum(1), 1)
    assert ours.predict(X).dtype == bool


def test_cross_validation_and_grid_search(bert):
    X, y = texts_and_labels()
    assert cross_val_score(EmbeddingClassifier(bert, C=10.0), np.asarray(X), y, cv=3).mean() > 0.7
    search = GridSearchCV(EmbeddingClassifier(bert), {"C": [1e-4, 10.0]}, cv=3).fit(X, y)
    assert search.best_params_ == {"C": 10.0}
    grid = GridSearchCV(make_pipeline(TextEmbedder(bert), LogisticRegression()), {"textembedder__pooling": ["mean", "cls"]}, cv=3)
    assert grid.fit(X, y).best_score_ > 0.6


@pytest.mark.parametrize("make", [lambda bert: EmbeddingClassifier(bert), lambda bert: FineTunedClassifier(bert, **FAST, random_state=3)])
def test_copies_answer_alike(bert, make):
    X, y = texts_and_labels()
    fitted = make(bert).fit(X, y)
    back = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(back.predict_proba(X), fitted.predict_proba(X))
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params() and not hasattr(fresh, "classes_")
    np.testing.assert_array_equal(fresh.fit(X, y).predict_proba(X), fitted.predict_proba(X))


def test_a_fine_tuned_classifier_is_a_folder_s(bert, tmp_path):
    X, y = texts_and_labels()
    tuned = FineTunedClassifier(bert, **FAST, validation_fraction=0.25, settings={"dropout": 0.0}).fit(X, y)
    assert tuned.score(X, y) > 0.7 and tuned.summary_["validation"]["texts"] == 15
    tuned.save(tmp_path / "out")
    ours = mh.embed.TextClassifier.load(tmp_path / "out")
    assert ours.labels == ["high", "low", "odd"]
    np.testing.assert_allclose(np.asarray(ours.scores(ours.logits(X))), tuned.predict_proba(X), atol=1e-6)
    with pytest.raises(FileExistsError):
        tuned.save(tmp_path / "out")
    numbers = FineTunedClassifier(bert, **FAST).fit(X, np.where(y == "odd", 10, 9))
    assert set(numbers.predict(X)) <= {9, 10}


def test_what_is_no_text_is_refused_by_name(bert):
    X, y = texts_and_labels()
    for bad, message in [("a text", "got a single one"), ([1.5, 2.5], "must hold texts"), ([], "minimum of 1")]:
        with pytest.raises(ValueError, match=message):
            EmbeddingClassifier(bert).fit(bad, y)
    with pytest.raises(ValueError, match="one class"):
        EmbeddingClassifier(bert).fit(X, ["a"] * len(X))
    with pytest.raises(ValueError, match="C must be positive"):
        EmbeddingClassifier(bert, C=0).fit(X, y)
    with pytest.raises(ValueError, match="validation_fraction"):
        FineTunedClassifier(bert, validation_fraction=1).fit(X, y)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        FineTunedClassifier(bert).predict(X)


def test_multihead_does_not_import_scikit_learn():
    code = "import sys, multihead, multihead.train, multihead.embed; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_another_model_in_the_folder_is_seen(bert, tmp_path):
    folder = make_bert(tmp_path / "bert", WORDS)
    embedder = TextEmbedder(folder)
    before = embedder.transform(["the cat"])
    assert np.array_equal(before, TextEmbedder(bert).transform(["the cat"]))
    weights = mh.load_safetensors(folder / "model.safetensors")
    mh.save_safetensors(folder / "model.safetensors", {name: np.asarray(value) * 0.5 for name, value in weights.items()})
    assert not np.array_equal(embedder.transform(["the cat"]), before)
