"""Paths are bytes: str, bytes and os.PathLike, whether they are UTF-8 or not."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import multihead as mh

TEXT = "the cat sat on a mat and saw nine dogs run home.\n" * 60
NAMES = [b"plain", "naïve".encode(), b"caf\xe9 \xff"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [os.fsencode, os.fsdecode, lambda path: pathlib.Path(os.fsdecode(path))])
def test_every_reader_and_writer_takes_any_path(tmp_path, name, kind):
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    path = lambda part: kind(os.path.join(folder, part))
    with open(path(b"text.txt"), "w") as file:
        file.write(TEXT)
    assert mh.text.read_text(path(b"text.txt")) == TEXT

    tensors = {"a": np.arange(6, dtype="f4").reshape(2, 3)}
    mh.save_safetensors(path(b"a.safetensors"), tensors)
    assert np.array_equal(np.asarray(mh.load_safetensors(path(b"a.safetensors"))["a"]), tensors["a"])

    tokenizer = mh.text.Tokenizer.train_characters(TEXT)
    tokenizer.save(path(b"tokenizer"))
    assert mh.text.Tokenizer.load(path(b"tokenizer")).encode("cat") == tokenizer.encode("cat")

    made = mh.io.save_checkpoint(path(b"run"), 3, {"model.safetensors": tensors}, {"state.json": "{}"})
    assert os.fsencode(made) == os.path.join(folder, b"run", b"checkpoint-3")
    assert mh.io.list_checkpoints(path(b"run"))[0]["path"] == made
    assert mh.io.load_checkpoint(made)[1]["state.json"] == b"{}"

    summary = mh.train_language_model(
        path(b"text.txt"), path(b"model"), steps=2, layers=1, heads=2, width=8, context=8, batch=2, progress=False,
        tokenizer="char", warmup=0)
    assert summary["progress"]["step"] == 2
    model = mh.models.LanguageModel.load(path(b"model"))
    model.save(path(b"copy"))
    assert mh.models.LanguageModel.load(path(b"copy")).config.embed_dim == 8


def test_errors_about_odd_paths_are_readable():
    with pytest.raises(mh.IoError, match=r"caf\\xe9"):
        mh.load_safetensors(b"/nowhere/caf\xe9")
    with pytest.raises(TypeError):
        mh.load_safetensors(3)


def test_threads_that_cannot_be_started_are_no_end():
    if os.getuid() != 0:
        pytest.skip("only root can become a user without processes")
    program = """
import os, resource, numpy as np, multihead as mh
resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
os.setgroups([]); os.setuid(54321)
mh.set_num_threads(8)
x = np.ones((1, 8, 64, 16), 'f4')
assert np.array_equal(np.asarray(mh.attention(x, x, x)), x)
assert mh.missing_threads() == 6 and mh.num_threads() == 8
assert '6 of 8 threads could not be started' in str(mh.explain(x, x, x))
"""
    environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
