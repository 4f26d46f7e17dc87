#!/usr/bin/env python3
"""Goldens for offsets and for the steps of tokenizer.json: small tokenizers with what Hugging Face `tokenizers` makes
of texts.

  python3 tools/goldens/tokenizer_offsets.py multihead/text/testdata/offsets.json

Needs PyPI tokenizers (made with 0.23). The corpus is that of text_tokenizers.py.
"""

import json
import sys

from text_tokenizers import CORPUS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, trainers
from tokenizers import normalizers as norm
from tokenizers import pre_tokenizers as pre
from tokenizers import processors as post

CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TEXTS = [
    "The cat sat.", "  the  cat\t sat \n", "e\u0301e\u0323\u0301 \u0301x a\u0315\u0300 \u0344 \u1e9b\u0323", "\ufb01\u2126 \u00bd \ufdfa",
    "\uac00\u11a8 \u1100\u1161\u11a8 \u304b\u3099", "\u0130I \u1e9e \U0001f468\u200d\U0001f469\U0001f600", "\u4f60\u597d, \u4e16\u754c\uff01 3.14 12",
    "the <mask> cat <mask>", "cat zz azz zz! Tok en \u00c9te\u0301 E\u0301te\u0301", "\u0000\u200b\ufeff\u00ad the\u00a0cat\u3000", "don't a_b--c!?",
    "\u2581the \u2581\u2581 <0x41>", "", " ", "\u0645\u0631\u062d\u0628\u0627 \u0915\u093f\u0928", "x" * 40]


def train(model, trainer, normalizer, pre_tokenizer, decoder, **options):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer(show_progress=False, **options))
    return tokenizer


def words(normalizer, pre_tokenizer):
    tokenizer = train(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, normalizer, pre_tokenizer, decoders.WordPiece(),
                      vocab_size=160, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = post.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def of_bytes(normalizer, pre_tokenizer, processor=None, **model):
    suffix = {"end_of_word_suffix": model["end_of_word_suffix"]} if model else {}
    tokenizer = train(models.BPE(**model), trainers.BpeTrainer, normalizer, pre_tokenizer, decoders.ByteLevel(), vocab_size=320,
                      initial_alphabet=pre.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"], **suffix)
    if processor:
        tokenizer.post_processor = processor
    return tokenizer


def of_characters(normalizer, pre_tokenizer, decoder=None, bytes_=False, **model):
    suffix = {"end_of_word_suffix": model["end_of_word_suffix"]} if "end_of_word_suffix" in model else {}
    tokenizer = train(models.BPE(unk_token="<unk>", byte_fallback=bytes_, **model), trainers.BpeTrainer, normalizer, pre_tokenizer,
                      decoder, vocab_size=400 if bytes_ else 120, special_tokens=["<unk>"] + BYTES * bytes_, **suffix)
    file = json.loads(tokenizer.to_str())
    file["added_tokens"] = file["added_tokens"][:1]
    return Tokenizer.from_str(json.dumps(file))


def unigram(normalizer, pre_tokenizer, bytes_=False):
    tokenizer = train(models.Unigram(), trainers.UnigramTrainer, normalizer, pre_tokenizer, decoders.Metaspace(), vocab_size=120,
                      special_tokens=["<unk>"], unk_token="<unk>")
    file = json.loads(tokenizer.to_str())
    file["model"]["vocab"] = [[token, round(score, 6)] for token, score in file["model"]["vocab"]]
    if bytes_:
        file["model"]["byte_fallback"] = True
        file["model"]["vocab"] += [[token, -20.0] for token in BYTES]
    return Tokenizer.from_str(json.dumps(file))


def cases():
    roberta = post.RobertaProcessing(("</s>", 1), ("<s>", 0))
    yield "BERT", words(norm.BertNormalizer(), pre.BertPreTokenizer())
    yield "NFD and words", words(norm.Sequence([norm.NFD(), norm.Lowercase(), norm.StripAccents()]), pre.Whitespace())
    yield "punctuation to the left", words(
        norm.NFKC(), pre.Sequence([pre.WhitespaceSplit(), pre.Punctuation("merged_with_previous"), pre.Digits(True)]))
    yield "bytes, trimmed", of_bytes(norm.NFKC(), pre.ByteLevel(add_prefix_space=True), roberta)
    yield "bytes, not trimmed", of_bytes(norm.NFC(), pre.ByteLevel(add_prefix_space=True), post.ByteLevel(trim_offsets=False))
    yield "CLIP", of_bytes(
        norm.Sequence([norm.NFC(), norm.Replace(Regex(r"\s+"), " "), norm.Lowercase()]),
        pre.Sequence([pre.Split(Regex(CLIP), "removed", invert=True), pre.ByteLevel(add_prefix_space=False)]),
        post.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=False), end_of_word_suffix="</w>", unk_token="<s>")
    yield "Llama 2", of_characters(
        norm.Sequence([norm.Prepend("\u2581"), norm.Replace(" ", "\u2581")]), None,
        decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        True, fuse_unk=True)
    yield "first mark, stripped", of_characters(norm.Strip(), pre.Metaspace(prepend_scheme="first"), decoders.Metaspace(), fuse_unk=True)
    yield "words that end", of_characters(
        norm.Lowercase(), pre.Sequence([pre.Whitespace(), pre.Digits(True)]), decoders.BPEDecoder(), end_of_word_suffix="</w>")
    yield "behaviours", of_characters(None, pre.Sequence(
        [pre.Split("e", "merged_with_previous"), pre.Split(Regex(r"\s+"), "merged_with_next"), pre.CharDelimiterSplit("a"),
         pre.Punctuation("contiguous")]))
    yield "unigram", unigram(norm.Sequence([norm.NFKD(), norm.StripAccents(), norm.Replace(Regex(" {2,}"), " ")]),
                             pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()]))
    yield "unigram with bytes", unigram(norm.NFKC(), pre.Metaspace(), True)


def main():
    result = {"texts": TEXTS, "cases": []}
    for name, tokenizer in cases():
        tokenizer.add_tokens([
            AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("zz", single_word=True, normalized=False),
            AddedToken("Tok en", rstrip=True, normalized=False), AddedToken("\u00c9t\u00e9", normalized=True, lstrip=True)])
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        encodings = [tokenizer.encode(text) for text in TEXTS]
        case = {"name": name, "tokenizer": json.loads(tokenizer.to_str()), "ids": [e.ids for e in encodings],
                "offsets": [e.offsets for e in encodings]}
        if tokenizer.post_processor:
            tokenizer.enable_truncation(12)
            pairs = [tokenizer.encode(a, b) for a, b in zip(TEXTS, TEXTS[1:])]
            case["pairs"] = [{"ids": e.ids, "offsets": e.offsets, "sequences": [-1 if s is None else s for s in e.sequence_ids]}
                             for e in pairs]
            if name == "bytes, not trimmed":
                del case["pairs"]  # no template
        result["cases"].append(case)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(result, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
