"""Other implementations of attention, as `multihead bench attention --vs` measures them.

Runs as `python3 -c THIS_FILE torch|onnxruntime THREADS` and talks over stdin and stdout: lines of JSON, each
followed by as many bytes of little-endian f32 as its "bytes" says.

  <- {"ready": true, "version": ...}                     or {"error": why not}
  -> {"do": "prepare", "shape": {...}, "tensors": [...]} + tensors, row-major
  <- {"variant": the fastest, "tried": {name: seconds or why not}, "outputs": [...]} + batch 0, key head 0
     or {"unsupported": why}
  -> {"do": "burst", "seconds": ...}                     <- {"seconds": [one per call]}

Every rival gets the form it likes best: each variant is tried, the fastest is measured, masks are made beforehand.
"""

import contextlib
import json
import os
import signal
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


def alibi(shape, slopes):
    distance = np.abs(np.arange(shape["queries"])[:, None] + shape["keys"] - shape["queries"] - np.arange(shape["keys"]))
    return (-slopes[:, None, None] * distance)[None].astype(np.float32)


def plain_causal(shape):
    return shape["causal"] and shape["queries"] == shape["keys"] and not shape["window"] and not shape["lengths"]


class Torch:
    def __init__(self, threads):
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        import torch

        self.torch, self.version = torch, torch.__version__
        torch.set_num_threads(threads)

    def prepare(self, shape, arrays):
        """Variants by name: functions of the number of the call, giving out or (out, gradients...)."""
        torch = self.torch
        dtype = torch.bfloat16 if shape["dtype"] == "bf16" else torch.float32
        x = {n: torch.from_numpy(a).to(dtype if a.ndim == 4 else torch.float32) for n, a in arrays.items()}
        if shape["layout"] == "bthd":
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
        """Of batch 0 and key head 0."""
        group = self.shape["heads"] // self.shape["kv_heads"]
        parts = result if isinstance(result, tuple) else (result,)
        return [p.detach()[:1, : group if i < 2 else 1].float().numpy() for i, p in enumerate(parts[:4])]


class OnnxRuntime:
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
                              ("bf16 on the CPU", shape["dtype"] == "bf16")):
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

    def scope(self, variant):
        return contextlib.nullcontext()

    def output(self, result):
        shape = self.shape
        if result.ndim == 3:
            result = result.reshape(shape["batch"], shape["queries"], shape["heads"], -1).transpose(0, 2, 1, 3)
        return [np.ascontiguousarray(result[:1, : shape["heads"] // shape["kv_heads"]], np.float32)]


def timed(call, i):
    begin = time.perf_counter()
    call(i)
    return time.perf_counter() - begin


class Server:
    def __init__(self, rival, source, sink):
        self.rival, self.source, self.sink = rival, source, sink
        self.call, self.scope, self.calls = None, None, 0

    def send(self, message, arrays=()):
        message["bytes"] = sum(a.nbytes for a in arrays)
        self.sink.write((json.dumps(message) + "\n").encode())
        for a in arrays:
            self.sink.write(np.ascontiguousarray(a).data)
        self.sink.flush()

    def prepare(self, message):
        arrays = {}
        for t in message["tensors"]:
            data = bytearray(4 * int(np.prod(t["shape"])))
            if self.source.readinto(data) != len(data):
                raise EOFError
            arrays[t["name"]] = np.frombuffer(data, np.float32).reshape(t["shape"])
        tried, best, best_time, best_output = {}, None, float("inf"), None
        for name, call in self.rival.prepare(message["shape"], arrays).items():
            if isinstance(call, str):
                tried[name] = call[:200]
                continue
            try:
                with self.rival.scope(name):
                    output = [np.array(a) for a in self.rival.output(call(0))]
                    seconds, spent = float("inf"), 0
                    while spent < 0.2:
                        t = timed(call, self.calls)
                        self.calls += 1
                        seconds, spent = min(seconds, t), spent + t
            except Exception as error:  # a backend that lacks this form says so in its own way
                tried[name] = str(error).strip().split("\n")[0][:200]
                continue
            tried[name] = seconds
            if seconds < best_time:
                best, best_time, best_output, self.call, self.scope = name, seconds, output, call, name
        if best is None:
            raise Unsupported("; ".join(f"{n}: {why}" for n, why in tried.items()) or "no such option")
        compare = best_output if message["shape"]["dropout"] == 0 else []
        self.send({"variant": best, "tried": tried, "outputs": [list(a.shape) for a in compare]}, compare)

    def burst(self, message):
        times = []
        with self.rival.scope(self.scope):
            end = time.perf_counter() + message["seconds"]
            first = timed(self.call, self.calls)  # brings code and operands back into the caches
            if first > message["seconds"]:
                times, end = [first], 0
            self.calls += 1
            while not times or time.perf_counter() < end:
                times.append(timed(self.call, self.calls))
                self.calls += 1
        self.send({"seconds": times})

    def serve(self):
        while line := self.source.readline():
            message = json.loads(line)
            try:
                {"prepare": self.prepare, "burst": self.burst}[message["do"]](message)
            except Unsupported as why:
                self.send({"unsupported": str(why)})


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not disturb the conversation
    name, threads = sys.argv[1], int(sys.argv[2])
    server = Server(None, sys.stdin.buffer, sink)
    try:
        server.rival = {"torch": Torch, "onnxruntime": OnnxRuntime}[name](threads)
    except ImportError as error:
        server.send({"error": str(error)})
        return
    server.send({"ready": True, "version": server.rival.version})
    server.serve()


main()
