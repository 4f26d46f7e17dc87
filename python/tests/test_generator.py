"""Sequences that are decoded together."""

import threading

import numpy as np
import pytest

import multihead as mh


@pytest.fixture(scope="module")
def model():
    config = mh.models.LanguageModelConfig(vocab_size=31, context=64, num_layers=2, num_heads=2, embed_dim=16,
                                           positions="rotary", init_std=0.3)
    return mh.models.LanguageModel(config, rng=mh.Rng(1))


def test_sequences_are_as_alone(model):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 31, rng.integers(1, 20)).tolist() for _ in range(20)]
    generator = mh.models.Generator(model, max_batch=4, cached_prompts=3)
    streamed = {}
    for i, prompt in enumerate(prompts):
        number = generator.submit(prompt, max_new_tokens=5 + i, seed=i, top_k=5,
                                  on_token=lambda n, token: streamed.setdefault(n, []).append(token))
        assert number == i
        generator.step()
        assert generator.running <= 4
    while generator.step():
        pass
    for i, prompt in enumerate(prompts):
        expected = model.generate(prompt, max_new_tokens=5 + i, seed=i, top_k=5)
        assert streamed[i] == expected
        assert generator.take(i) == expected


def test_prompts_are_sequences_of_tokens(model):
    expected = model.generate([0, 1, 2], max_new_tokens=3, temperature=0)
    for same in (range(3), (0, 1, 2), np.arange(3)):
        assert model.generate(same, max_new_tokens=3, temperature=0) == expected
    assert model.generate([range(3), np.arange(3)], max_new_tokens=3, temperature=0) == [expected] * 2
    for wrong in (3, b"abc", bytearray(3), np.array(3), [[1], 2], [1, [2]], {1, 2}):
        with pytest.raises((TypeError, ValueError), match="prompts"):
            model.generate(wrong, max_new_tokens=3)


def test_prompts_are_kept_in_a_folder(model, tmp_path):
    prompts = [[1] * 20 + [last] for last in (2, 3)]
    expected = [model.generate(prompt, max_new_tokens=4, temperature=0) for prompt in prompts]
    for _ in range(2):
        for cache_dtype in (None, "int8"):
            generator = mh.models.Generator(model, cached_prompts=2, prompt_cache_bytes=10**6, prefix_folder=tmp_path,
                                            cache_dtype=cache_dtype)
            for prompt in prompts:
                generator.submit(prompt, max_new_tokens=4, temperature=0)
            while generator.step():
                pass
            tokens = [generator.take(i) for i in range(2)]
            assert cache_dtype is not None or tokens == expected
    assert len(list(tmp_path.iterdir())) == 4


