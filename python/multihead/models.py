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
    least_important,
    load_state,
    pool_kv_heads,
    prune,
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
    "least_important",
    "load_state",
    "pool_kv_heads",
    "prune",
    "save_state",
]
