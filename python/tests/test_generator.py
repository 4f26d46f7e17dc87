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
    generator = mh.models.Generator(model, rows=4, remembered=3)
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


def test_prompts_are_kept_in_a_folder(model, tmp_path):
    prompts = [[1] * 20 + [last] for last in (2, 3)]
    expected = [model.generate(prompt, max_new_tokens=4, temperature=0) for prompt in prompts]
    for _ in range(2):
        for cache_dtype in (None, "int8"):
            generator = mh.models.Generator(model, remembered=2, remembered_bytes=10**6, prefix_folder=tmp_path,
                                            cache_dtype=cache_dtype)
            for prompt in prompts:
                generator.submit(prompt, max_new_tokens=4, temperature=0)
            while generator.step():
                pass
            tokens = [generator.take(i) for i in range(2)]
            assert cache_dtype is not None or tokens == expected
    assert len(list(tmp_path.iterdir())) == 4


def test_threads_submit_while_one_steps(model):
    generator = mh.models.Generator(model, rows=3)
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
