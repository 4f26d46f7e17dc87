"""Language models and translation in Hugging Face layout."""

from ._core import (
    LanguageModel,
    LanguageModelConfig,
    Seq2Seq,
    Seq2SeqConfig,
    Translator,
    language_model_preset,
)

__all__ = [
    "LanguageModel",
    "LanguageModelConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Translator",
    "language_model_preset",
]
