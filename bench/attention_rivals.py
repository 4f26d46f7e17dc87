#!/usr/bin/env python3
"""Attention of multihead beside PyTorch's and ONNX Runtime's, on the shapes of a report of `multihead bench attention`.

    multihead bench attention --threads 1 --json >report.json
    python bench/attention_rivals.py report.json [--vs torch] [--svg roofline.svg] [--json ratios.json]

All run in this process on the same operands and take turns of 30 ms in random order; a ratio is the median of the
rounds' ratios. Everyone's result, gradients included, is compared with the same in f64. A rival gets the form it likes
best: each variant is tried, the fastest is measured, masks are made beforehand. Peak, read rate and shares are the
report's; the picture needs matplotlib.
"""

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import sys
import time

import numpy as np


class Unsupported(Exception):
    pass


def keep_mask(shape):
    """bool [B or 1, 1, Tq or 1, Tk] of what may meet, or None."""
    queries, keys = shape["queries"], shape["keys"]
    at = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)[None, :]
    keep = None
    if shape["causal"]:
        keep = key <= at
    if shape["window"]:
        keep = (key <= at) & (key > at - shape["window"])
    if keep is not None:
        keep = keep[None, None]
    if shape["lengths"]:
        padding = key[None, None] < np.array(shape["lengths"])[:, None, None, None]
        keep = padding if keep is None else keep & padding
    return keep


