#!/usr/bin/env python3
"""Random traced score and mask functions against NumPy's evaluation of the same text: equal, or refused.

    python tools/random_functions.py 0 100000      # seeds; prints how many are equal, are refused, differ

A function is a random expression of the score, the indices and what it captures (NumPy arrays and Tensors of every
kind, as closure, attribute or item), with random index expressions. An element counts as equal if it is within 1e-9, or
as far off as NumPy itself gets when its inputs change by 1e-13 (steps of floor, poles of tan). Where NumPy raises, so
must the trace.
"""

import collections
import random
import sys
import types
import warnings

import numpy as np

import multihead as mh

B, H, TQ, TK = 2, 3, 5, 7
NUMBERS = np.random.default_rng(0)
FLOATS = {
    "per_head": NUMBERS.standard_normal(H),
    "per_key": NUMBERS.standard_normal(TK),
    "table": NUMBERS.standard_normal((H, 2 * TK + 1)),
    "pairs": NUMBERS.standard_normal((TK, TK)),
    "all": NUMBERS.standard_normal((B, H, TK)),
    "number": np.array(0.7),
}
INTEGERS = {
    "ids": NUMBERS.integers(0, TK, TK),
    "narrow": NUMBERS.integers(-3, TK, TK).astype("i4"),
    "groups": NUMBERS.integers(0, H, (B, TK)),
}
FLAGS = {"flags": NUMBERS.integers(0, 2, (TK, TK)).astype(bool), "alive": NUMBERS.integers(0, 2, H).astype(bool)}
SCORES = NUMBERS.standard_normal((B, H, TQ, 1)), NUMBERS.standard_normal((B, H, TK, 1))
UNARY = "exp tanh sin cos sqrt log abs sign floor ceil trunc negative square exp2 expm1 log1p arctan".split()


