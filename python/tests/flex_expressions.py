"""Random score functions over the whole table of operations, traced and run against PyTorch's eager definition.

    python python/tests/flex_expressions.py 0 5000      # seeds; says how many agree, are refused, differ
"""

import random
import sys

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

from multihead._trace import trace
from multihead.torch._flex import _Tracing

SIZES = (2, 3, 11, 13)  # B, H, queries, keys


def _captured():
    g = torch.Generator().manual_seed(0)
    integers = {"i64": 40, "i32": 99, "i16": 999, "i8": 128, "u8": 0}
    dtypes = {"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8}
    tables = {n: torch.randint(-m, m or 256, (24,), generator=g).to(dtypes[n]) for n, m in integers.items() if m}
    tables["u8"] = torch.randint(0, 256, (24,), generator=g).to(torch.uint8)
    tables["mask"] = torch.randint(0, 2, (24,), generator=g).bool()
    tables["f32"] = torch.randn(3, 24, generator=g)
    tables["f64"] = torch.randn(24, generator=g, dtype=torch.float64)
    tables["bf16"] = torch.randn(24, generator=g).bfloat16()
    tables["f16"] = torch.randn(3, generator=g).half()
    tables["number"] = torch.tensor(0.7)
    tables["wide"] = torch.tensor(-1.3, dtype=torch.float64)
    tables["whole"] = torch.tensor(3)
    return tables


def _learnt():
    g = torch.Generator().manual_seed(1)
    learnt = {
        "w": torch.randn(3, 24, generator=g),
        "one": torch.randn((), generator=g),
        "w64": torch.randn(24, generator=g, dtype=torch.float64),
        "wb": torch.randn(24, generator=g).bfloat16(),
    }
    return {name: x.requires_grad_() for name, x in learnt.items()}


CAPTURED = _captured()
LEAVES = (
    "s s s s b h q k (q-k) (q>=k) f32[h,q] f32[h,q-k+12] f32[h][k] f64[k] bf16[q] f16[h] i64[k] i32[k] i16[q] i8[q] "
    "u8[k] mask[q] number wide whole w[h,k] w[h,q-k+12] w[1][q] one w64[q] wb[k] 0 1 2 -1 -2 7 0.5 -1.25 0.3 2.0 True"
).split()
DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
CASTS = "int long short char byte bool float half double bfloat16".split()
FUNCTIONS = "tanh sigmoid sin cos erf floor ceil round trunc abs sign neg square exp2 tan relu".split()
ACTIVATIONS = "silu gelu softplus logsigmoid elu leaky_relu relu sigmoid tanh".split()


class Expressions:
    """Source text of expressions, from one generator of random numbers."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        of = self.random.choice
        x, number, condition = self._deeper, self._number, self._condition
        positive = lambda d: f"(torch.abs({x(d)})+0.5)"
        self._forms = [
            *[lambda d: f"({x(d)} {of('+-*')} {x(d)})"] * 4,
            lambda d: f"({x(d)} / {of([number(), positive(d)])})",
            lambda d: f"({x(d)} {of(['//', '%'])} {of([number(), number(), '(i64[k].abs()+1)', '(i32[q].abs()+1)'])})",
            lambda d: f"torch.{of(['minimum', 'maximum', 'max', 'min'])}({x(d)}, {x(d)})",
            lambda d: f"torch.where({condition(d)}, {x(d)}, {x(d)})",
            lambda d: f"({x(d)}).where({condition(d)}, {x(d)})",
            lambda d: f"({x(d)}).to({of(['dtype=', '', ''])}torch.{of(DTYPES)})",
            lambda d: f"({x(d)}).{of(CASTS)}()",
            *[lambda d: f"torch.{of(FUNCTIONS)}({x(d)})"] * 4,
            lambda d: f"torch.{of(['exp', 'expm1', 'exp2'])}(-torch.abs({x(d)}))",
            lambda d: f"torch.{of(['log', 'log2', 'log1p', 'sqrt', 'rsqrt', 'reciprocal'])}{positive(d)}",
            lambda d: f"torch.nn.functional.{of(ACTIVATIONS)}({x(d)})",
            lambda d: f"torch.nn.functional.gelu({x(d)}, approximate='tanh')",
            lambda d: f"({x(d)}).clamp({of(['-1', '-0.5', 'min=0', 'max=2.5', '-2, 2', '-1.5, 1', 'number'])})",
            lambda d: f"({x(d)}) ** {of(['2', '3', '0', '1', '2.0', '1.0'])}",
            lambda d: f"{positive(d)} ** {of(['0.5', '-0.5', '1.5', '-1', '-2', '2.5'])}",
            lambda d: f"{of(['2.0', '0.5', '1.7'])} ** ({x(d)})",
            lambda d: f"(({x(d)}) {of(['<<', '>>'])} {of('123')})",
            lambda d: f"(({x(d)}) {of('&|^')} ({x(d)}))",
            lambda d: f"(~({x(d)}))",
            condition,
            lambda d: f"torch.div({x(d)}, {number()}, rounding_mode={of(['None', repr('floor'), repr('trunc')])})",
            lambda d: f"torch.fmod({x(d)}, {number()})",
            lambda d: f"torch.{of(['add', 'sub'])}({x(d)}, {x(d)}, alpha={of('23')})",
            lambda d: f"({x(d)}).masked_fill({condition(d)}, {of(['0', '1.5', '-2'])})",
            lambda d: f"({x(d)}).new_{of(['ones(())', 'zeros((), dtype=torch.float32)', 'full((), 2.5)'])}",
            lambda d: f"torch.logical_{of(['and', 'or', 'xor'])}({x(d)}, {x(d)})",
            lambda d: f"({x(d)}).{of(['detach()', 'any()', 'all()', 'clone()', 'unsqueeze(-1).squeeze(-1)'])}",
        ]

    def _deeper(self, depth):
        return self.text(depth - 1)

    def _number(self):
        return self.random.choice(["1", "2", "3", "5", "-2", "-3", "0.5", "1.5", "-0.7", "0.3"])

    def _condition(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < 0.7:
            comparison = self.random.choice(["<", "<=", ">", ">=", "==", "!="])
            return f"({self.text(max(depth - 1, 0))} {comparison} {self.text(max(depth - 1, 0))})"
        if kind < 0.85:
            return f"({self._condition(depth - 1)} {self.random.choice('&|^')} {self._condition(depth - 1)})"
        return f"(~{self._condition(depth - 1)})"

    def text(self, depth):
        if depth <= 0 or self.random.random() < 0.1:
            return self.random.choice(LEAVES)
        return self.random.choice(self._forms)(depth)


def by_definition(function, scores, d, learnt):
    """(results, gradients of scores and of `learnt`) under PyTorch's vmap and autograd; None: there are none."""
    at = [torch.arange(n) for n in scores.shape]
    with TransformGetItemToIndex():
        y = _vmap_for_bhqkv(function, prefix=(0,))(scores, *at)
    if y.shape != scores.shape:
        raise TypeError("not one number per score")
    y = y.to(scores.dtype)
    if not y.requires_grad:
        return y, None, [None] * len(learnt)
    gradients = torch.autograd.grad(y, [scores, *learnt], d, allow_unused=True)
    return y.detach(), gradients[0], gradients[1:]


def traced(function, scores, d):
    """The same by our program, with [(captured tensor, gradient)]."""
    score = "f64" if scores.dtype is torch.float64 else "f32"
    program, learnt = trace(function, "test", True, _Tracing(), score=score, typed=True)
    turned = [x.detach().transpose(-1, -2).contiguous().numpy() for x in (scores, d)]
    y, dx, sums = program.differentiate(*turned)
    program.raise_faults("test")
    sums, gradients = torch.tensor(sums, dtype=torch.float64), []
    for x in learnt:
        gradients.append((x, sums[: x.numel()].reshape(x.shape).to(x.dtype)))
        sums = sums[x.numel() :]
    return torch.from_dlpack(y).transpose(-1, -2), torch.from_dlpack(dx).transpose(-1, -2), gradients


def _gradient_of(leaf, gradients):
    """A tensor read directly and through views of it."""
    total = torch.zeros_like(leaf, requires_grad=False)
    for x, g in gradients:
        if x is leaf:
            total += g
        elif not x.is_leaf:
            (part,) = torch.autograd.grad(x, leaf, g, allow_unused=True, retain_graph=True)
            total += 0 if part is None else part
    return total


def _far(a, b, tolerance):
    a, b = a.double(), b.double()
    near = ((a - b).abs() <= tolerance * (1 + b.abs())) | (a == b) | (a.isnan() & b.isnan())
    return int((~near).sum())


def compare(seed, depth):
    """(what happened, the expression, what differs)."""
    expressions = Expressions(seed)
    text = expressions.text(depth)
    dtype = expressions.random.choice([torch.float32, torch.float32, torch.float32, torch.float64])
    learnt = _learnt()
    function = eval("lambda s, b, h, q, k: " + text, {**CAPTURED, **learnt, "torch": torch})
    g = torch.Generator().manual_seed(seed)
    scores = (torch.randint(-12, 13, SIZES, generator=g) / 4).to(dtype).requires_grad_()
    d = torch.randn(SIZES, generator=g, dtype=dtype)
    theirs = ours = error = refusal = None
    try:
        theirs = by_definition(function, scores, d, list(learnt.values()))
    except Exception as e:  # whatever PyTorch has no answer to
        error = e
    try:
        ours = traced(function, scores, d)
    except (TypeError, AttributeError, RuntimeError, IndexError, OverflowError, ZeroDivisionError) as e:
        refusal = e
    if refusal is not None:
        return ("refused", text, str(refusal)) if error is None else ("both refuse", text, None)
    if error is not None:
        return "runs here alone", text, str(error)
    coarse = any(word in text for word in ("half", "f16", "bfloat16", "wb"))
    found = []
    if _far(ours[0], theirs[0], 1e-2 if coarse else 1e-5) > 2:  # a last bit may push a number over a step
        found.append("results")
    if theirs[1] is not None and _far(ours[1], theirs[1], 3e-2 if coarse else 2e-5) > 2:
        found.append("gradients of scores")
    for name, x in learnt.items():
        want = theirs[2][list(learnt).index(name)]
        size = 1 if want is None else want.detach().abs().max().item() + 1  # sums of 16 bits round by their largest
        if want is not None and _far(_gradient_of(x, ours[2]) / size, want / size, 2e-2 if coarse else 1e-5):
            found.append(f"gradient of {name}")
    return ("differ" if found else "agree"), text, found


if __name__ == "__main__":
    counts = {}
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        outcome, text, found = compare(seed, 1 + seed % 4)
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome == "differ":
            print(seed, text, found)
    print(counts)
