"""The server inside a Python process."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

import multihead as mh
from small_bert import make_bert, make_router
from multihead import serve

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"
pytestmark = pytest.mark.skipif(not DATA.exists() or not os.path.exists(serve._SOCKETS), reason="needs a checkout, and libevent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    (folder / "text.txt").write_text("the cat sat on the mat. the dog sat on the cat.\n" * 40)
    mh.train_language_model(folder / "text.txt", folder / "lm", steps=3, layers=1, width=16, heads=2, context=32, batch=2,
                            eval_every=0)
    return folder


def ask(server, path, body=None, headers={}):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def complete(server, i=0, model="lm"):
    status, answer = ask(server, "/v1/completions", {"model": model, "prompt": "the cat"[: 3 + i % 5], "max_tokens": 6,
                                                     "temperature": 0, "logprobs": 2})
    assert status == 200, answer
    return answer["choices"][0]


def test_a_folder_and_what_is_in_memory_answer_alike(folder):
    generator = mh.TextGenerator(folder / "lm")
    pair = (generator.model, generator.tokenizer)
    with mh.Server({"lm": folder / "lm", "generator": generator, "pair": pair}) as server:
        assert server.is_running and server.url == f"http://127.0.0.1:{server.port}"
        assert [model["id"] for model in ask(server, "/v1/models")[1]["data"]] == server.models == ["lm", "generator", "pair"]
        expected = generator.generate("the cat", max_new_tokens=6, temperature=0)
        with concurrent.futures.ThreadPoolExecutor(9) as pool:  # and Python goes on meanwhile
            answers = list(pool.map(lambda name: complete(server, 4, name), server.models * 3))
        assert answers == [answers[0]] * 9 and answers[0]["text"] == expected
    assert not server.is_running and "stopped" in repr(server)
    with pytest.raises(urllib.error.URLError):
        ask(server, "/v1/models")
    server.stop()
    assert generator.generate("the cat", max_new_tokens=6, temperature=0) == expected


def test_vectors_are_those_of_encode(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the cat dog sat on a mat red sun".split()]
    encoder = mh.SentenceEncoder(make_bert(tmp_path, words))
    texts = ["the cat sat", "a red sun", "zzz"]
    with mh.Server({"embed": encoder}) as server:
        status, answer = ask(server, "/v1/embeddings", {"model": "embed", "input": texts})
        assert status == 200
        assert np.array_equal(np.asarray([row["embedding"] for row in answer["data"]], "f4"), encoder.encode(texts))
        assert ask(server, "/v1/completions", {"model": "embed", "prompt": "a"})[0] == 400
    for options in ({"precision": "bf16"}, {"truncate_dim": 3}, {"prompts": {"query": "the "}}):
        with pytest.raises(ValueError, match=f"Server: e: a SentenceEncoder with {next(iter(options))} of its own"):
            mh.Server({"e": mh.SentenceEncoder(tmp_path, **options)})


def test_a_request_says_what_its_texts_are_for(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the cat dog sat on a mat red sun".split()]
    bert = make_bert(tmp_path / "bert", words)
    routed = make_router(tmp_path / "routed", bert, {"query": "mean", "document": "max", "title": "cls"}, default_route="document")
    prompted = make_bert(tmp_path / "prompted", words)
    (prompted / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "the ", "passage": "red ", "sun": "sun "}, "default_prompt_name": "sun"}))
    texts = ["the cat sat", "a red sun", "zzz"]
    paths = {"/v1/embeddings": "input", "/embed": "inputs", "/api/embed": "input"}
    encoders = {str(path): mh.SentenceEncoder(path) for path in (routed, prompted, bert)}

    def vectors(path, **body):
        status, answer = ask(server, path, body)
        assert status == 200, answer
        rows = answer["embeddings"] if path == "/api/embed" else answer if path == "/embed" else [row["embedding"] for row in answer["data"]]
        return np.asarray(rows, "f4")

    with mh.Server(encoders) as server:
        for name, encoder in encoders.items():
            expected = {"query": encoder.encode_query(texts), "document": encoder.encode_document(texts), "": encoder.encode(texts)}
            if name == str(routed):
                expected["title"] = encoder.encode(texts, task="title")
            if name == str(prompted):
                expected["sun"] = encoder.encode(texts, prompt_name="sun")
            with concurrent.futures.ThreadPoolExecutor(9) as pool:
                for path, key in paths.items():
                    got = dict(zip(expected, pool.map(lambda task: vectors(path, model=name, task=task, **{key: texts}), expected)))
                    for task, want in expected.items():
                        unit = want if path == "/v1/embeddings" else want / np.linalg.norm(want, axis=1, keepdims=True)
                        np.testing.assert_allclose(got[task], unit, rtol=0, atol=0 if path == "/v1/embeddings" else 1e-6)
            status, answer = ask(server, "/api/embeddings", {"model": name, "task": "query", "prompt": texts[0]})
            assert np.array_equal(np.asarray(answer["embedding"], "f4"), expected["query"][0])
        np.testing.assert_array_equal(vectors("/embed", model=str(prompted), prompt_name="sun", inputs=texts),
                                      vectors("/embed", model=str(prompted), task="sun", inputs=texts))
        for name, body, why in ((prompted, {"prompt_name": "document"}, "has no prompt_name"), (routed, {"prompt_name": "title"}, "has no prompt_name"),
                                (prompted, {"prompt_name": "sun", "task": "query"}, "not both")):
            status, answer = ask(server, "/embed", {"model": str(name), "inputs": texts, **body})
            assert status == 400 and why in answer["error"], answer
        for name, known in ((routed, "document, query, title"), (prompted, "document, passage, query, sun"), (bert, "document, query")):
            for path, key in paths.items():
                status, answer = ask(server, path, {"model": str(name), key: texts, "task": "headline"})
                assert status == 400 and f'has no task "headline"; its tasks are {known}' in json.dumps(answer).replace('\\"', '"'), answer


def test_options_reach_the_server(folder):
    path = str(folder / "lm")
    with mh.Server(path, api_keys=["secret"], max_tokens=3, max_body_bytes=1000, context=20) as server:
        assert ask(server, "/v1/models")[0] == 401
        key = {"Authorization": "Bearer secret"}
        assert ask(server, "/v1/models", headers=key)[1]["data"][0]["max_model_len"] == 20
        assert ask(server, "/v1/completions", {"model": "lm", "prompt": "a", "max_tokens": 4}, key)[0] == 400
        assert ask(server, "/v1/completions", {"model": "lm", "prompt": "a" * 1000}, key)[0] == 413
        assert ask(server, "/v1/models", headers={**key, "Host": "example.org"})[0] == 403
        with pytest.raises(OSError, match=f"port {server.port} on 127.0.0.1 is in use; port 0 picks a free one"):
            mh.Server(path, port=server.port)
    with mh.Server([path], allow_hosts=["example.org"]) as server:
        assert ask(server, "/v1/models", headers={"Host": "example.org"})[0] == 200


@pytest.mark.parametrize("models, options, error, words", [
    ({}, {}, ValueError, "there is no model"),
    (["PATH", "PATH"], {}, ValueError, "two models are called 'lm'"),
    ({"a": 7}, {}, TypeError, "a must be a path, TextGenerator, .* got int"),
    ([7], {}, TypeError, "a int needs a name"),
    ("PATH", {"port": 65536}, ValueError, "port must be 0 to 65535, got 65536"),
    ("PATH", {"parallel": 0}, ValueError, "parallel must be positive, got 0"),
    ("PATH", {"max_tokens": -1}, ValueError, "max_tokens must not be negative, got -1"),
    ("PATH", {"timeout": float("nan")}, ValueError, "timeout must be positive, got nan"),
    ("PATH", {"allow_hosts": ["box:80"]}, ValueError, "an allowed host must be a name without port"),
    ("PATH", {"api_keys": "secret"}, TypeError, "api_keys must be a list, got one str"),
    ("PATH", {"api_keys": [""]}, ValueError, "an API key must not be empty"),
    ("PATH", {"context": 33}, ValueError, "context must be at most 32"),
    ("PATH", {"weights": "q9"}, ValueError, "q9"),
    ("PATH", {"host": "no.such.host.invalid"}, OSError, "there is no such host"),
    ("nowhere", {}, OSError, "nowhere"),
])
def test_refusals(folder, models, options, error, words):
    path = str(folder / "lm")
    models = path if models == "PATH" else [path if m == "PATH" else m for m in models] if isinstance(models, list) else models
    with pytest.raises(error, match=words):
        mh.Server(models, **options)


def test_another_vocabulary_is_refused(folder):
    generator = mh.TextGenerator(folder / "lm")
    small = mh.models.LanguageModel(mh.models.LanguageModelConfig(vocab_size=3, context=8), rng=mh.Rng(1))
    with pytest.raises(mh.FormatError, match="Server: the model \"x\""):
        mh.Server({"x": (small, generator.tokenizer)})


def test_without_sockets_the_package_is_named(folder, monkeypatch):
    monkeypatch.setattr(serve, "_SOCKETS", "nowhere.so")
    with pytest.raises(RuntimeError, match="apt install libevent-dev"):
        mh.Server(folder / "lm")


@pytest.mark.parametrize("end", ["", "server.stop()", "del server", "raise SystemExit(0)", "forked()"])
def test_the_interpreter_ends(folder, end):
    """With a server that runs and a client who waits: with its own code, soon, and without a word."""
    program = f"""
import os, threading, urllib.request
import multihead as mh
server = mh.Server({str(folder / "lm")!r})
body = b'{{"model": "lm", "prompt": "a", "max_tokens": 20, "n": 8, "stream": true}}'
stream = urllib.request.urlopen(urllib.request.Request(server.url + "/v1/completions", body))
def forked():
    child = os.fork()
    if child == 0:
        assert not server.is_running
        raise SystemExit(0)  # waits for no thread that only the parent has
    assert os.waitpid(child, 0)[1] == 0 and server.is_running
{end}
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
