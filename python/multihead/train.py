"""A whole language-model run: a text file becomes a tokenizer, a trained model and the record of how it went."""

from . import _core
from ._core import language_model_settings


class _Bar:
    """Progress by tqdm if it is installed; nothing otherwise."""

    def __init__(self):
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = None
        self._tqdm, self._bar = tqdm, None

    def __call__(self, event, fields):
        if self._tqdm is None:
            return
        if event == "start":
            self._bar = self._tqdm(total=fields["steps"], initial=fields["step"], unit="step")
        elif self._bar is not None and event == "step":
            self._bar.update(fields["step"] - self._bar.n)
            self._bar.set_postfix(loss=f"{fields['loss']:.3f}")
        elif self._bar is not None and event == "evaluation":
            self._bar.write(f"step {fields['step']}: validation loss {fields['loss']:.4f}")

    def close(self):
        if self._bar is not None:
            self._bar.close()


def train_language_model(
    data, folder, *, preset="tiny", tokenizer="", resume=False, overwrite=False, callback=None, progress=False, **settings
):
    """Trains a language model on a text file; returns the summary as a dict.

    data        a UTF-8 text file
    folder      what is made: model, tokenizer, checkpoints, metrics, summary.json
    preset      "tiny", "small" or "tutorial"; `settings` override it (see language_model_settings(preset))
    tokenizer   a tokenizer.json or its folder; "": train one
    callback    called as callback(event, fields) for "start", "step", "evaluation", "warning"
    progress    show a tqdm bar if tqdm is installed
    Ctrl-C saves a checkpoint, from which resume=True goes on, and raises KeyboardInterrupt.
    """
    import os

    bar = _Bar() if progress else None

    def tell(event, fields):
        if bar is not None:
            bar(event, fields)
        if callback is not None:
            callback(event, fields)

    try:
        return _core.train_language_model(
            os.fspath(data),
            os.fspath(folder),
            settings,
            preset,
            os.fspath(tokenizer),
            resume,
            overwrite,
            tell if bar is not None or callback is not None else None,
        )
    finally:
        if bar is not None:
            bar.close()


__all__ = ["language_model_settings", "train_language_model"]
