"""Complete training runs, from a text file to tokenizer, model and metrics; evaluation; model checks."""

from __future__ import annotations

import datetime
import sys
import time
from typing import TYPE_CHECKING, Any, Callable

from . import _core, distributed, nn
from ._core import check_encoder, check_language_model, check_translator, evaluate, fit_linear_head
from ._types import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._settings import (
        ClassifierSettings,
        EmbedderSettings,
        ImageClassifierSettings,
        LanguageModelSettings,
        MaskedLmSettings,
        RerankerSettings,
        Seq2SeqSettings,
        TaggerSettings,
    )

Callback = Callable[[str, "dict[str, Any]"], Any]


class _Line:
    """The part of tqdm's bar that is used here: a line with rate and time left, rewritten on a terminal."""

    def __init__(self, total: int, initial: int, unit: str):
        self.n = self._first = initial
        self._total, self._unit = total, unit
        self._began = self._told = time.monotonic()
        self._loss, self._width = "", 0
        self._pause = 0.1 if sys.stderr.isatty() else 10

    def set_postfix(self, loss: str) -> None:
        self._loss = f", loss {loss}"

    def update(self, steps: int) -> None:
        self.n += steps
        now = time.monotonic()
        rate = (self.n - self._first) / max(now - self._began, 1e-9)
        if now - self._told >= self._pause or self.n == self._total:
            self._told = now
            left = str(datetime.timedelta(seconds=round((self._total - self.n) / max(rate, 1e-9))))
            self._put(f"step {self.n}/{self._total}{self._loss}, {rate:.3g} {self._unit}s/s, {left} left")

    def write(self, text: str) -> None:
        self._put(text)
        self.close()

    def close(self) -> None:
        if self._width:
            print(file=sys.stderr, flush=True)
        self._width = 0

    def _put(self, text: str) -> None:
        if self._pause < 1:
            print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = len(text)
        else:
            print(text, file=sys.stderr, flush=True)


class _Bar:
    """A progress bar: tqdm's, if it is installed."""

    def __init__(self):
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = _Line
        self._make, self._bar = tqdm, None

    def __call__(self, event, fields):
        if event == "start":
            self._bar = self._make(total=fields["steps"], initial=fields["step"], unit="step")
        elif self._bar is not None and event == "step":
            self._bar.set_postfix(loss=f"{fields['loss']:.3f}")
            self._bar.update(fields["step"] - self._bar.n)
        elif self._bar is not None and event == "evaluation":
            self._bar.write(f"step {fields['step']}: validation loss {fields['loss']:.4f}")

    def close(self):
        if self._bar is not None:
            self._bar.close()


def _somebody_watches() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def train_language_model(
    data: PathLike,
    folder: PathLike,
    *,
    preset: str | None = None,
    valid: PathLike = "",
    tokenizer: PathLike = "",
    init: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool | None = None,
    **settings: Unpack[LanguageModelSettings],
) -> dict[str, Any]:
    """Trains a language model on a text or on conversations; returns the summary as a dict.

    data        a UTF-8 text file; or, of a name ending in .jsonl, conversations: {"messages": [...]} on every line, or
                {"prompt": ..., "completion": ...}, of which the answers are learned (docs/fine-tuning.md)
    valid       validation data of the same kind, in place of the settings' validation_share
    folder      output: model, tokenizer, checkpoints, metrics, summary.json
    preset      "tiny" (the default), "small" or "tutorial"; `settings` override it (see language_model_settings(preset)); not with init
    tokenizer   a tokenizer.json or its folder; "char" or "bpe": train one of this type; "": the preset's type
    init        a model folder (or GGUF file) to fine-tune: its configuration, weights and tokenizer in the preset's place
    attention   among the settings: a subclass of multihead.nn.Attention, in place of multi-head attention
    callback    called as callback(event, fields) for "start", "step", "evaluation", "warning"
    progress    a bar with loss, rate and time left; None: on a terminal and in a notebook
    Ctrl-C saves a checkpoint, from which resume=True continues, and raises KeyboardInterrupt.
    Under mpirun or srun all processes train together (multihead.distributed); the first one calls back and writes.
    """
    return _run("lm", data, folder, settings, preset, valid, tokenizer, init, resume, overwrite, callback, progress)


