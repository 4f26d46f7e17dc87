"""The interpreter ends while daemon threads compute: the process ends with its own code, and without a word."""

import subprocess
import sys

import pytest

SETUP = """
import sys, threading, time
import numpy as np
import multihead as mh

q = np.ones((2, 4, 100, 32), "f4")
model = mh.models.LanguageModel(mh.models.LanguageModelConfig(vocab_size=7, context=64), rng=mh.Rng(1))
tokens = np.zeros((4, 32), "i8")

def think(*_):
    return sum(range(3000)) >= 0

def attend():
    mh.attention(q, q, q)

def train():
    with mh.Tape() as tape:
        tape.backward(model.loss(tokens, tokens))

def generate():
    model.generate([1, 2], max_new_tokens=20)

def call_back():
    model.generate([1, 2], max_new_tokens=20, on_token=think)

def repeat(work):
    while True:
        work()
"""


@pytest.mark.parametrize("work", ["attend", "train", "generate", "call_back"])
def test_daemon_threads_do_not_abort_the_end(work):
    program = SETUP + (
        f"for _ in range(3): threading.Thread(target=repeat, args=({work},), daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "sys.exit(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_a_thread_that_calls_back_after_the_end_sleeps():
    program = SETUP + (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"  # the process outlives its interpreter by a second
        "getattr(libc, '__cxa_atexit')(libc.usleep, ctypes.c_void_p(1_000_000), None)\n"
        "model = mh.models.LanguageModel(mh.models.LanguageModelConfig(vocab_size=7, context=2048), rng=mh.Rng(1))\n"
        "def call_back_late(): model.generate([1] * 2000, max_new_tokens=1, on_token=think)\n"  # .1 s before the call
        "for _ in range(3): threading.Thread(target=repeat, args=(call_back_late,), daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "sys.exit(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_tensors_in_globals_and_in_atexit_outlive_the_end():
    program = SETUP + (
        "import atexit\n"
        "kept = mh.attention(q, q, q)\n"
        "class Holder:\n"
        "    def __del__(self): attend()\n"
        "holder, cycle = Holder(), []\n"
        "cycle.append([cycle, mh.tensor(q), model])\n"
        "view = memoryview(kept)\n"
        "atexit.register(attend)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("threads", (1, 2))
def test_a_del_computes_while_the_interpreter_ends(threads):
    program = SETUP + (
        f"mh.set_num_threads({threads})\n"
        "class Late:\n"
        "    def __init__(self, work): self.work = work\n"
        "    def __del__(self): print(self.work(), flush=True)\n"
        "x = mh.ones((1500, 1500))\n"  # .1 s: Ctrl-C is asked for
        "late = Late(lambda x=x, product=mh.matmul: product(product(x, x), x)[0, 0].item())\n"
        "talks = Late(lambda model=model, think=think: len(model.generate([1, 2], max_new_tokens=5, on_token=think)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "2250000.0" in ended.stdout.split()  # generate() imports, which fails by then


def test_a_subinterpreter_is_refused():
    pytest.importorskip("_xxsubinterpreters")
    program = SETUP + (
        "import sys, _xxsubinterpreters as interpreters\n"
        "other = interpreters.create()\n"
        "try:\n"
        "    interpreters.run_string(other, f'import sys; sys.path[:] = {sys.path}; import multihead')\n"
        "except interpreters.RunFailedError as error:\n"
        "    print(error)\n"
        "interpreters.destroy(other)\n"
        "attend()"  # as before
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0 and "use threads or processes" in ended.stdout
