"""Tokenizers, kept as Hugging Face tokenizer.json."""

from ._core import Tokenizer

__all__ = ["Tokenizer"]