def train_seq2seq(
    data: PathLike,
    folder: PathLike,
    *,
    preset: str | None = None,
    valid: PathLike = "",
    tokenizer: PathLike = "",
    init: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool | None = None,
    **settings: Unpack[Seq2SeqSettings],
) -> dict[str, Any]:
    """Trains a translator on sentence pairs; returns the summary as a dict. Translator.load(folder) loads the model.

    data, valid  tables of two columns: source TAB target on every line, CSV, or {"source": ..., "target": ...} (.jsonl)
    folder       output: model, tokenizers, checkpoints, metrics, summary.json
    preset       "tiny" (the default), "small" or "base"; `settings` override it (see seq2seq_settings(preset)); not with init
    tokenizer    a tokenizer.json, its folder, or a model folder with two; "char", "bpe" and "" as there
    init         a translator's folder to fine-tune
    callback, progress, Ctrl-C and resume=True as in train_language_model().
    """
    return _run("seq2seq", data, folder, settings, preset, valid, tokenizer, init, resume, overwrite, callback, progress)


def train_classifier(
    data: PathLike,
    folder: PathLike,
    *,
    init: PathLike,
    valid: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool | None = None,
    **settings: Unpack[ClassifierSettings],
) -> dict[str, Any]:
    """Fine-tunes an encoder to classify texts; returns the summary as a dict. TextClassifier.load(folder) loads it.

    data, valid  text TAB label on every line, or text TAB second text TAB label; CSV; or, of a name ending in .jsonl,
                 objects {"text": ..., "label": ...} that may have a "text_pair"
    folder       output: model, tokenizer, checkpoints, metrics, summary.json
    init         the encoder's folder that training starts from; a head for other labels is made anew
    settings     as classifier_settings() lists them: steps, batch, lr ...; regression=True (numbers), multi_label=True
                 (several labels, as a list or between commas), head_only=True (logistic regression on the folder's own
                 vectors, to convergence; few texts, minutes)
    callback, progress, Ctrl-C and resume=True as in train_language_model(); evaluations have accuracy and macro_f1.
    """
    return _run("classifier", data, folder, settings, "", valid, "", init, resume, overwrite, callback, progress)


def train_embedder(
    data: PathLike,
    folder: PathLike,
    *,
    init: PathLike,
    valid: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool | None = None,
    **settings: Unpack[EmbedderSettings],
) -> dict[str, Any]:
    """Fine-tunes an encoder to embed texts; returns the summary as a dict. SentenceEncoder(folder) loads it.

    data, valid  query TAB document on every line, CSV, or {"query": ..., "document": ...} (.jsonl): the other documents of a batch are wrong answers;
                 a third column is a "negative" document, or a "score" of the pair, whose order is learned
    init         a folder of sentence-transformers, or an encoder's, that training starts from
    settings     as embedder_settings() lists them: batch, temperature, symmetric, chunk (texts whose activations are
                 held at a time: large batches in little memory), matryoshka="256,128" (vectors that can be cut) ...
    The rest as in train_classifier(); evaluations have recall_at_1 and recall_at_10.
    """
    return _run("embedder", data, folder, settings, "", valid, "", init, resume, overwrite, callback, progress)


def train_tagger(
    data: PathLike,
    folder: PathLike,
    *,
    init: PathLike,
    valid: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool | None = None,
    **settings: Unpack[TaggerSettings],
) -> dict[str, Any]:
    """Fine-tunes an encoder to find entities in texts; returns the summary as a dict. TokenClassifier.load(folder) loads it.

    data, valid  a word and its tag (B-X, I-X, O) on every line and blank lines between texts; or {"text": ..., "entities":
                 [{"start", "end", "label"}]} on every line, whose places count characters
    init         the encoder's folder that training starts from; a head for other labels is made anew
    settings     as tagger_settings() lists them
    The rest as in train_classifier(); evaluations have precision, recall and f1 of entities.
    """
    return _run("tagger", data, folder, settings, "", valid, "", init, resume, overwrite, callback, progress)


def train_reranker(
    data: PathLike,
    folder: PathLike,
    *,
    init: PathLike,
    valid: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool | None = None,
    **settings: Unpack[RerankerSettings],
) -> dict[str, Any]:
    """Fine-tunes an encoder to say how well a document answers a query; returns the summary as a dict. TextClassifier.load(folder)
    loads it.

    data, valid  query TAB document TAB score on every line, or TAB a wrong document, CSV, or {"query": ..., "document": ...,
                 "score" or "negative": ...} (.jsonl); with negatives=4 query and document alone
    settings     as reranker_settings() lists them: ranking ("pairs" or "lists"), negatives, miner (an embedder's folder)
    The rest as in train_classifier(); evaluations have mrr and ndcg_at_10.
    """
    return _run("reranker", data, folder, settings, "", valid, "", init, resume, overwrite, callback, progress)


