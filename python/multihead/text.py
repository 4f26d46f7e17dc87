"""Tokenizers in Hugging Face's tokenizer.json format; text files; BLEU and chrF."""

from __future__ import annotations

from ._core import (
    Encoding, Tokenizer, bleu, bleu_signature, chrf, chrf_signature, read_pairs, read_text, split_corpus,
    token_labels, tokenize_13a,
)  # fmt: skip

from ._types import PathLike


class AutoTokenizer:
    """Loads the tokenizer of a model's folder, as AutoModel loads the model."""

    @staticmethod
    def from_pretrained(folder: PathLike) -> Tokenizer:
        """The Tokenizer of a folder, a tokenizer.json or a .gguf file. Nothing is downloaded."""
        return Tokenizer.load(folder)


__all__ = [
    "AutoTokenizer", "Encoding", "Tokenizer", "bleu", "bleu_signature", "chrf", "chrf_signature", "read_pairs",
    "read_text", "split_corpus", "token_labels", "tokenize_13a",
]  # fmt: skip
