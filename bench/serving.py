#!/usr/bin/env python3
"""`multihead serve` as its clients see it: what is the same in company, what crowds cost, how fast it answers.

  bench/serving.py company LANGUAGE_MODEL ENCODER    answers alone, then among 64 that join, leave and cancel, compared
  bench/serving.py crowd LANGUAGE_MODEL ENCODER      256 streams, 64 read a byte a second, 64 vanish: memory, threads, pauses
  bench/serving.py rates LANGUAGE_MODEL ENCODER      first answer after the start, texts and tokens a second

Only Python's standard library is needed. Options: --multihead PROGRAM, --seconds N (crowd), --weights WORD... and --isas WORD... (company).
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import random
import re
import resource
import socket
import statistics
import subprocess
import threading
import time

WORDS = "the river town was old and quiet until one winter morning a stranger came with letters for everyone".split()
ANIMAL = {"type": "object", "additionalProperties": False, "required": ["legs", "sound"],
          "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 8}, "sound": {"enum": ["meow", "woof"]}}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
    "additionalProperties": False}}}


class Server:
    def __init__(self, args, *flags, isa=""):
        environment = {**os.environ, **({"MULTIHEAD_ISA": isa} if isa else {})}
        self.process = subprocess.Popen(
            [args.multihead, "serve", f"lm={args.language_model}", f"embed={args.encoder}", "--port", "0", "--json", "--quiet",
             "--max-queue", "4096", *map(str, flags)], stdout=subprocess.PIPE, text=True, env=environment)
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text[:300]!r}")
        return text

    def send(self, path, body):
        """A connection on which a request has been sent."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=1200)
        data = json.dumps(body).encode()
        client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        return client

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def active(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return sum(int(n) for n in re.findall(r"^multihead_requests_active\S* (\d+)$", text, re.M))


def text_of(number, words):
    draw = random.Random(number)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def requests():
    """What is compared: texts with log-probabilities, chats, answers that must fit, calls, vectors."""
    list_ = []
    for i in range(8):
        list_.append(("/v1/completions", {"model": "lm", "prompt": text_of(i % 4, 10 + 40 * (i % 4)) + text_of(i, 5),
                                          "max_tokens": 6 + i, "seed": i, "temperature": i % 2 * 0.9, "logprobs": 5}))
    for i in range(4):
        chat = {"model": "lm", "messages": [{"role": "user", "content": text_of(i, 20)}], "seed": i, "max_tokens": 24,
                "logprobs": True, "top_logprobs": 3, "frequency_penalty": i % 2}
        form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": ANIMAL}}
        list_.append(("/v1/chat/completions", chat))
        list_.append(("/v1/chat/completions", {**chat, "response_format": form}))
        list_.append(("/v1/chat/completions", {**chat, "tools": [TOOL], "tool_choice": "required"}))
    list_.append(("/v1/completions", {"model": "lm", "prompt": text_of(9, 80), "echo": True, "max_tokens": 2, "logprobs": 1,
                                      "temperature": 0}))
    for i in range(11):
        list_.append(("/v1/embeddings", {"model": "embed", "input": [text_of(i + j, 3 + 20 * (j % 3)) for j in range(i % 4 + 1)]}))
    return list_


def comparable(text):
    return re.sub(rb'"(id|created)":("[^"]*"|\d+)', b"", text)


def company(args):
    checked = requests()
    differences = compared = 0
    for weights in args.weights:
        flags = ["--weights", weights]
        alone = answers_alone(args, flags, checked)
        for isa in args.isas:
            other = answers_alone(args, flags, checked, isa)
            wrong = [place for place, answer in enumerate(other) if answer != alone[place]]
            print(f"{weights}, {isa}: {len(checked)} answers, {len(wrong)} differ {wrong}", flush=True)
            compared += len(checked)
            differences += len(wrong)
        for threads, chunk, cache in ((1, 512, 0), (2, 32, 512), (3, 512, 512), (8, 32, 0)):
            with Server(args, *flags, "--parallel", 16, "--prompt-chunk", chunk, "--cache-memory", cache, "--threads",
                        threads) as server:
                for warmth in ("cold", "warm"):
                    wrong = among_others(server, checked, alone, threads)
                    print(f"{weights}, {threads} threads, chunks of {chunk}, cache of {cache} MB, {warmth}: "
                          f"{len(checked)} answers, {len(wrong)} differ {wrong}", flush=True)
                    compared += len(checked)
                    differences += len(wrong)
    print(f"{compared} answers compared, {differences} differ")
    return differences > 0


def answers_alone(args, flags, checked, isa=""):
    with Server(args, *flags, "--parallel", 1, "--cache-memory", 0, "--threads", 1, isa=isa) as server:
        return [comparable(server.ask(*one)) for one in checked]


def among_others(server, checked, alone, seed):
    """Asks everything at once and out of order, among as many whose clients leave sooner or later."""
    draw = random.Random(seed)

    def leave(number):
        time.sleep(number % 8 * 0.1)
        body = {"model": "lm", "prompt": text_of(number % 5, 30), "max_tokens": 200, "stream": True, "n": 1 + number % 2}
        client = server.send("/v1/completions", body)
        if number % 3:
            client.recv(1 + number)
        client.close()

    def join(place):
        time.sleep(place % 5 * 0.2)
        return place, comparable(server.ask(*checked[place]))

    places = list(range(len(checked)))
    draw.shuffle(places)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        leaving = [pool.submit(leave, i) for i in range(64 - len(checked))]
        answers = list(pool.map(join, places))
        for one in leaving:
            one.result()
    return [place for place, answer in answers if answer != alone[place]]


def pauses_of(server, number, tokens, stop):
    """The seconds between pieces of streams, one after the other until `stop`."""
    pauses = []
    while not stop.is_set():
        client = server.send("/v1/completions", {"model": "lm", "prompt": text_of(number, 4), "max_tokens": tokens, "seed": number,
                                                 "stream": True})
        last, buffer = None, b""
        while b"[DONE]" not in buffer and b"error" not in buffer:
            part = client.recv(65536)
            if not part:
                break
            buffer = (buffer + part)[-200:]
            if b"data:" not in part:
                continue  # the head comes before the request's turn
            now = time.monotonic()
            if last is not None:
                pauses.append(now - last)
            last = now
        client.close()
    return pauses


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def crowd(args):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    with Server(args, "--parallel", 32, "--threads", args.threads, "--cache-memory", 64) as server:
        begin = server.processor_seconds(), time.monotonic()
        time.sleep(10)
        idle = (server.processor_seconds() - begin[0]) / (time.monotonic() - begin[1])
        readings = []
        for is_bad in (False, True):
            stop = threading.Event()
            with concurrent.futures.ThreadPoolExecutor(256) as pool:
                good = [pool.submit(pauses_of, server, i, 12, stop) for i in range(128)]
                bad = [pool.submit(slow, server, i, stop) for i in range(64 * is_bad)]
                bad += [pool.submit(vanish, server, i, stop) for i in range(64 * is_bad)]
                time.sleep(args.seconds if is_bad else min(args.seconds, 120))
                peak, threads = server.resident(), server.threads()
                stop.set()
                pauses = [pause for one in good for pause in one.result()]
                for one in bad:
                    one.result()
            deadline = time.monotonic() + 30
            while server.active() > 0 and time.monotonic() < deadline:
                time.sleep(0.05)
            readings.append(percentile(pauses, 0.99))
            print(f"{'with' if is_bad else 'without'} bad clients: {len(pauses)} pauses, median {statistics.median(pauses):.3f} s, "
                  f"p99 {readings[-1]:.3f} s; resident {peak} kB, {threads} threads; left over: {server.active()} requests, "
                  f"{server.resident()} kB, {server.threads()} threads", flush=True)
    print(f"idle: {idle * 100:.2f} % of a core; p99 with the bad / without {readings[1] / readings[0]:.2f}")


def slow(server, number, stop):
    """Reads a byte a second."""
    client = server.send("/v1/completions", {"model": "lm", "prompt": text_of(number, 4), "max_tokens": 100, "stream": True})
    while not stop.wait(1):
        if not client.recv(1):
            break
    client.close()


def vanish(server, number, stop):
    draw = random.Random(number)
    while not stop.is_set():
        client = server.send("/v1/completions", {"model": "lm", "prompt": text_of(number, 4), "max_tokens": 200, "stream": True})
        stop.wait(draw.random() * 2)
        client.close()


def rates(args):
    starts = []
    for _ in range(5):
        begin = time.monotonic()
        with Server(args, "--threads", args.threads) as server:
            server.ask("/v1/embeddings", {"model": "embed", "input": "a cat"})
            starts.append(time.monotonic() - begin)
    print(f"first answer {min(starts):.3f} s after the start, median {statistics.median(starts):.3f} s")
    with Server(args, "--threads", args.threads, "--cache-memory", 0) as server:
        texts = [text_of(i, 12) for i in range(4096)]
        for size in (1, 8):
            bodies = [{"model": "embed", "input": texts[i:i + size], "encoding_format": "base64"}
                      for i in range(0, 1024 * min(size, 4), size)]
            begin = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                list(pool.map(lambda body: server.ask("/v1/embeddings", body), bodies))
            seconds = time.monotonic() - begin
            print(f"32 clients, {size} texts a request: {len(bodies) * size / seconds:.0f} texts/s")
        for clients in (1, 8):
            begin = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                list(pool.map(lambda i: server.ask("/v1/completions", {
                    "model": "lm", "prompt": text_of(i, 12), "max_tokens": 64, "temperature": 0, "logit_bias": {"0": -100, "2": -100}}),
                    range(clients)))
            print(f"{clients} streams: {clients * 64 / (time.monotonic() - begin):.1f} tokens/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["company", "crowd", "rates"])
    parser.add_argument("language_model")
    parser.add_argument("encoder")
    parser.add_argument("--multihead", default="build/release/multihead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--weights", nargs="+", default=["stored", "f32", "int8", "q8", "q4"])
    parser.add_argument("--isas", nargs="*", default=["avx2", "baseline"], help="instruction sets whose answers are compared too")
    args = parser.parse_args()
    return {"company": company, "crowd": crowd, "rates": rates}[args.what](args)


if __name__ == "__main__":
    raise SystemExit(main())