def train_image_classifier(
    data: PathLike,
    folder: PathLike,
    *,
    preset: str | None = None,
    init: PathLike = "",
    valid: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool = False,
    **settings: Unpack[ImageClassifierSettings],
) -> dict[str, Any]:
    """Trains a vision Transformer to classify images; returns the summary as a dict. ImageClassifier.load(folder) loads it.

    data, valid  folders with a folder of PNG or PPM files for each label
    preset       of a new model: "tiny" (the default), "small" or "base"; `settings` override it (see image_classifier_settings(preset)); not with init
    init         a ViT's folder that training starts from; images are resized to its size, and a head for other labels is made anew
    The rest as in train_classifier().
    """
    return _run("images", data, folder, settings, preset, valid, "", init, resume, overwrite, callback, progress)


def train_masked_lm(
    data: PathLike,
    folder: PathLike,
    *,
    preset: str | None = None,
    tokenizer: PathLike = "",
    init: PathLike = "",
    resume: bool = False,
    overwrite: bool = False,
    callback: Callback | None = None,
    progress: bool | None = None,
    **settings: Unpack[MaskedLmSettings],
) -> dict[str, Any]:
    """Trains an encoder by masked language modelling; returns the summary as a dict. Encoder.load(folder) loads it.

    preset      of a new encoder: "tiny" (the default), "small" or "base"; `settings` override it (see masked_lm_settings(preset)); not with init
    init        an encoder's folder to go on with
    tokenizer   a tokenizer.json or its folder, which has [MASK] or <mask>; "": init's, or a new one
    The rest as in train_language_model(); evaluations have accuracy.
    """
    return _run("mlm", data, folder, settings, preset, "", tokenizer, init, resume, overwrite, callback, progress)


def language_model_settings(preset: str) -> dict[str, Any]:
    """All settings of train_language_model() with the values of a preset ('tiny', 'small', 'tutorial')."""
    return _core.settings("lm", preset)


def seq2seq_settings(preset: str) -> dict[str, Any]:
    """All settings of train_seq2seq() with the values of a preset ('tiny', 'small', 'base')."""
    return _core.settings("seq2seq", preset)


def masked_lm_settings(preset: str) -> dict[str, Any]:
    """All settings of train_masked_lm() with the values of a preset ('tiny', 'small', 'base')."""
    return _core.settings("mlm", preset)


def classifier_settings() -> dict[str, Any]:
    """All settings of train_classifier(); dropout is the encoder's."""
    return _core.settings("classifier", "")


def tagger_settings() -> dict[str, Any]:
    """All settings of train_tagger(); dropout is the encoder's."""
    return _core.settings("tagger", "")


def reranker_settings() -> dict[str, Any]:
    """All settings of train_reranker(); dropout is the encoder's."""
    return _core.settings("reranker", "")


def image_classifier_settings(preset: str) -> dict[str, Any]:
    """All settings of train_image_classifier() with the values of a preset ('tiny', 'small', 'base')."""
    return _core.settings("images", preset)


def embedder_settings() -> dict[str, Any]:
    """All settings of train_embedder(); dropout is the encoder's."""
    return _core.settings("embedder", "")


def _run(kind, data, folder, settings, preset, valid, tokenizer, init, resume, overwrite, callback, progress):
    if "attention" in settings:
        settings = {**settings, "attention": nn._name_of(settings["attention"])}
    if tokenizer in ("char", "bpe"):  # the type of a new one
        settings, tokenizer = {**settings, "tokenizer": tokenizer}, ""
    if preset is None:
        preset = "tiny"
    elif preset and init:
        raise ValueError(f"train {kind}: init brings its own model and recipe; leave preset={preset!r} out")
    leads = distributed.group().rank == 0
    bar = _Bar() if leads and (_somebody_watches() if progress is None else progress) else None

    def tell(event, fields):
        if bar is not None:
            bar(event, fields)
        if callback is not None:
            callback(event, fields)

    try:
        tells = tell if bar is not None or callback is not None else None
        return _core.train(kind, data, folder, settings, preset, valid, tokenizer, init, resume, overwrite, tells)
    finally:
        if bar is not None:
            bar.close()


__all__ = [
    "check_encoder", "check_language_model", "check_translator", "classifier_settings", "embedder_settings",
    "evaluate", "fit_linear_head", "image_classifier_settings", "language_model_settings", "masked_lm_settings", "reranker_settings", "seq2seq_settings",
    "tagger_settings", "train_classifier", "train_embedder", "train_image_classifier", "train_language_model", "train_masked_lm", "train_reranker",
    "train_seq2seq", "train_tagger",
]  # fmt: skip
