#!/usr/bin/env python3
"""Goldens for multihead/text: tokenizers trained by Hugging Face `tokenizers` and the ids they give.

  python3 tools/goldens/text_tokenizers.py multihead/text/testdata/tokenizers.json

Needs PyPI tokenizers (made with 0.23.3). The corpus is written here; nothing is downloaded.
"""

import json
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+")

CORPUS = ("The cat sat on the mat. The dog didn't; it's the dog that'll sit, and we've seen it.\n"
          "Numbers: 1, 22, 333, 4444, 55555 and 2026-11-21.\n\n"
          "El gato se sentó en la alfombra; der Hund saß daneben. 猫はマットの上に座った。 кошка сидела.\n"
          "    return the_cat(the_mat);\r\n\ttabs\tand   runs of    spaces   \n") * 3

TEXTS = [
    "", " ", "\n", "the cat", " the cat ", "The dog didn't, DIDN'T, it'LL, I'm, you'd; 's 'S 'ſ '",
    "a  b   c    d\n\n\n  e \n \n f\t\tg \r\n\r\n", "   leading and trailing   ", "1234567890 12 345 ٣٤٥ Ⅷ ½ x² 3.14",
    "naïve Straße e\u0301 a\u0308\u0301 z\u200dw\ufeff", "東京タワー こんにちは 한국어 ไทย नमस्ते שלום مرحبا привет",
    "😀😀 👩\u200d👩\u200d👧 🇪🇸🇪🇸", "\u00a0nbsp\u2003em\u3000wide\u0085nel\u2028ls", "\x00\x01\x7f control",
    "<|endoftext|>the cat<|endoftext|>\n<|begin|> <|end", "!!! ??? ... --- ((( \"quoted\" 'single' $100 #tag @x",
    "\U0001e5d0\U0001e5f1 \U0002ebf0\U0002ebf1 \U00016d70 \U00011de0 letters and numbers since Unicode 15",
    "the" * 40, "a" * 100, "    return the_cat(the_mat);\r\n" * 3, CORPUS,
]


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def split(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level(use_regex=False)])


def digits(individual):
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=individual), byte_level()])


def train(pre_tokenizer, alphabet=True, unk=None):
    tokenizer = Tokenizer(models.BPE(unk_token=unk, fuse_unk=unk is not None))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=330 if alphabet else 120, special_tokens=["<|endoftext|>", "<|begin|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [], show_progress=False))
    return tokenizer


def with_model(tokenizer, **changes):
    data = json.loads(tokenizer.to_str())
    data["model"].update(changes)
    return Tokenizer.from_str(json.dumps(data))


def characters():
    vocab = {c: i for i, c in enumerate(["<unk>"] + sorted(set(CORPUS)))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def wordpiece(**cleaning):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    tokenizer.normalizer = normalizers.BertNormalizer(**cleaning)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator([CORPUS], trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def cases():
    yield "gpt2", train(byte_level())
    llama = with_model(train(split(LLAMA3)), ignore_merges=True)
    llama.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])])
    yield "llama3", llama
    yield "qwen2", train(split(QWEN2))
    yield "gpt4", train(split(GPT4))
    yield "each digit", train(digits(True))
    yield "digit runs", train(digits(False))
    yield "prefix space", train(pre_tokenizers.ByteLevel(add_prefix_space=True))
    roberta = train(byte_level())
    roberta.post_processor = processors.RobertaProcessing(("<|endoftext|>", 0), ("<|begin|>", 1))
    roberta.add_tokens(["cat sat"])
    yield "roberta", roberta
    yield "no splitting", train(byte_level(use_regex=False))
    yield "unknown bytes", train(byte_level(), alphabet=False, unk="<|endoftext|>")
    legacy = json.loads(train(byte_level()).to_str())
    legacy["model"]["merges"] = [" ".join(pair) for pair in legacy["model"]["merges"]]
    yield "merges as lines", Tokenizer.from_str(json.dumps(legacy))
    yield "characters", characters()
    yield "wordpiece", wordpiece()
    yield "wordpiece cased", wordpiece(lowercase=False, handle_chinese_chars=False, clean_text=False)


def ids(tokenizer, text, special):
    tokenizer.encode_special_tokens = not special
    return tokenizer.encode(text).ids


def main():
    result = {"corpus": CORPUS, "texts": TEXTS, "cases": []}
    for name, tokenizer in cases():
        file = json.loads(tokenizer.to_str())
        if name == "merges as lines":
            file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
        result["cases"].append({"name": name, "tokenizer": file,
                                "ids": [ids(tokenizer, text, False) for text in TEXTS],
                                "ids_parsing_special": [ids(tokenizer, text, True) for text in TEXTS]})
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(result, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