def test_threads_submit_while_one_steps(model):
    generator = mh.models.Generator(model, max_batch=3)
    numbers = {}

    def submit(first):
        numbers[first] = generator.submit([first], max_new_tokens=20, temperature=0)

    threads = [threading.Thread(target=submit, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
        generator.step()
    for thread in threads:
        thread.join()
    while generator.step():
        pass
    for first, number in numbers.items():
        assert generator.take(number) == model.generate([first], max_new_tokens=20, temperature=0)


def test_a_callback_may_cancel_submit_and_fail(model):
    generator = mh.models.Generator(model)

    def stop(number, token):
        if len(generator.tokens(number)) == 2:
            generator.submit([3], max_new_tokens=1)
            generator.cancel(number)
        if len(generator.tokens(number)) > 2:
            raise AssertionError("cancelled sequences go on")

    generator.submit([1], on_token=stop)
    while generator.step():
        pass
    assert len(generator.take(0)) == 2 and len(generator.take(1)) == 1

    def fail(number, token):
        raise KeyError("mine")

    generator.submit([1], max_new_tokens=3, on_token=fail)
    with pytest.raises(KeyError, match="mine"):
        generator.step()
    with pytest.raises(ValueError, match="has not finished"):
        generator.take(2)
    with pytest.raises(ValueError, match="no such sequence: 7"):
        generator.cancel(7)
    with pytest.raises(ValueError, match="one prompt at a time"):
        generator.submit([[1], [2]])


def test_guesses_do_not_change_the_result(model):
    small = mh.models.LanguageModel(mh.models.LanguageModelConfig(vocab_size=31, context=64, num_layers=1, num_heads=1,
                                                                  embed_dim=8, init_std=0.3), rng=mh.Rng(2))
    for settings in ({"temperature": 0}, {"seed": 3}):
        expected = model.generate([1, 2, 3], max_new_tokens=50, **settings)
        for draft in ("lookup", small, model):
            assert model.generate([1, 2, 3], max_new_tokens=50, draft=draft, draft_tokens=3, **settings) == expected
    with pytest.raises(ValueError, match="draft must be"):
        model.generate([1], draft="n-grams")


def test_the_rules_are_those_of_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(2)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=24, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, initializer_range=0.4, bos_token_id=None, eos_token_id=None, pad_token_id=None)).eval()
    theirs.save_pretrained(tmp_path)
    ours = mh.models.LanguageModel.load(tmp_path)
    rng = np.random.default_rng(1)
    for trial in range(40):
        prompt = rng.integers(0, 24, rng.integers(1, 8)).tolist()
        if trial % 8 == 0:
            prompt = prompt[:1] * 3
        n, least, stop = int(rng.integers(0, 4)), int(rng.integers(0, 9)), rng.integers(1, 24, 3).tolist()
        words = [rng.integers(0, 24, k).tolist() for k in (1, 2, 2)]
        words = [word for word in words if word != stop[:1] and len(word) <= len(prompt)]
        last = [None, stop[0]][trial % 2]
        rules = {"no_repeat_ngram_size": n, "min_new_tokens": least, "suppress_tokens": stop[1:], "eos_token_id": stop[0],
                 "repetition_penalty": [1.0, 1.3][trial % 2], "forced_eos_token_id": last}
        with torch.no_grad():
            want = theirs.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), pad_token_id=0,
                                   do_sample=False, max_new_tokens=14, bad_words_ids=words or None,
                                   **{k: v for k, v in rules.items() if v})
        want = want[0][len(prompt):].tolist()
        want = want[:want.index(stop[0])] if stop[0] in want else want
        got = ours.generate(prompt, temperature=0, max_new_tokens=14, stop_tokens=stop[:1], no_repeat_ngram=n,
                            min_new_tokens=least, suppress=words + [[token] for token in stop[1:]],
                            repetition_penalty=rules["repetition_penalty"], last_token=last)
        assert got == want, (trial, prompt, rules, words)


def test_stop_strings_end_a_row(model):
    tokenizer = mh.Tokenizer.train_characters("abcdefghijklmnopqrstuvwxyz .,;!")
    assert tokenizer.vocab_size <= 31
    whole = tokenizer.decode(model.generate([1, 2], max_new_tokens=40, seed=3, stop_tokens=[]))
    stop = whole[11:14]
    cut = model.generate([1, 2], max_new_tokens=40, seed=3, stop_strings=[stop, "never seen"], tokenizer=tokenizer)
    assert tokenizer.decode(cut) == whole[:whole.index(stop) + 3]
    assert model.generate([1, 2], max_new_tokens=40, seed=3, stop_strings=[""], tokenizer=tokenizer) == \
        model.generate([1, 2], max_new_tokens=40, seed=3)
    with pytest.raises(ValueError, match="stop_strings need tokenizer"):
        model.generate([1, 2], stop_strings=["a"])


@pytest.mark.parametrize(("old", "new"), [("rows", "max_batch"), ("remembered", "cached_prompts"),
                                          ("remembered_bytes", "prompt_cache_bytes")])
def test_old_names_are_refused_with_the_new_one(model, old, new):
    with pytest.raises(TypeError, match=f"^Generator: '{old}' is called '{new}' now$"):
        mh.models.Generator(model, **{old: 1})
