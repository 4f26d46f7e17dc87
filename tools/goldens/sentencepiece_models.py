#!/usr/bin/env python3
"""Goldens for SentencePiece's tokenizers: small models trained by PyPI `sentencepiece`, what it makes of texts, and
what Hugging Face `tokenizers` makes of them under the steps that published files have.

  python3 tools/goldens/sentencepiece_models.py multihead/text/testdata

Needs PyPI sentencepiece and tokenizers (made with 0.2.3 and 0.23.3). The corpus is that of text_tokenizers.py.
"""

import json
import os
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from text_tokenizers import CORPUS, TEXTS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

MORE = ["\u2581", "\u2581a \u2581", "ﬁt ½ ①", "e\u0301e\u0301 ①②", "  two  spaces  ", "<0x41> <s> </s>", "x" * 300]
RULES = [("①", "1"), ("②", "2"), ("½", "1/2"), ("ﬁ", "fi"), ("e\u0301", "é"), ("\u00a0", " "), ("\t", " "), ("\n", " "), ("\r", " ")]


def train(folder, name, **options):
    corpus, rules = os.path.join(folder, "corpus.txt"), os.path.join(folder, "rules.tsv")
    with open(corpus, "w", encoding="utf-8") as out:
        out.write(CORPUS)
    with open(rules, "w", encoding="utf-8") as out:
        for given, put in RULES:
            codes = [" ".join(f"{ord(c):X}" for c in text) for text in (given, put)]
            out.write("\t".join(codes) + "\n")
    if options.pop("rules", False):
        options["normalization_rule_tsv"] = rules
    else:
        options["normalization_rule_name"] = "identity"
    sentencepiece.SentencePieceTrainer.train(
        input=corpus, model_prefix=os.path.join(sys.argv[1], name), minloglevel=2, character_coverage=0.98, num_threads=1,
        **options)
    os.remove(os.path.join(sys.argv[1], name + ".vocab"))
    model = proto.ModelProto()
    with open(os.path.join(sys.argv[1], name + ".model"), "rb") as file:
        model.ParseFromString(file.read())
    return model


def merges(model):
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    found = []
    for piece in model.pieces:
        for k in range(1, len(piece.piece)) if piece.type == 1 else []:
            left, right = piece.piece[:k], piece.piece[k:]
            if left in ids and right in ids:
                found.append((-piece.score, ids[left], ids[right], (left, right)))
    return [pair for *_, pair in sorted(found)]


def with_specials(tokenizer, model):
    tokenizer.add_special_tokens(
        [AddedToken(piece.piece, special=True, normalized=False) for piece in model.pieces if piece.type in (2, 3)])
    return tokenizer


def unigram(model, normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in model.pieces], 0, False))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    return with_specials(tokenizer, model)


def bpe(model, normalizer, pre_tokenizer, strip):
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    tokenizer = Tokenizer(models.BPE(ids, merges(model), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return with_specials(tokenizer, model)


def cases(by_score, by_merges):
    squeeze = normalizers.Replace(Regex(" {2,}"), "\u2581")
    charsmap = normalizers.Precompiled(by_score.normalizer_spec.precompiled_charsmap)
    space = pre_tokenizers.Metaspace
    yield "xlm-r", unigram(by_score, normalizers.Sequence([charsmap, normalizers.Strip(left=False), squeeze]), space())
    yield "words first", unigram(by_score, charsmap,
                                 pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space()]))
    yield "no mark in front", unigram(by_score, None, space(prepend_scheme="never"))
    yield "albert", unigram(by_score, normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Strip()]), space())
    yield "llama 2", bpe(by_merges, normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]), None, True)
    yield "mistral", bpe(by_merges, None, space(prepend_scheme="first", split=False), True)
    yield "gemma", bpe(by_merges, normalizers.Replace(" ", "\u2581"),
                       pre_tokenizers.Split(" ", "merged_with_previous"), False)


def main():
    with tempfile.TemporaryDirectory() as folder:
        by_score = train(folder, "unigram", model_type="unigram", vocab_size=150, hard_vocab_limit=False, rules=True)
        by_merges = train(folder, "bpe", model_type="bpe", vocab_size=430, byte_fallback=True,
                          remove_extra_whitespaces=False)
    texts = TEXTS + MORE
    result = {"texts": texts, "cases": [], "models": []}
    for name, tokenizer in cases(by_score, by_merges):
        ids = [tokenizer.encode(text).ids for text in texts]
        result["cases"].append({"name": name, "tokenizer": json.loads(tokenizer.to_str()), "ids": ids,
                                "decoded": [tokenizer.decode(one) for one in ids]})
    # Marks in a text count as spaces there; tokens with names are read here.
    texts = [text for text in texts if "\u2581" not in text and "<s>" not in text]
    for name in "unigram", "bpe":
        model = sentencepiece.SentencePieceProcessor(model_file=os.path.join(sys.argv[1], name + ".model"))
        ids = [model.encode(text) for text in texts]
        result["models"].append({"name": name, "texts": texts, "ids": ids, "decoded": [model.decode(one) for one in ids]})
    with open(os.path.join(sys.argv[1], "sentencepiece.json"), "w", encoding="utf-8") as out:
        json.dump(result, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
