"""Language models and translation in Hugging Face layout."""

from ._core import (
    DecodeState,
    Generator,
    LanguageModel,
    LanguageModelConfig,
    Seq2Seq,
    Seq2SeqConfig,
    Translator,
    language_model_preset,
    load_state,
    save_state,
)

__all__ = [
    "DecodeState",
    "Generator",
    "LanguageModel",
    "LanguageModelConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Translator",
    "language_model_preset",
    "load_state",
    "save_state",
]
