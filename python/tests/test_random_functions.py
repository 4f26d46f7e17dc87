"""Random traced functions are NumPy's evaluation of the same text, or refused."""

import collections
import pathlib
import sys

import numpy as np

import multihead as mh

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import random_functions  # noqa: E402


def test_random_functions_equal_numpys_or_are_refused():
    counts = collections.Counter()
    for seed in range(300):
        outcome, text, said = random_functions.check(seed)
        assert outcome in ("equal", "refused"), (seed, outcome, text, said)
        counts[outcome] += 1
    assert counts["equal"] > 240


def scores_of(function):
    x = np.ones((1, 1, 2, 1))
    capture = mh.AttentionCapture(stage="scores")
    mh.attention(x, x, x, score_mod=mh.score_mod(function), scale=1.0, capture=capture)
    return capture.weights.numpy()


def test_corners_are_numpys():
    assert np.isnan(scores_of(lambda s, b, h, i, j: np.sign(np.log(s - 2 + j)))[..., 0]).all()
    for dividend in (1.0, -1.0):
        for divisor in (0.5, -0.5):
            want = np.copysign(np.inf, np.float64(dividend) % divisor)
            assert (scores_of(lambda s, b, h, i, j: 1 / ((s * dividend) % (s * divisor))) == want).all()
            assert (scores_of(lambda s, b, h, i, j: 1 / ((s * dividend) % divisor)) == want).all()


def test_an_index_outside_a_table_of_one_value_raises():
    x = np.ones((1, 2, 5, 4), "f4")
    alive = np.ones(3, bool)
    try:
        mh.attention(x, x, x, mask=mh.mask_mod(lambda b, h, i, j: alive[j]))
    except IndexError:
        return
    raise AssertionError("alive[4] of three")
