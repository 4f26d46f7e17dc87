"""Entities beside those of transformers' pipeline."""

import random

import numpy as np
import pytest

import multihead as mh

tf = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

TEXT = "the cats sat in Paris, France; El Niño and Zoë's dog ran home! unhappily-ever-after 東京 x"
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]


def tokenizer_of(kind):
    if kind == "wordpiece":
        tok = tokenizers.BertWordPieceTokenizer(lowercase=True)._tokenizer
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=70, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
        tok.train_from_iterator([TEXT] * 3, trainer)
        tok.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        return tok, dict(unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tok.decoder = tokenizers.decoders.ByteLevel()
    tok.train_from_iterator([TEXT] * 3, tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tok.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=True)
    return tok, dict(unk_token="<unk>", pad_token="<pad>", cls_token="<s>", sep_token="</s>")


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_entities_are_those_of_the_pipeline(kind, tmp_path):
    tok, special = tokenizer_of(kind)
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=tok, **special)
    torch.manual_seed(len(kind))
    model = tf.BertForTokenClassification(tf.BertConfig(
        vocab_size=tok.get_vocab_size(), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=80, initializer_range=0.5, id2label=dict(enumerate(LABELS)))).eval()
    model.save_pretrained(tmp_path)
    fast.save_pretrained(tmp_path)
    ours = mh.TokenClassifier.load(tmp_path)
    words, r = TEXT.split(" "), random.Random(1)
    texts = [TEXT] + [" ".join(r.choices(words, k=r.randint(1, 9))) for _ in range(20)] + ["Zoe\u0308 é\u0301 naïve", "a  b\tc"]
    for strategy in ("none", "simple", "first", "average", "max"):
        pipeline = tf.pipeline("token-classification", model=model, tokenizer=fast, aggregation_strategy=strategy)
        for text, got in zip(texts, ours.entities(texts, aggregation_strategy=strategy)):
            want = pipeline(text)
            key = "entity" if strategy == "none" else "entity_group"
            assert [(e[key], e["start"], e["end"]) for e in got] == [(e[key], e["start"], e["end"]) for e in want], text
            np.testing.assert_allclose([e["score"] for e in got], [e["score"] for e in want], atol=1e-5)
            assert all(e["word"] == text[e["start"]:e["end"]] for e in got)
    assert ours.labels == LABELS
