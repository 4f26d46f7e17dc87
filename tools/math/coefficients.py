"""Coefficients of multihead/kernels/simd/math-inl.h and of Exp2 in attention_tile-inl.h: minimax fits in relative error.

Weighted least squares whose weights grow where the error is large (Lawson); rational functions are made linear
by dividing by the denominator of the round before (Sanathanan-Koerner). Needs mpmath and numpy.
"""

import mpmath as mp
import numpy as np

mp.mp.dps = 40


def nodes(low, high, count):
    k = np.arange(count)
    return low + (high - low) * (0.5 - 0.5 * np.cos(np.pi * (k + 0.5) / count))


def lawson(x, target, weight, powers_top, powers_bottom=(), rounds=400):
    """target(x) ~ sum a_i x^i / (1 + sum b_j x^j), minimising max |weight * error|."""
    lawson_weight = np.full(len(x), 1.0 / len(x))
    bottom = np.ones(len(x))
    best = (np.inf, None)
    top_columns = np.stack([x**p for p in powers_top], 1)
    bottom_columns = np.stack([-target * x**p for p in powers_bottom], 1) if powers_bottom else np.zeros((len(x), 0))
    columns = np.concatenate([top_columns, bottom_columns], 1)
    for _ in range(rounds):
        w = np.sqrt(lawson_weight) * weight / bottom
        scaled = columns * w[:, None]
        norms = np.linalg.norm(scaled, axis=0)
        solution = np.linalg.lstsq(scaled / norms, target * w, rcond=None)[0] / norms
        top, under = solution[: len(powers_top)], solution[len(powers_top) :]
        bottom = 1 + sum((c * x**p for c, p in zip(under, powers_bottom)), np.zeros(len(x)))
        error = np.abs(weight * (top_columns @ top / bottom - target))
        if np.all(bottom > 0) and error.max() < best[0]:
            best = (error.max(), solution)
        lawson_weight *= error + 1e-3 * error.max()
        lawson_weight /= lawson_weight.sum()
    return best


def show(name, fit, split=None):
    error, c = fit
    parts = [c] if split is None else [c[:split], np.concatenate([[1.0], c[split:]])]
    print(f"{name}: error {error:.3g} = {error * 2**24:.3f} half-ulp")
    for part in parts:
        print("   ", ", ".join(f"{float(v):.9g}f" for v in part))


def values(f, x):
    return np.array([float(f(mp.mpf(float(v)))) for v in x])


# exp(r) = 1 + r + r^2 q(r) for |r| <= ln2/2.
r = nodes(-0.3467, 0.3467, 400)
r = r[np.abs(r) > 1e-6]
q = values(lambda v: (mp.exp(v) - 1 - v) / v**2, r)
show("exp q", lawson(r, q, r**2 / np.exp(r), range(5)))

# 2^f = 1 + f p(f) for |f| <= 1/16, and the table of 2^(i/8) whose bits hold i less at the foot of the exponent.
f = nodes(-1 / 16, 1 / 16, 400)
f = f[np.abs(f) > 1e-6]
show("exp2 p", lawson(f, values(lambda v: (mp.mpf(2) ** v - 1) / v, f), np.abs(f) / 2.0**f, range(3)))
print("    ", ", ".join(hex(int(np.float32(2 ** (i / 8)).view(np.uint32)) - (i << 20)) for i in range(8)))

# tanh(x) = x + x^3 p(x^2) for |x| <= 0.625.
x = nodes(1e-4, 0.625, 400)
p = values(lambda v: (mp.tanh(v) - v) / v**3, x)
for degree in (3, 4):
    show(f"tanh p{degree}", lawson(x**2, p, x**3 / np.tanh(x), range(degree + 1)))

# log(1 + f) = f - f^2/2 + f^3 l(f) for 1 + f in [sqrt(1/2), sqrt(2)].
f = nodes(-0.2929, 0.41422, 400)
f = f[np.abs(f) > 1e-5]
l = values(lambda v: (mp.log(1 + v) - v + v * v / 2) / v**3, f)
for degree in (6, 7):
    show(f"log l{degree}", lawson(f, l, np.abs(f**3 / np.log1p(f)), range(degree + 1)))

# Upper tail of the normal distribution over its density's exponential, times e^(LOST a^2): Q(a) e^(a^2/2 + LOST a^2) in
# sixteen pieces of degree 5, the quarters of the octaves of t = a + 1. A piece's variable is t's mantissa less that where
# it starts. The exponential's reduction takes a^2 + n STEP for a^2 + n ln2/4, n = round(-4 a^2/ln2): the rest is the
# smooth LOST a^2 and a factor of the argument of e^(-r/2) = 1 + r p(r). BIAS is what gelu is too large by, measured.
STEP = 2839 / 2**14
LOST = float((mp.log(2) / 4 / STEP - 1) / 2)
BIAS = 6e-9


def rounded_one_by_one(u, target, coefficients, degree):
    """Coefficients in f32, lowest first; those still free make up for the rounding of those before."""
    c = list(coefficients)
    while True:
        rest = (target - sum((v * u**i for i, v in enumerate(c)), np.zeros(len(u)))) / u ** len(c)
        error, free = lawson(u, rest, u ** len(c) / target, range(degree + 1 - len(c)), rounds=60)
        c.append(float(np.float32(free[0])))
        if len(c) > degree:
            return error, c


table, worst = [], 0
for piece in range(16):
    octave, start = 2.0 ** (piece // 4), 1 + piece % 4 / 4
    u = nodes(0, 0.25, 60)
    u = u[u > 1e-5]
    g = values(lambda v: mp.erfc(v / mp.sqrt(2)) / 2 * mp.exp(v * v * (0.5 + LOST)), octave * (start + u) - 1)
    g *= 1 if piece == 0 else 1 - BIAS
    # The best of the first coefficients around the function's value.
    near = np.float32(g[0] + (g[0] - g[1]) / (u[1] - u[0]) * u[0]) * (1 + np.arange(-6, 7) * np.float32(2**-24))
    firsts = [0.5] if piece == 0 else sorted({float(np.float32(v)) for v in near})
    error, c = min(rounded_one_by_one(u, g, [first], 5) for first in firsts)
    table.append(c)
    worst = max(worst, error)
print(f"tail: step {STEP!r}, lost {LOST:.9g}, error {worst:.3g}")
for row in np.roll(np.array(table), 12, 0).T:
    print("   ", ", ".join(f"{v:.9g}f" for v in row))

r = nodes(-0.0869, 0.0869, 400)
r = r[np.abs(r) > 1e-6]
p = values(lambda v: mp.expm1(-v * (mp.mpf(0.5) + LOST)) / v, r)
show("half exp p", lawson(r, p, np.abs(r) / np.exp(-r / 2), range(3)))
