"""Truncation, padding and the splits of GPT-4o and DeepSeek beside Hugging Face's tokenizers."""

import random

import pytest

import multihead as mh

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402

GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            r'''[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*'''
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
PARTS = ["the ", "Cat", "camelCase", "HTTPServer", "it's ", "I'LL ", "don\u017ft'\u017f", " 12345", "1a", "3.14", "東京", "カタカナ", "ひらAB", "ǅx",
         "e\u0301", "\u0301", "É", "ß", "Ω", "ª", "ʰ", "ابج", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "/", "//\n", "!=", "$x", "€", "_y",
         "\x00", "\x85", "\u200d", "😀", "٣٤", "Ⅷ", "½", ".", "…", "'", "-A", "नमस्ते", "한국어", "\ue000", "a\u0300B"]


def trained(patterns, texts):
    tok = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    tok.pre_tokenizer = pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok


def random_texts(count, seed):
    r = random.Random(seed)
    return ["".join(r.choices(PARTS, k=r.randint(0, 12))) for _ in range(count)]


@pytest.mark.parametrize("patterns", [[GPT4O], DEEPSEEK], ids=["gpt4o", "deepseek"])
def test_ids_and_offsets_of_the_published_splits(patterns):
    theirs = trained(patterns, random_texts(300, 1))
    ours = mh.text.Tokenizer.from_json(theirs.to_str())
    for text in PARTS + random_texts(1500, 2):
        want, got = theirs.encode(text), ours.encoding(text)
        assert (got.ids, got.offsets) == (want.ids, want.offsets), repr(text)


@pytest.mark.parametrize("pattern", [GPT4O, DEEPSEEK[2]], ids=["gpt4o", "deepseek"])
def test_every_character_is_cut_as_there(pattern):
    theirs = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))  # every piece is unknown: its offsets are seen
    theirs.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    ours = mh.text.Tokenizer.from_json(theirs.to_str())
    other = []
    for c in range(1, 0x20000, 3):
        if not 0xD800 <= c < 0xE000:
            text = f"a{chr(c)}A{chr(c)}-{chr(c)} {chr(c)}"
            if ours.encoding(text).offsets != theirs.encode(text).offsets:
                other.append(hex(c))
    assert not other, (len(other), other[:40])


def cut_tokenizer(truncation, padding, pair):
    tok = Tokenizer(models.WordPiece({w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh", "##a", "##b"])},
                                     unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    if truncation is not None:
        tok.enable_truncation(**truncation)
    if padding is not None:
        tok.enable_padding(pad_token="[PAD]", pad_id=0, **padding)
    return tok


@pytest.mark.parametrize("truncation", [None, dict(max_length=6), dict(max_length=7, direction="left", stride=1),
                                        dict(max_length=8, strategy="only_first"), dict(max_length=9, strategy="only_second")])
@pytest.mark.parametrize("padding", [None, dict(length=9), dict(direction="left", pad_to_multiple_of=5, pad_type_id=1), dict()])
def test_lengths_are_those_of_tokenizers(truncation, padding):
    theirs = cut_tokenizer(truncation, padding, True)
    ours = mh.text.Tokenizer.from_json(theirs.to_str())
    plain = mh.text.Tokenizer.from_json(cut_tokenizer(None, None, True).to_str())
    r = random.Random(5)

    def view(e):
        return e.ids, e.offsets, e.type_ids, list(e.attention_mask), e.tokens, list(e.sequence_ids)

    for _ in range(60):
        a, b = (" ".join(r.choices(["a", "bb", "ab", "c", "x", "é"], k=r.randint(0, 7))) for _ in range(2))
        for texts in ((a,), (a, b)):
            assert ours.encoding(*texts).ids == plain.encoding(*texts).ids  # not unless asked for
            try:
                want = theirs.encode(*texts)
            except Exception:
                with pytest.raises(ValueError):
                    ours.encoding(*texts, as_file=True)
                continue
            got = ours.encoding(*texts, as_file=True)
            assert view(got) == (want.ids, want.offsets, want.type_ids, want.attention_mask, want.tokens, list(want.sequence_ids))
    if padding is not None and truncation is None:
        texts = ["a b", "c", "a b c d e"]
        got = ours.pad([ours.encoding(text) for text in texts])
        assert [view(e) for e in got] == [(e.ids, e.offsets, e.type_ids, e.attention_mask, e.tokens, list(e.sequence_ids))
                                          for e in theirs.encode_batch(texts)]
