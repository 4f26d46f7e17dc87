"""Language models, encoders and translation in Hugging Face layout."""

from __future__ import annotations

import os
from typing import Any

from ._core import (
    DecodeState, Encoder, EncoderConfig, Generator, ImageEncoder, ImageEncoderConfig, LanguageModel,
    LanguageModelConfig, Seq2Seq, Seq2SeqConfig, Translator, is_encoder_folder, is_image_folder, is_seq2seq_folder,
    language_model_preset, least_important, load_state, pool_kv_heads, prune, save_state,
)  # fmt: skip
from ._types import PathLike


class AutoModel:
    """Loads a folder as the class that its config.json names: LanguageModel, Seq2Seq, Encoder or ImageEncoder."""

    @staticmethod
    def from_pretrained(folder: PathLike, **options: Any) -> Any:
        """The model of a folder or of a .gguf file; options are those of its class's load()."""
        if os.path.isfile(folder) and not is_encoder_folder(folder):
            return LanguageModel.load(folder, **options)
        if is_seq2seq_folder(folder):
            return Seq2Seq.load(folder, **options)
        if is_image_folder(folder):
            return ImageEncoder.load(folder, **options)
        return (Encoder if is_encoder_folder(folder) else LanguageModel).load(folder, **options)


__all__ = [
    "AutoModel", "DecodeState", "Encoder", "EncoderConfig", "Generator", "ImageEncoder", "ImageEncoderConfig",
    "LanguageModel", "LanguageModelConfig", "Seq2Seq", "Seq2SeqConfig", "Translator", "is_encoder_folder",
    "is_image_folder", "is_seq2seq_folder", "language_model_preset", "least_important", "load_state", "pool_kv_heads",
    "prune", "save_state",
]  # fmt: skip
