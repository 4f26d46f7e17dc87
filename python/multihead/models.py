"""Language models, encoders and translation in Hugging Face layout."""

from ._core import (
    DecodeState,
    Encoder,
    EncoderConfig,
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
    "Encoder",
    "EncoderConfig",
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
