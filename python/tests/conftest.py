import re
import signal

import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_heard():
    """A process started in the background ignores SIGINT, and Python then leaves it so."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    return np.random.default_rng(1337)


def keywords_of(function):
    """The keyword-only parameters of a function of the extension."""
    return re.findall(r"(\w+): ", function.__nb_signature__[0][0].split("*, ")[1])


def reference(q, k, v, allowed=None, bias=None, scale=None, softcap=0.0):
    """Attention by its definition in f64; rows that may see nothing give zeros."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    if allowed is not None:
        s = np.where(allowed, s, -np.inf)
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(axis=-1, keepdims=True)
    return np.divide(p, total, out=np.zeros_like(p), where=total > 0) @ v


@pytest.fixture
def attention_reference():
    return reference
