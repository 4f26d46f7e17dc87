"""Texts that must fit a schema, a pattern or a grammar, and log-probabilities of given texts."""
import json
import re

import numpy as np
import pytest

import multihead as mh

TEXT = 'the cat sat on the mat {"name": "cat", "age": 12, "tags": ["a", "b"]} true null ' * 3


@pytest.fixture(scope="module")
def writer():
    tokenizer = mh.text.Tokenizer.train_bpe(TEXT, vocab_size=300, min_frequency=1)
    config = mh.models.LanguageModelConfig(vocab_size=tokenizer.vocab_size, context=256, num_layers=1, num_heads=2,
                                           embed_dim=16, init_std=0.5)
    return mh.models.LanguageModel(config, rng=mh.Rng(3)), tokenizer


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_texts_fit_alone_and_together(writer):
    model, tokenizer = writer
    prompts = [[1, 2], [3], [4, 5, 6]]
    common = {"max_new_tokens": 100, "seed": 7, "tokenizer": tokenizer, "stop_tokens": [tokenizer.eos_id]}
    together = model.generate(prompts, json_schema=SCHEMA, **common)
    assert model.generate(prompts[0], json_schema=json.dumps(SCHEMA), **common) == together[0]
    for row in together:
        value = json.loads(tokenizer.decode(row))
        assert set(value) == {"name", "age"} and 0 <= value["age"] <= 120
    text = tokenizer.decode(model.generate([1], regex="(cat|mat)[0-9]{2}", **common))
    assert re.fullmatch("(cat|mat)[0-9]{2}", text)
    text = tokenizer.decode(model.generate([1], grammar='root ::= "a"{2} [bc]', **common))
    assert re.fullmatch("aa[bc]", text)
    generator = mh.models.Generator(model)
    number = generator.submit(prompts[0], json_schema=SCHEMA, **common)
    while generator.step():
        pass
    assert generator.take(number) == together[0]
    number = generator.submit([1], regex="xx", suppress=[tokenizer.encode("x")], **common)
    while generator.step():
        pass
    assert generator.tokens(number) == []
    with pytest.raises(ValueError, match=f"sequence {number}: "):
        generator.take(number)


@pytest.mark.parametrize("keywords, message", [
    ({"json_schema": {"uniqueItems": True}}, '"uniqueItems" at "#"'),
    ({"regex": "(?=a)"}, "look-around"),
    ({"grammar": "root ::= x"}, 'no rule "x"'),
    ({"regex": "a", "grammar": 'root ::= "a"'}, "exclude each other"),
    ({"regex": "a", "tokenizer": None}, "need tokenizer"),
    ({"regex": "a", "first_token": 3}, "excludes first_token"),
    ({"logit_bias": {9999: 1.0}}, "logit_bias"),
])
def test_refusals_name_what_is_wrong(writer, keywords, message):
    model, tokenizer = writer
    with pytest.raises(ValueError, match=re.escape(message)):
        model.generate([1], **{"tokenizer": tokenizer, **keywords})


def test_biases(writer):
    model, _ = writer
    assert model.generate([1], max_new_tokens=3, temperature=0, logit_bias={9: 100.0}) == [9, 9, 9]


def test_logprobs_are_those_of_the_logits(writer):
    model, _ = writer
    texts = [[1, 2, 3, 4], [9], [7, 7, 250]]
    logprobs, top = model.logprobs(texts, top=2)
    assert [len(row) for row in logprobs] == [3, 0, 2]
    for text, row, best in zip(texts, logprobs, top):
        logits = np.asarray(model(np.array([text], dtype=np.int32)), dtype=np.float64)[0]
        all_of_them = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for i, number in enumerate(row):
            np.testing.assert_allclose(number, all_of_them[i, text[i + 1]], rtol=1e-5)
            assert best[i][0][0] == all_of_them[i].argmax()
    assert model.logprobs(texts[0]) == logprobs[0]
