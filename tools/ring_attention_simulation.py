#!/usr/bin/env python3
"""How long attention over several ranks takes: an event simulation of multihead/ops/attention/ring/relay.cc, and the
bytes and memory of ops/attention/ring/ring.h.

    tools/ring_attention_simulation.py --length 1048576 --ranks 16 64 256 1024 --heads 32 --kv-heads 8 --head-dim 128 \
        --gflops 1000 --gbit 100

The model: a rank works on one chunk at a time at `gflops`, or its share of `cores` cores; a message takes `latency` and
then its bytes at `gbit`; a rank sends one message at a time and receives one at a time, while it works or, with
--no-overlap, while it waits."""
import argparse
from dataclasses import dataclass


@dataclass
class Attention:
    length: int
    ranks: int
    heads: int
    kv_heads: int
    head_dim: int
    chunks_per_rank: int = 4
    causal: bool = True
    key_bytes: int = 4  # of a number of keys and values in the forward pass

    @property
    def chunk_rows(self):
        blocks = -(-self.length // 256)
        return 256 * max(1, -(-blocks // (self.ranks * self.chunks_per_rank)))

    @property
    def chunks(self):
        return -(-self.length // self.chunk_rows)

    def rows(self, chunk):
        return min(self.length, (chunk + 1) * self.chunk_rows) - chunk * self.chunk_rows

    def owner(self, chunk):
        place = chunk % self.ranks
        return place if chunk // self.ranks % 2 == 0 else self.ranks - 1 - place

    def chunks_of(self, rank):
        rounds = range(-(-self.chunks // self.ranks))
        numbers = (r * self.ranks + (rank if r % 2 == 0 else self.ranks - 1 - rank) for r in rounds)
        return [c for c in numbers if c < self.chunks]


@dataclass
class Machines:
    gflops: float  # of a core
    latency: float  # seconds
    bytes_per_second: float  # of a rank's link, each way
    cores: float = float("inf")  # that all ranks share; as many as ranks and no more: a core each
    overlap: bool = True  # messages travel while their ranks compute; else only while both wait


def journeys(a, keys_pass):
    """The chunks in the order in which they pass, and the ranks that see each, the owner first."""
    own = [a.chunks_of(rank) for rank in range(a.ranks)]

    def meets(rank, chunk):
        if not own[rank]:
            return False
        return not a.causal or (own[rank][-1] >= chunk if keys_pass else own[rank][0] <= chunk)

    for chunk in range(a.chunks):
        first = a.owner(chunk)
        others = [(first + step) % a.ranks for step in range(1, a.ranks)]
        yield chunk, [first] + [rank for rank in others if meets(rank, chunk)]


def relay(a, machines, keys_pass, products, row_bytes):
    """Seconds and bytes of one pass where each rank has a core. A rank asks for the next chunk when it begins to wait for the one before."""
    if machines.cores < a.ranks or not machines.overlap:
        return shared_relay(a, machines, keys_pass, products, row_bytes)
    ready = [[0.0, 0.0] for _ in range(a.ranks)]  # the ends of a rank's last two visits
    sending, receiving = [0.0] * a.ranks, [0.0] * a.ranks
    total_bytes = 0
    own = [a.chunks_of(rank) for rank in range(a.ranks)]
    pair = 2 * products * a.chunk_rows**2 * a.heads * a.head_dim / (machines.gflops * 1e9)  # of chunks, all of one size
    for chunk, path in journeys(a, keys_pass):
        size, arrival = row_bytes * a.rows(chunk), []
        for place, rank in enumerate(path):
            here = ready[rank][0]
            if place > 0:  # from its parent in the tree
                parent = place - (1 << place.bit_length() - 1)
                sender = path[parent]
                start = max(arrival[parent], here, sending[sender], receiving[rank])
                here = start + machines.latency + size / machines.bytes_per_second
                sending[sender] = receiving[rank] = here
                total_bytes += size
            arrival.append(here)
            pairs = len(own[rank])
            if a.causal:
                pairs = sum((c > chunk if keys_pass else c < chunk) + (c == chunk) / 2 for c in own[rank])
            ready[rank] = [ready[rank][1], max(ready[rank][1], here) + pairs * pair]
    return max(end for _, end in ready), total_bytes


class Message:
    """Travels from when both sides have asked for it, one at a time on each of the two links."""

    def __init__(self, sender, receiver, seconds, ready):
        self.sender, self.receiver, self.left, self.ready = sender, receiver, seconds, ready
        self.asked, self.done = 0, False

    def ask(self):
        self.asked += 1
        if self.asked == 2:
            self.ready.append(self)


def visits(path, messages, rank):
    """A rank's place in a journey: the message that brings the chunk, and those that pass it on."""
    place = path.index(rank)
    step = 1 if place == 0 else 2 << place.bit_length() - 1
    onward = []
    while place + step < len(path):
        onward.append(messages[path[place + step]])
        step *= 2
    return messages.get(rank), onward


def program(stops):
    """Mimics relay() on a rank: yields seconds to compute, or messages to wait for."""

    def start(stop):
        message, onward, _ = stop
        for each in onward if message is None else [message]:
            each.ask()

    if stops:
        start(stops[0])
    for n, (message, onward, seconds) in enumerate(stops):
        if n + 1 < len(stops):
            start(stops[n + 1])
        if message is not None:
            yield [message]
            for each in onward:
                each.ask()
        yield seconds
        yield onward


def play(programs, ready, machines):
    """Seconds until all programs have ended. Cores and links are shared as time goes on."""
    now, running, waiting = 0.0, {}, {}

    def go_on(rank):
        for step in programs[rank]:
            if isinstance(step, float):
                if step > 0:
                    running[rank] = step
                    return
            elif not all(m.done for m in step):
                waiting[rank] = step
                return

    for rank in range(len(programs)):
        go_on(rank)
    while running or waiting:
        sending, receiving, moving = set(), set(), []
        for m in ready:
            free = m.sender not in sending and m.receiver not in receiving
            if free and (machines.overlap or not {m.sender, m.receiver} & running.keys()):
                moving.append(m)
            sending.add(m.sender), receiving.add(m.receiver)
        speed = min(1.0, machines.cores / max(1, len(running)))
        step = min([left / speed for left in running.values()] + [m.left for m in moving])
        now += step
        for m in moving:
            m.left -= step
            m.done = m.left <= 1e-12
        ready[:] = [m for m in ready if not m.done]
        for rank in list(running):
            running[rank] -= step * speed
            if running[rank] <= 1e-12:
                del running[rank]
                go_on(rank)
        for rank in [r for r, needed in waiting.items() if all(m.done for m in needed)]:
            del waiting[rank]
            go_on(rank)
    return now


def shared_relay(a, machines, keys_pass, products, row_bytes):
    """The same where ranks share cores or wait for their messages, followed event by event."""
    stops, ready = [[] for _ in range(a.ranks)], []
    own = [a.chunks_of(rank) for rank in range(a.ranks)]
    pair = 2 * products * a.chunk_rows**2 * a.heads * a.head_dim / (machines.gflops * 1e9)  # of chunks of one size
    total_bytes = 0
    for chunk, path in journeys(a, keys_pass):
        size = row_bytes * a.rows(chunk)
        total_bytes += size * (len(path) - 1)
        seconds = machines.latency + size / machines.bytes_per_second
        here = {}
        for place, rank in enumerate(path[1:], 1):
            here[rank] = Message(path[place - (1 << place.bit_length() - 1)], rank, seconds, ready)
        for rank in path:
            pairs = len(own[rank])
            if a.causal:
                pairs = sum((c > chunk if keys_pass else c < chunk) + (c == chunk) / 2 for c in own[rank])
            stops[rank].append((*visits(path, here, rank), float(pairs * pair)))
    return play([program(s) for s in stops], ready, machines), total_bytes


def simulate(a, machines):
    """Seconds and bytes sent by all ranks, forward and backward."""
    keys = a.kv_heads * 2 * a.head_dim
    queries = a.heads * (2 * a.head_dim + 2) * 4
    forward = relay(a, machines, True, 2, keys * a.key_bytes)
    by_keys = relay(a, machines, True, 3, keys * 4)
    by_queries = relay(a, machines, False, 4, queries)  # head after head of a group: as many bytes
    agreement = 2 * (a.ranks - 1)
    return {"forward": forward[0], "backward": by_keys[0] + by_queries[0],
            "bytes": forward[1] + by_keys[1] + by_queries[1] + 2 * agreement}


def operations(a):
    """Counts all ranks, forward and backward: 9 products, where one rank alone makes 7."""
    return 2 * 9 * a.length**2 / (2 if a.causal else 1) * a.heads * a.head_dim


def memory(a):
    """Bytes of a rank: its rows of query, key, value, out and their gradients, and two chunks of what passes."""
    rows = max(sum(map(a.rows, a.chunks_of(rank))) for rank in range(a.ranks))
    own = rows * 4 * (a.heads + a.kv_heads) * a.head_dim * 4
    return own + 2 * a.chunk_rows * a.kv_heads * (2 * a.head_dim + 2) * 4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=65536)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--chunks", type=int, default=4, help="of a rank")
    parser.add_argument("--full", action="store_true", help="no causal mask")
    parser.add_argument("--gflops", type=float, default=100, help="of a rank")
    parser.add_argument("--gbit", type=float, default=10)
    parser.add_argument("--latency", type=float, default=20e-6, help="seconds")
    parser.add_argument("--cores", type=float, default=float("inf"), help="of all ranks together, if they share a machine")
    parser.add_argument("--no-overlap", action="store_true", help="messages travel only while both ranks wait")
    args = parser.parse_args()
    print("ranks   rows/rank   MiB/rank   sent/rank     work    forward   backward   efficiency")
    for ranks in args.ranks:
        a = Attention(args.length, ranks, args.heads, args.kv_heads, args.head_dim, args.chunks, not args.full)
        result = simulate(a, Machines(args.gflops, args.latency, args.gbit * 125e6, args.cores, not args.no_overlap))
        work = operations(a) / (args.gflops * 1e9) / ranks
        time = result["forward"] + result["backward"]
        print(f"{ranks:5} {-(-args.length // ranks):11} {memory(a) / 2**20:10.1f} {result['bytes'] / ranks / 1e9:8.2f} GB "
              f"{work:7.2f} s {result['forward']:8.2f} s {result['backward']:8.2f} s {work / time:10.2f}")


if __name__ == "__main__":
    main()
