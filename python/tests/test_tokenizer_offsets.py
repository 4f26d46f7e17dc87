"""Offsets of tokenizers trained here are those of PyPI tokenizers on any text."""

import random

import pytest

import multihead as mh

tokenizers = pytest.importorskip("tokenizers")

TEXT = "It was a truth; they'll see. A naïve café, 1234 times: the cat sat on the mat, don't you know? " * 20
PARTS = ["the", " cat", " ", "  ", "\n", "é", "e\u0301", "\u0323\u0301", "ﬁ", "½", "你好", "！", "مرحبا", "👨\u200d👩", "\x00", "\u00a0", "İ",
         "truth", "'ll", "12", "x" * 40, "[SEP]", "\u2581", "\ufdfa"]  # fmt: skip


def made(kind):
    if kind == "wordpiece":
        return mh.Tokenizer.train_wordpiece(TEXT, vocab_size=200)
    if kind == "unigram":
        return mh.Tokenizer.train_unigram(TEXT, vocab_size=120)
    return mh.Tokenizer.train_bpe(TEXT, vocab_size=300)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_random_text(kind):
    ours = made(kind)
    theirs = tokenizers.Tokenizer.from_str(ours.to_json())
    rng = random.Random(kind)
    for _ in range(300):
        text = "".join(rng.choice(PARTS) for _ in range(rng.randrange(30)))
        want, got = theirs.encode(text), ours.encoding(text, parse_special=True)
        assert (got.ids, got.offsets, got.type_ids) == (want.ids, want.offsets, want.type_ids), ascii(text)
        assert ours.encode(text, parse_special=True) == want.ids
        for (begin, end), token in zip(ours.encoding(text.encode()).offsets, got.tokens):
            text.encode()[begin:end].decode()  # whole characters


def test_pairs():
    ours = made("wordpiece")
    theirs = tokenizers.Tokenizer.from_str(ours.to_json())
    theirs.enable_truncation(9)
    want, got = theirs.encode("the cat sat", "on the café"), ours.encoding("the cat sat", "on the café", max_length=9)
    assert (got.ids, got.offsets, got.sequence_ids) == (want.ids, want.offsets, want.sequence_ids)
    assert len(got) == len(got.tokens) == 9
    with pytest.raises(TypeError):
        ours.encoding("a", b"b")
