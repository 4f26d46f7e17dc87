"""tokenizer.json as Qwen publishes it: the ids are those of PyPI tokenizers on any text."""

import random

import pytest

import multihead as mh

tokenizers = pytest.importorskip("tokenizers")

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXT = ("It was a truth; they'll see. cafe\u0301 na\u00efve \u212b \u1e9b\u0323 \uac00\u11a8 \u1100\u1161\u11a8 "
        "\u0915\u093c \u2126\ufb01 1234 \u4f60\u597d\uff01 e\u0327\u0301 \U0001f468\u200d\U0001f469 \u0f71\u0f72\n\n")


def made(folder, form="NFC", added=()):
    """Structure of Qwen2/tokenizer.json, trained on next to nothing."""
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

    t = tokenizers.Tokenizer(models.BPE())
    t.normalizer = getattr(normalizers, form)() if form else None
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    t.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    t.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    t.train_from_iterator([TEXT] * 20, trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken(content, **flags) for content, flags in added])
    t.save(str(folder / "tokenizer.json"))
    return t, mh.Tokenizer.load(str(folder))


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD", None])
def test_random_text(form, tmp_path):
    theirs, ours = made(tmp_path, form)
    rng = random.Random(form)
    alphabet = list(TEXT) + [chr(c) for c in range(0x2FF, 0x370)] + list("\u0591\u05b0\u3099\u309a\uff76\uff9e\u1e69")
    for _ in range(300):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(60)))
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids, ascii(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_every_code_point(form, tmp_path):
    """But the planes of ideographs and private use, of which no form changes any."""
    theirs, ours = made(tmp_path, form)
    for mark in ("", "\u0301\u0323"):  # alone, and among marks that it may have to change places with
        for first in [*range(0, 0x20000, 0x4000), 0x2F800, 0xE0000]:
            points = [c for c in range(first, first + 0x4000) if not 0xD800 <= c < 0xE000]
            text = "".join(f"\na{chr(c)}{mark}" for c in points)
            if text and ours.encode(text) != theirs.encode(text).ids:
                wrong = [hex(c) for c in points
                         if ours.encode(f"\na{chr(c)}{mark}") != theirs.encode(f"\na{chr(c)}{mark}").ids]
                raise AssertionError(f"{form}: {wrong[:20]}")


def test_added_tokens_are_found_where_the_flag_says(tmp_path):
    added = [
        ("caf\u00e9", {"normalized": True}),  # also where the text has it decomposed
        ("cafe\u0301s", {"normalized": False}),  # as given only
        ("<\u212b>", {"normalized": True, "lstrip": True}),
        ("<tool>", {"normalized": False, "rstrip": True}),
        ("tool", {"normalized": True}),
    ]
    theirs, ours = made(tmp_path, "NFC", added)
    rng = random.Random(5)
    parts = ["caf\u00e9", "cafe\u0301", "cafe\u0301s", "s", " ", "\u0301", "<\u212b>", "<\u00c5>", "<A\u030a>", "<tool>",
             "tool", "<|im_start|>", "x", "\n", "e"]
    for _ in range(500):
        text = "".join(rng.choice(parts) for _ in range(rng.randrange(12)))
        assert ours.encode(text, parse_special=True) == theirs.encode(text).ids, ascii(text)


def test_ids_beyond_the_vocabulary_are_nothing(tmp_path):
    theirs, ours = made(tmp_path)
    ids = ours.encode("a truth")
    assert ours.decode(ids + [ours.vocab_size, 151935]) == theirs.decode(ids + [151935]) == "a truth"
    with pytest.raises(ValueError):
        ours.decode([-1])


def test_a_padded_qwen_folder_runs(tmp_path):
    """More rows than the tokenizer has tokens: greedy text is transformers', padding and all."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    _, tokenizer = made(tmp_path)
    for family, extra in (("qwen2", {}), ("qwen3", {"head_dim": 8})):
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(
            family, vocab_size=tokenizer.vocab_size + 200, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3, **extra)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        model.save_pretrained(tmp_path)
        ids = tokenizer.encode("cafe\u0301 was a truth")
        want = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24, eos_token_id=None)[0, len(ids):]
        got = mh.models.LanguageModel.load(str(tmp_path)).generate(ids, max_new_tokens=24, temperature=0)
        assert got == want.tolist()
        assert any(token >= tokenizer.vocab_size for token in got)
        assert tokenizer.decode(got) == tokenizer.decode([t for t in got if t < tokenizer.vocab_size])