class Expressions:
    """Texts of one seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.spelling = {}

    def of(self, *choices):
        return self.random.choice(choices)

    def name(self, table):
        """The table as a closure, an attribute or an item: one spelling in a function."""
        how = self.spelling.setdefault(table, self.of("{}", "self.{}", "items['{}']", "kept_{}"))
        return how.format(table)

    def form(self, *forms):
        """One of the forms, of which only that one draws its parts."""
        return self.random.choice(forms)()

    def index(self, depth=0):
        if depth > 2 or self.random.random() < 0.5:
            return self.of("b", "h", "i", "j", "i", "j", "0", "1", "-1")
        x, of = lambda: self.index(depth + 1), self.of
        return self.form(
            lambda: f"({x()} {of('+', '-', '-')} {x()})",
            lambda: f"({x()} // {of('2', '3', '2', x())})",
            lambda: f"({x()} % {of(2, 3, 5)})",
            lambda: f"abs({x()} - {x()})",
            lambda: f"np.clip({x()} - {x()} + {of(0, 3, TK)}, 0, {of(2, 6)})",
            lambda: f"np.minimum({x()}, {x()})",
            lambda: f"np.maximum({x()}, {of(0, 1)})",
            lambda: f"(({x()}) & {of(1, 3)})",
            lambda: self.read(INTEGERS, depth + 1),
            lambda: f"np.where({self.condition(depth + 2)}, {x()}, {x()})",
            lambda: f"({x()} * {of(2, -1, 3)})",
        )

    def inside(self, size, depth):
        """Mostly an index within the axis, sometimes any."""
        draw = self.random.random()
        if draw < 0.55:
            return {H: "h", TK: self.of("i", "j"), B: "b", 2 * TK + 1: f"i - j + {TK}"}[size]
        return f"({self.index(depth)}) % {size}" if draw < 0.9 else self.index(depth)

    def read(self, tables, depth=1):
        table = self.of(*tables)
        at = [self.inside(n, depth) for n in tables[table].shape]
        if at and all(x.lstrip("-").isdigit() for x in at[:-1]) and self.random.random() < 0.5:
            return self.name(table) + "".join(f"[{x}]" for x in at)
        return f"{self.name(table)}[{', '.join(at)}]" if at else self.name(table)

    def condition(self, depth=0):
        if depth > 3:
            return self.of("(j <= i)", "(i != j)", "(h > 0)")
        x, i = lambda: self.condition(depth + 1), lambda: self.index(depth + 1)
        compare = self.of("<", "<=", ">", ">=", "==", "!=")
        return self.form(
            lambda: f"({i()} {compare} {i()})",
            lambda: f"({i()} {compare} {i()})",
            lambda: f"({x()} {self.of('&', '|', '^')} {x()})",
            lambda: f"(~{x()})",
            lambda: self.read(FLAGS, depth + 1),
            lambda: f"(s {compare} {self.of(0, 0.5)})" if self.scored else "(i - j < 3)",
            lambda: f"np.logical_{self.of('and', 'or', 'xor')}({x()}, {x()})",
            lambda: f"np.logical_not({x()})",
        )

    def number(self, depth=0):
        if depth > 4 or self.random.random() < 0.15 + 0.1 * depth:
            return self.form(
                *[lambda: "s"] * 3,
                *[lambda: self.read(FLOATS)] * 2,
                lambda: self.of("0.5", "2", "-1.25", "(i - j)", "h", "(i - j) / 4"),
            )
        x, of = lambda: self.number(depth + 1), self.of
        return self.form(
            *[lambda: f"({x()} {of('+', '-', '*')} {x()})"] * 3,
            lambda: f"({x()} / (abs({x()}) + 0.5))",
            lambda: f"({x()} / {x()})",
            *[lambda: f"np.{of(*UNARY)}({x()})"] * 3,
            lambda: f"np.where({self.condition(depth + 1)}, {x()}, {x()})",
            lambda: f"np.{of('minimum', 'maximum')}({x()}, {x()})",
            lambda: f"({x()}) ** {of(2, 3, 0.5, -1, 0, 2.0)}",
            lambda: f"({x()} {of('//', '%')} {of(2, 0.5, 1.5, -3)})",
            lambda: f"np.clip({x()}, {of(-1, 0)}, {of(1, 2.5)})",
            lambda: f"np.power(2.0, {x()})",
            lambda: f"{of('abs', '-')}({x()})",
            lambda: f"{of(2, 1.0)} - {x()}",
            lambda: f"{x()} * {self.condition(depth + 2)}",
            lambda: f"np.exp(-abs({x()}))",
        )

    def function(self):
        self.scored = self.random.random() < 0.8
        if self.scored:
            return f"lambda s, b, h, i, j: {self.number()}"
        return f"lambda b, h, i, j: {self.condition()}"


class Definite:
    """NumPy, but of two equal operands minimum and maximum are the first: NumPy leaves open which zero they are."""

    def __getattr__(self, name):
        return getattr(np, name)

    def minimum(self, a, b):
        return np.where(np.equal(a, b), a, np.minimum(a, b))

    def maximum(self, a, b):
        return np.where(np.equal(a, b), a, np.maximum(a, b))


def made(text, convert, numpy=np):
    """The function of a text over captures that `convert` made."""
    all_tables = {n: convert(n, x) for n, x in {**FLOATS, **INTEGERS, **FLAGS}.items() if n in text}
    space = {"np": numpy, "self": types.SimpleNamespace(**all_tables), "items": all_tables, **all_tables}
    closures = [f"kept_{name}" for name in all_tables if f"kept_{name}" in text]
    if not closures:
        return eval(text, space)
    return eval(f"(lambda {', '.join(closures)}: {text})", space)(*(space[c[5:]] for c in closures))


def by_numpy(text, scored, disturbed=None):
    def convert(name, x):
        return x * (1 + 1e-13 * disturbed.standard_normal(x.shape)) if disturbed is not None and name in FLOATS else x

    b, h, i, j = np.ogrid[:B, :H, :TQ, :TK]
    s = SCORES[0] * SCORES[1].swapaxes(2, 3)
    if disturbed is not None:
        s = s * (1 + 1e-13 * disturbed.standard_normal(s.shape))
    at = b, h, i + TK - TQ, j
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        function = made(text, convert, Definite())
        result = function(s, *at) if scored else function(*at)
    return np.broadcast_to(result, s.shape)


def by_trace(text, scored, seed):
    def convert(name, x):
        draw = random.Random(f"{seed} {name}").random()
        return mh.tensor(x, requires_grad=draw < 0.3) if name in FLOATS and draw < 0.7 else x

    value = np.ones((B, H, TK, 1))
    capture = mh.AttentionCapture(stage="scores")
    f = made(text, convert)
    options = {"score_mod": mh.score_mod(f)} if scored else {"mask": mh.mask_mod(f)}
    mh.attention(*SCORES, value, scale=1.0, capture=capture, **options)
    found = capture.weights.numpy()
    return found if scored else found > -np.inf


def agree(found, wanted, text, scored):
    if not scored:
        return bool((found == wanted.astype(bool)).all())
    with np.errstate(all="ignore"):
        wanted = wanted.astype("f8")
        off = np.abs(found - wanted)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (off <= 1e-9 * (1 + np.abs(wanted)))
        rng = np.random.default_rng(1)
        for _ in range(0 if same.all() else 8):
            other = by_numpy(text, scored, rng).astype("f8")
            moved = np.abs(other - wanted)
            same |= ~(moved * 100 + 1e-9 * (1 + np.abs(wanted)) < off) & ~(np.isnan(other) & np.isnan(wanted))
        return bool(same.all())


REFUSALS = (ValueError, TypeError, NotImplementedError, IndexError, ZeroDivisionError, OverflowError)


def check(seed):
    """'equal', 'refused', or what went wrong; and the text."""
    expressions = Expressions(seed)
    text = expressions.function()
    try:
        wanted = by_numpy(text, expressions.scored)
    except Exception as e:  # noqa: BLE001
        wanted = e
    try:
        found = by_trace(text, expressions.scored, seed)
    except REFUSALS as e:
        return "refused", text, str(e)
    if isinstance(wanted, Exception):
        return f"NumPy raises {type(wanted).__name__}", text, str(wanted)
    if agree(found, wanted, text, expressions.scored):
        return "equal", text, ""
    return "differs", text, f"by {np.nanmax(np.abs(found.astype('f8') - wanted.astype('f8'))):.3g}"


def main(first, last):
    counts, refusals, wrong = collections.Counter(), collections.Counter(), 0
    for seed in range(first, last):
        outcome, text, said = check(seed)
        counts[outcome] += 1
        if outcome == "refused":
            refusals[" ".join(said.split()[:9])] += 1
        elif outcome != "equal":
            wrong += 1
            if wrong <= 20:
                print(f"{seed}: {outcome} {said}\n    {text}", flush=True)
    for outcome, count in counts.most_common():
        print(f"{count:8} {outcome}")
    for said, count in refusals.most_common(15):
        print(f"{count:16} {said}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*(int(x) for x in sys.argv[1:3])) > 0)
