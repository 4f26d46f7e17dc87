"""Tokenizers in Hugging Face's tokenizer.json format; text files; BLEU and chrF."""

from ._core import (
    Encoding,
    Tokenizer,
    bleu,
    bleu_signature,
    chrf,
    chrf_signature,
    read_pairs,
    read_text,
    split_corpus,
    token_labels,
    tokenize_13a,
)

__all__ = [
    "Encoding",
    "Tokenizer",
    "bleu",
    "bleu_signature",
    "chrf",
    "chrf_signature",
    "read_pairs",
    "read_text",
    "split_corpus",
    "token_labels",
    "tokenize_13a",
]