def parse(text, direction):
    """A shape of the report: "1x32/8x1/16384x128:bf16:cold" -> what everyone needs to know."""
    sizes, *options = text.split(":")
    batch, heads, length, dim = ([int(n) for n in part.split("/")] for part in sizes.split("x"))
    given = dict(option.partition("=")[::2] for option in options)
    shape = {name: name in given for name in ("causal", "lengths", "bias", "alibi", "lambda", "bf16", "bthd", "cold")}
    shape["alibi"] |= shape["lambda"]  # the same as a function of one's own
    shape.update(batch=batch[0], heads=heads[0], kv_heads=heads[-1], queries=length[0], keys=length[-1], dim=dim[0],
                 direction=direction, window=int(given.get("window", 0)), dropout=float(given.get("dropout", 0)),
                 softcap=float(given.get("softcap", 0)), ring=1)
    if shape["lengths"]:  # spread evenly over 1 to T, in mixed order
        step = next(n for n in range(5, 99) if math.gcd(n, batch[0]) == 1)
        ranks = [(b * step + 3) % batch[0] for b in range(batch[0])]
        shape["lengths"] = [max(1, length[0] * (2 * rank + 1) // (2 * batch[0])) for rank in ranks]
    if shape["cold"]:  # keys and values take turns, so that no call finds them in a cache
        each = 2 * batch[0] * heads[-1] * length[-1] * dim[0] * (2 if shape["bf16"] else 4)
        shape["ring"] = min(max(math.ceil(5.2e8 / each), 2), 64)
    return shape


def operands(shape):
    rng = np.random.default_rng(20261121)
    normal = lambda *sizes: rng.standard_normal(sizes, np.float32)
    q = (shape["batch"], shape["heads"], shape["queries"], shape["dim"])
    k = (shape["batch"], shape["kv_heads"], shape["keys"], shape["dim"])
    arrays = {"query": normal(*q), "key": normal(*k), "value": normal(*k)}
    if shape["direction"] != "forward":
        arrays["d_out"] = normal(*q)
        for b, length in enumerate(shape["lengths"] or ()):
            arrays["d_out"][b, :, length:] = 0  # padding has no gradient
    if shape["bias"]:
        arrays["bias"] = normal(1, shape["heads"], shape["queries"], shape["keys"])
    if shape["alibi"]:
        arrays["slopes"] = 2.0 ** (-8 * np.arange(1, shape["heads"] + 1, dtype=np.float32) / shape["heads"])
    return arrays


def alibi(shape, slopes):
    distance = np.abs(np.arange(shape["queries"])[:, None] + shape["keys"] - shape["queries"] - np.arange(shape["keys"]))
    return (-slopes[:, None, None] * distance)[None].astype(np.float32)


def plain_causal(shape):
    return shape["causal"] and shape["queries"] == shape["keys"] and not shape["window"] and not shape["lengths"]


class Contender:
    def timed(self, call, i):
        begin = time.perf_counter()
        result = call(i)
        return time.perf_counter() - begin, result

    def scope(self, variant):
        return contextlib.nullcontext()


class Multihead(Contender):
    def __init__(self, threads):
        import multihead

        self.mh, self.version = multihead, multihead.__version__
        multihead.set_num_threads(threads)

    def prepare(self, shape, arrays):
        mh, self.shape = self.mh, shape
        rows = lambda a: np.ascontiguousarray(a.transpose(0, 2, 1, 3)) if shape["bthd"] else a
        own = lambda name: mh.tensor(rows(arrays[name])).to("bfloat16" if shape["bf16"] else "float32")
        self.query, self.ring = own("query"), [(own("key"), own("value")) for _ in range(shape["ring"])]
        self.d_out = own("d_out") if "d_out" in arrays else None
        options = {"layout": "bthd" if shape["bthd"] else "bhtd", "softcap": shape["softcap"], "dropout_p": shape["dropout"]}
        masks = [mh.window(shape["window"] - 1, 0)] if shape["window"] else [mh.causal()] if shape["causal"] else []
        if shape["lengths"]:
            masks += [mh.lengths(shape["lengths"]), mh.query_lengths(shape["lengths"])]
        for mask in masks:
            options["mask"] = options["mask"] & mask if "mask" in options else mask
        self.leaves = [self.query, *self.ring[0]]
        if shape["bias"]:
            options["bias"] = mh.tensor(arrays["bias"])
            self.leaves.append(options["bias"])
        slopes = mh.tensor(arrays["slopes"]) if shape["alibi"] else None
        if shape["lambda"]:
            options["score_mod"] = mh.score_mod(lambda s, b, h, i, j: s - slopes[h] * abs(i - j))
        elif shape["alibi"]:
            options["alibi_slopes"] = slopes
        for leaf in self.leaves if shape["direction"] != "forward" else ():
            leaf.requires_grad = True

        def forward(i):
            rng = {"rng": mh.Rng(1)} if shape["dropout"] else {}
            return mh.attention(self.query, *self.ring[i % len(self.ring)], **options, **rng)

        return {"multihead": forward}

    def timed(self, call, i):
        if self.shape["direction"] == "forward":
            return super().timed(call, i)
        for leaf in self.leaves:
            leaf.grad = None
        with self.mh.Tape() as tape:
            begin = time.perf_counter()
            out = call(i)
            if self.shape["direction"] == "backward":
                begin = time.perf_counter()
            tape.backward(out, self.d_out)
            seconds = time.perf_counter() - begin
        return seconds, (out, *(leaf.grad for leaf in self.leaves))

    def output(self, result):
        group = self.shape["heads"] // self.shape["kv_heads"]
        parts = result if isinstance(result, tuple) else (result,)
        arrays = [p.to("float32").numpy() for p in parts[:4]]
        arrays = [a.transpose(0, 2, 1, 3) for a in arrays] if self.shape["bthd"] else arrays
        return [a[:1, : group if i < 2 else 1] for i, a in enumerate(arrays)]


class Torch(Contender):
    def __init__(self, threads):
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        import torch

        self.torch, self.version = torch, torch.__version__
        torch.set_num_threads(threads)

    def prepare(self, shape, arrays):
        """Variants by name: functions of the number of the call, giving out or (out, gradients...)."""
        torch = self.torch
        dtype = torch.bfloat16 if shape["bf16"] else torch.float32
        x = {n: torch.from_numpy(a).to(dtype if a.ndim == 4 else torch.float32) for n, a in arrays.items()}
        if shape["bthd"]:
            x.update({n: x[n].transpose(1, 2).contiguous().transpose(1, 2) for n in ("query", "key", "value")})
        self.ring = [(x["key"], x["value"])]
        while len(self.ring) < shape["ring"]:
            self.ring.append((x["key"].clone(), x["value"].clone()))
        self.shape, self.x, self.direction, self.scopes = shape, x, shape["direction"], {}
        self.leaves = [x["query"], x["key"], x["value"]] + ([x["bias"]] if "bias" in x else [])
        if self.direction != "forward":
            for leaf in self.leaves:
                leaf.requires_grad_()
        forwards = {}
        self.sdpa(forwards)
        self.composed(forwards)
        self.flex(forwards)
        return {name: self.directed(f) for name, f in forwards.items()}

    def directed(self, forward):
        torch, query, d_out = self.torch, self.x["query"], self.x.get("d_out")

        def run_forward(i):
            with torch.no_grad():
                return forward(query, *self.ring[i % len(self.ring)])

        def run_training(i):
            out = forward(query, *self.ring[0])
            return out, *torch.autograd.grad(out, self.leaves, d_out)

        kept = []

        def run_backward(i):
            if not kept:
                kept.append(forward(query, *self.ring[0]))
            return kept[0], *torch.autograd.grad(kept[0], self.leaves, d_out, retain_graph=True)

        return {"forward": run_forward, "backward": run_backward, "training": run_training}[self.direction]

    def sdpa(self, forwards):
        torch, shape, x = self.torch, self.shape, self.x
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if shape["softcap"]:
            return
        masks = {"": None}
        keep = keep_mask(shape)
        causal = plain_causal(shape)
        if shape["bias"] or shape["alibi"]:
            bias = x["bias"] if shape["bias"] else torch.from_numpy(alibi(shape, x["slopes"].numpy()))
            if keep is not None:
                bias = bias.masked_fill(~torch.from_numpy(keep), float("-inf"))
                causal = False
            masks = {"": bias}
        elif keep is not None and not causal:
            flags = torch.from_numpy(keep)
            floats = torch.zeros(flags.shape).masked_fill_(~flags, float("-inf"))
            masks = {", bool mask": flags, ", float mask": floats}
        grouped = shape["heads"] != shape["kv_heads"]

        def variant(mask):
            return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=shape["dropout"], is_causal=causal, enable_gqa=grouped)

        for backend, name in ((SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.MATH, "math")):
            for text, mask in masks.items():
                forwards[name + text] = variant(mask)
                self.scopes[name + text] = lambda backend=backend: sdpa_kernel(backend)
        if shape["lengths"] and not shape["window"]:
            forwards["loop over sequences"] = self.one_by_one(shape, grouped)

    def one_by_one(self, shape, grouped):
        torch = self.torch

        def run(q, k, v):
            parts = []
            for b, length in enumerate(shape["lengths"]):
                part = torch.nn.functional.scaled_dot_product_attention(
                    q[b : b + 1, :, :length], k[b : b + 1, :, :length], v[b : b + 1, :, :length],
                    dropout_p=shape["dropout"], is_causal=shape["causal"], enable_gqa=grouped)
                parts.append(torch.nn.functional.pad(part, (0, 0, 0, shape["queries"] - length)))
            return torch.cat(parts)

        return run

    def composed(self, forwards):
        """Written out, where no backend has the option."""
        torch, shape = self.torch, self.shape
        if not shape["softcap"]:
            return
        keep, cap, group = keep_mask(shape), shape["softcap"], shape["heads"] // shape["kv_heads"]
        excluded = None if keep is None else ~torch.from_numpy(keep)

        def run(q, k, v):
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = cap * torch.tanh(q @ k.transpose(2, 3) * (shape["dim"] ** -0.5 / cap))
            if excluded is not None:
                scores = scores.masked_fill(excluded, float("-inf"))
            return torch.softmax(scores, -1) @ v

        forwards["written out"] = run

    def flex(self, forwards):
        """Compiled; it has no backward on a CPU."""
        torch, shape, x = self.torch, self.shape, self.x
        wanted = shape["softcap"] or shape["alibi"] or shape["window"]
        if not wanted or self.direction != "forward" or shape["dropout"] or shape["bias"]:
            return
        torch._dynamo.reset()  # a shape of its own, not a general form of the last one's
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        offset, window, cap, slopes = shape["keys"] - shape["queries"], shape["window"], shape["softcap"], x.get("slopes")
        if window:
            mask_mod = lambda b, h, i, j: (j <= i + offset) & (j > i + offset - window)
        else:
            mask_mod = lambda b, h, i, j: j <= i + offset
        mod = None
        if shape["alibi"]:
            mod = lambda s, b, h, i, j: s - slopes[h] * torch.abs(i + offset - j)
        elif cap:
            mod = lambda s, b, h, i, j: cap * torch.tanh(s / cap)
        block_mask = None
        if shape["causal"] or window:
            block_mask = create_block_mask(mask_mod, 1, 1, shape["queries"], shape["keys"], device="cpu")
        compiled = torch.compile(flex_attention, dynamic=False)
        grouped = shape["heads"] != shape["kv_heads"]
        forwards["flex_attention, compiled"] = lambda q, k, v: compiled(
            q, k, v, score_mod=mod, block_mask=block_mask, enable_gqa=grouped)

    def scope(self, variant):
        return self.scopes.get(variant, contextlib.nullcontext)()

    def output(self, result):
        """The results of batch 0 and key head 0."""
        group = self.shape["heads"] // self.shape["kv_heads"]
        parts = result if isinstance(result, tuple) else (result,)
        return [p.detach()[:1, : group if i < 2 else 1].float().numpy() for i, p in enumerate(parts[:4])]


class OnnxRuntime(Contender):
    def __init__(self, threads):
        import onnx
        import onnxruntime

        self.onnx, self.ort, self.threads, self.version = onnx, onnxruntime, threads, onnxruntime.__version__
        onnxruntime.set_default_logger_severity(4)

    def session(self, op, inputs, outputs, domain, **attributes):
        """inputs: arrays by name; a blank name leaves one out."""
        helper, types = self.onnx.helper, {"float32": 1, "int32": 6}
        node = helper.make_node(op, [n.strip() for n in inputs], outputs, domain=domain, **attributes)
        graph = helper.make_graph(
            [node], "g",
            [helper.make_tensor_value_info(n, types[str(a.dtype)], a.shape) for n, a in inputs.items() if n.strip()],
            [helper.make_tensor_value_info(n, 1, None) for n in outputs])
        opset = [helper.make_opsetid("", 23 if domain == "" else 17)]
        if domain:
            opset.append(helper.make_opsetid(domain, 1))
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        session = self.ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session, {n: a for n, a in inputs.items() if n.strip()}

    def prepare(self, shape, arrays):
        for what, refused in (("backward", shape["direction"] != "forward"), ("dropout", shape["dropout"] > 0),
                              ("bf16 on the CPU", shape["bf16"])):
            if refused:
                raise Unsupported("no " + what)
        self.shape = shape
        rows = lambda a: np.ascontiguousarray(a.transpose(0, 2, 1, 3)).reshape(a.shape[0], a.shape[2], -1)
        q, k, v = arrays["query"], arrays["key"], arrays["value"]
        self.ring = [(k, v)] + [(k.copy(), v.copy()) for _ in range(shape["ring"] - 1)]
        self.row_ring = [(rows(a), rows(b)) for a, b in self.ring]
        bias = None
        if shape["bias"] or shape["alibi"]:
            bias = arrays["bias"] if shape["bias"] else alibi(shape, arrays["slopes"])
        keep = keep_mask(shape)
        causal = plain_causal(shape)
        if keep is not None and not causal:
            mask = np.where(keep, np.float32(0), np.float32(-np.inf))
            bias = mask if bias is None else bias + mask
        if bias is not None:
            b, h = (bias.shape[0], bias.shape[1])
            bias = np.ascontiguousarray(np.broadcast_to(bias, (b, h, shape["queries"], shape["keys"])), np.float32)
        variants = {}
        for name, make in (("MultiHeadAttention", self.multi_head), ("Attention-23", self.attention23),
                           ("GroupQueryAttention", self.group_query)):
            try:
                made = make(q, rows(q), bias, causal)
                if made:
                    variants[name] = made
            except Exception as error:  # the runtime's own types: it lacks the operator or this form of it
                variants[name] = str(error)
        return variants

    def multi_head(self, q, q_rows, bias, causal):
        shape = self.shape
        if shape["heads"] != shape["kv_heads"] or shape["softcap"]:
            return None
        k, v = self.row_ring[0]
        inputs = {"q": q_rows, "k": k, "v": v}
        if bias is not None:
            inputs.update({" ": q, "  ": q, "bias": bias})
        session, feed = self.session("MultiHeadAttention", inputs, ["o"], "com.microsoft", num_heads=shape["heads"],
                                     unidirectional=int(causal))
        return self.runner(session, feed, self.row_ring)

    def attention23(self, q, q_rows, bias, causal):
        k, v = self.ring[0]
        inputs = {"q": q, "k": k, "v": v}
        if bias is not None:
            inputs["bias"] = bias
        session, feed = self.session("Attention", inputs, ["o"], "", is_causal=int(causal),
                                     softcap=float(self.shape["softcap"]))
        return self.runner(session, feed, self.ring)

    def group_query(self, q, q_rows, bias, causal):
        shape = self.shape
        window = shape["window"] and shape["queries"] == shape["keys"]
        if not (causal or window) or shape["bias"] or shape["alibi"] or shape["lengths"]:
            return None
        k, v = self.row_ring[0]
        empty = np.zeros((shape["batch"], shape["kv_heads"], 0, shape["dim"]), np.float32)
        inputs = {"q": q_rows, "k": k, "v": v, "past_k": empty, "past_v": empty,
                  "last": np.full(shape["batch"], shape["keys"] - 1, np.int32),
                  "total": np.array(shape["keys"], np.int32)}
        session, feed = self.session(
            "GroupQueryAttention", inputs, ["o", "present_k", "present_v"], "com.microsoft", num_heads=shape["heads"],
            kv_num_heads=shape["kv_heads"], softcap=float(shape["softcap"]),
            local_window_size=shape["window"] or -1)
        return self.runner(session, feed, self.row_ring)

    def runner(self, session, feed, ring):
        def run(i):
            feed["k"], feed["v"] = ring[i % len(ring)]
            return session.run(None, feed)[0]

        return run

    def output(self, result):
        shape = self.shape
        if result.ndim == 3:
            result = result.reshape(shape["batch"], shape["queries"], shape["heads"], -1).transpose(0, 2, 1, 3)
        return [np.ascontiguousarray(result[:1, : shape["heads"] // shape["kv_heads"]], np.float32)]


def exact_results(shape, arrays):
    """Out and gradients of batch 0 and key head 0 in f64, written out; None where that would be too large."""
    import torch

    group, keep = shape["heads"] // shape["kv_heads"], keep_mask(shape)
    if shape["dropout"] or group * shape["queries"] * shape["keys"] > 2**25:
        return None
    stored = torch.bfloat16 if shape["bf16"] else torch.float32
    part = lambda name, heads: torch.from_numpy(arrays[name][:1, :heads]).to(stored).double()
    leaves = [part("query", group), part("key", 1), part("value", 1)]
    gradients = shape["direction"] != "forward"
    for leaf in leaves:
        leaf.requires_grad_(gradients)
    scores = leaves[0] @ leaves[1].transpose(2, 3) * shape["dim"] ** -0.5
    if shape["softcap"]:
        scores = shape["softcap"] * torch.tanh(scores / shape["softcap"])
    if shape["bias"]:
        scores = scores + part("bias", group)
    if shape["alibi"]:
        scores = scores + torch.from_numpy(alibi(shape, arrays["slopes"])[:, :group])
    if keep is not None:
        scores = scores.masked_fill(~torch.from_numpy(keep[:1]), float("-inf"))
    out = torch.softmax(scores, -1) @ leaves[2]
    found = [out, *(torch.autograd.grad(out, leaves, part("d_out", group)) if gradients else ())]
    rows = shape["lengths"][0] if shape["lengths"] else shape["queries"]  # padding's are anybody's
    return [a.detach().numpy()[:, :, : rows if i < 2 else None] for i, a in enumerate(found)]


def largest_error(results, exact):
    """Relative to the largest element."""
    error = 0.0
    for got, want in zip(results, exact):
        difference = np.abs(got[:, :, : want.shape[2]] - want).max()
        error = max(error, difference / np.abs(want).max()) if np.isfinite(difference) else math.inf
    return error


class Contest:
    """One contender's fastest variant on one shape."""

    def __init__(self, contender, shape, arrays, exact):
        self.contender, self.calls, self.tried, best = contender, 0, {}, math.inf
        for name, call in contender.prepare(shape, arrays).items():
            if isinstance(call, str):
                self.tried[name] = call[:200]
                continue
            try:
                with contender.scope(name):
                    output = [np.array(a) for a in contender.output(contender.timed(call, 0)[1])]
                    seconds, spent = math.inf, 0
                    while spent < 0.2:
                        t, _ = contender.timed(call, 0)
                        seconds, spent = min(seconds, t), spent + t
            except Exception as error:  # a backend that lacks this form says so in its own way
                self.tried[name] = str(error).strip().split("\n")[0][:200]
                continue
            self.tried[name] = seconds
            if seconds < best:
                best, self.variant, self.call = seconds, name, call
                self.error = largest_error(output, exact) if exact else None
        if best == math.inf:
            raise Unsupported("; ".join(f"{n}: {why}" for n, why in self.tried.items()) or "no such option")

    def burst(self, seconds=0.03):
        """The median of a burst of calls."""
        times = []
        with self.contender.scope(self.variant):
            end = time.perf_counter() + seconds
            first, _ = self.contender.timed(self.call, self.calls)  # brings code and operands back into the caches
            while first <= seconds and (not times or time.perf_counter() < end):
                self.calls += 1
                times.append(self.contender.timed(self.call, self.calls)[0])
        return statistics.median(times or [first])


def compare(contenders, row, seconds, threads):
    """Adds our time in Python and every rival's ratio to a row of the report."""
    shape = parse(row["shape"], row["direction"])
    arrays = operands(shape)
    exact, contests = exact_results(shape, arrays), {}
    row["rivals"] = dict.fromkeys(name for name in contenders if name != "multihead")
    for name, contender in contenders.items():
        try:
            contests[name] = Contest(contender, shape, arrays, exact)
        except Unsupported as why:
            row["rivals"][name] = {"unsupported": str(why)}
    rounds, end = [], time.perf_counter() + seconds
    while len(rounds) < 3 or time.perf_counter() < end:
        times = {}
        for name in random.sample(list(contests), len(contests)):
            times[name] = contests[name].burst()
            if threads > 1:
                time.sleep(0.005)  # worker threads of the one who just ran may still be spinning
        rounds.append(times)
    row["python_seconds"] = statistics.median(times["multihead"] for times in rounds)
    row["python_error"] = contests.pop("multihead").error
    for name, contest in contests.items():
        ratios = sorted(times[name] / times["multihead"] for times in rounds)
        n, spent = len(ratios), statistics.median(times[name] for times in rounds)
        row["rivals"][name] = {
            "variant": contest.variant, "seconds": spent, "gflops": row["flops"] / spent / 1e9,
            "ratio": statistics.median(ratios),  # with an interval that holds the true median in 95 of 100 cases
            "ratio_low": ratios[max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))],
            "ratio_high": ratios[min(n - 1, math.ceil(n / 2 + 0.98 * math.sqrt(n)))],
            "error": contest.error, "tried": contest.tried}


def share_of(row):
    return (row["share_of_read_rate"], "of read rate") if row["memory_bound"] else (row["share_of_peak"], "of peak")


def row_text(row):
    error = lambda e: "-" if e is None else f"{e:.0e}"
    share, what = share_of(row)
    text = (f"{row['shape']:<33} {row['direction']:<8} {row['python_seconds'] * 1e3:9.3f} ms  "
            f"{f'{share:.2f} {what}':<17} error {error(row['python_error']):<6}")
    for name, rival in row["rivals"].items():
        text += f"  {name}: " + ("-" if "unsupported" in rival else
                                 f"{rival['ratio']:.2f}x ({rival['variant']}, error {error(rival['error'])})")
    return text


def summary(report):
    for name, version in report["rivals"].items():
        ratios = [(row["rivals"][name]["ratio"], f"{row['shape']} {row['direction']}") for row in report["shapes"]
                  if "ratio" in row["rivals"].get(name, {})]
        if ratios:
            mean, (least, where) = statistics.geometric_mean(r for r, _ in ratios), min(ratios)
            print(f"against {name} {version}: geometric mean {mean:.2f}x over {len(ratios)} shapes, least {least:.2f}x ({where})")


def draw(report, path):
    """On the left the roofline, on the right a bar per shape: its share of what bounds it, beside its rivals'."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows, limits = report["shapes"], report["calibration"]
    colors = dict(zip(["multihead", *report["rivals"]], ["#0969da", "#d1570a", "#1a7f37"]))
    figure, (roof, bars) = plt.subplots(1, 2, figsize=(15, 2.5 + 0.25 * len(rows)), layout="constrained")
    figure.suptitle(f"Attention, threads: {report['threads']} - {report['cpu']}, {report['isa']}, {report['date']}")
    intensity = [row["flops"] / row["bytes"] for row in rows]
    read, ends = limits["read_gbps"], np.array([min(intensity) / 1.5, max(intensity) * 1.5])
    for unit, peak in (("f32 multiply-adds", limits["fma_gflops"]), (f"bf16 {limits['bf16_unit']}", limits["bf16_gflops"])):
        if peak:
            x = np.unique([*ends, np.clip(peak / read, *ends)])
            roof.plot(x, np.minimum(x * read, peak), color="black", linewidth=1.2)
            roof.annotate(f"{unit}: {peak:.0f} GFLOP/s, reads {read:.0f} GB/s", (x[-1], peak), ha="right", va="bottom", fontsize=8)
    for number, (x, row) in enumerate(zip(intensity, rows), 1):
        for name, rival in row["rivals"].items():
            if "ratio" in rival:
                roof.scatter(x, rival["gflops"], s=12, color=colors[name], alpha=0.8)
        roof.scatter(x, row["gflops"], s=60, color=colors["multihead"], alpha=0.9)
        roof.annotate(str(number), (x, row["gflops"]), ha="center", va="center", fontsize=6, color="white")
    roof.set(xscale="log", yscale="log", xlabel="useful floating-point operations per byte", ylabel="GFLOP/s")
    for place, row in enumerate(rows):
        share = share_of(row)[0]
        bars.barh(place - 0.2, share, 0.4, color=colors["multihead"])
        for i, (name, rival) in enumerate((n, r) for n, r in row["rivals"].items() if "ratio" in r):
            bars.barh(place + 0.12 + 0.2 * i, share * rival["gflops"] / row["gflops"], 0.2, color=colors[name])
            bars.annotate(f"{rival['ratio']:.1f}x", (1.06 + 0.1 * i, place), fontsize=7, va="center", color=colors[name])
    names = [f"{n}  {row['shape']} {row['direction']} {share_of(row)[1]}" for n, row in enumerate(rows, 1)]
    bars.set(yticks=range(len(rows)), yticklabels=names, xlim=(0, 1.25), xlabel="share of the limit, and times faster")
    bars.tick_params(axis="y", labelsize=7)
    bars.invert_yaxis()
    for name, version in {"multihead": report["version"], **report["rivals"]}.items():
        bars.barh(0, 0, color=colors[name], label=f"{name} {version}")
    bars.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=8)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", metavar="REPORT", help="of `bench attention --json`, or of --json here")
    parser.add_argument("--vs", default="torch,onnxruntime", help="rivals: torch, onnxruntime or both with a comma")
    parser.add_argument("--seconds", type=float, default=1, help="time per shape")
    parser.add_argument("--svg", help="write a picture: the roofline, and each shape beside its rivals")
    parser.add_argument("--json", help="write the reports, joined, with the ratios")
    options = parser.parse_args()
    reports = [json.load(open(path)) for path in options.reports]
    report, threads = reports[0], reports[0]["threads"]
    if any(other["threads"] != threads for other in reports):
        sys.exit("attention_rivals: these reports were taken with different numbers of threads")
    os.environ.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    contenders = {}
    for row in report["shapes"] + [row for other in reports[1:] for row in other["shapes"]]:
        if "rivals" not in row:
            if not contenders:
                kinds = {"torch": Torch, "onnxruntime": OnnxRuntime}
                contenders = {"multihead": Multihead(threads), **{name: kinds[name](threads) for name in options.vs.split(",")}}
            compare(contenders, row, options.seconds, threads)
        print(row_text(row), flush=True)
    report["shapes"] = [row for other in reports for row in other["shapes"]]
    versions = {name: contender.version for name, contender in contenders.items() if name != "multihead"}
    report["rivals"] = {name: v for other in [*reports, {"rivals": versions}] for name, v in other.get("rivals", {}).items()}
    summary(report)
    if options.json:
        json.dump(report, open(options.json, "w"), indent=1)
    if options.svg:
        draw(report, options.svg)


if __name__ == "__main__":
    main()
