#!/usr/bin/env python3
"""How long attention over several ranks takes: an event simulation of multihead/ops/attention/relay.cc, and the
bytes and memory of ops/attention/ring.h.

    tools/ring_attention_simulation.py --length 1048576 --ranks 16 64 256 1024 --heads 32 --kv-heads 8 --head-dim 128 \
        --gflops 1000 --gbit 100

The model: a rank works on one chunk at a time at `gflops`; a message takes `latency` and then its bytes at `gbit`; a
rank sends one message at a time and receives one at a time, while it works."""
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
class Link:
    latency: float  # seconds
    bytes_per_second: float


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


def relay(a, link, gflops, keys_pass, products, row_bytes):
    """Seconds and bytes of one pass. A rank asks for the next chunk when it begins to wait for the one before."""
    ready = [[0.0, 0.0] for _ in range(a.ranks)]  # the ends of a rank's last two visits
    sending, receiving = [0.0] * a.ranks, [0.0] * a.ranks
    total_bytes = 0
    own = [a.chunks_of(rank) for rank in range(a.ranks)]
    pair = 2 * products * a.chunk_rows**2 * a.heads * a.head_dim / (gflops * 1e9)  # of chunks, all of one size
    for chunk, path in journeys(a, keys_pass):
        size, arrival = row_bytes * a.rows(chunk), []
        for place, rank in enumerate(path):
            here = ready[rank][0]
            if place > 0:  # from its parent in the tree
                parent = place - (1 << place.bit_length() - 1)
                sender = path[parent]
                start = max(arrival[parent], here, sending[sender], receiving[rank])
                here = start + link.latency + size / link.bytes_per_second
                sending[sender] = receiving[rank] = here
                total_bytes += size
            arrival.append(here)
            pairs = len(own[rank])
            if a.causal:
                pairs = sum((c > chunk if keys_pass else c < chunk) + (c == chunk) / 2 for c in own[rank])
            ready[rank] = [ready[rank][1], max(ready[rank][1], here) + pairs * pair]
    return max(end for _, end in ready), total_bytes


def simulate(a, link, gflops):
    """Seconds and bytes sent by all ranks, forward and backward."""
    keys = a.kv_heads * 2 * a.head_dim
    queries = a.heads * (2 * a.head_dim + 2) * 4
    forward = relay(a, link, gflops, True, 2, keys * a.key_bytes)
    by_keys = relay(a, link, gflops, True, 3, keys * 4)
    by_queries = relay(a, link, gflops, False, 4, queries)  # head after head of a group: as many bytes
    agreement = 2 * (a.ranks - 1)
    return {"forward": forward[0], "backward": by_keys[0] + by_queries[0],
            "bytes": forward[1] + by_keys[1] + by_queries[1] + 2 * agreement}


def operations(a):
    """Of all ranks, forward and backward: 9 products, where one rank alone makes 7."""
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
    args = parser.parse_args()
    print("ranks   rows/rank   MiB/rank   sent/rank     work    forward   backward   efficiency")
    for ranks in args.ranks:
        a = Attention(args.length, ranks, args.heads, args.kv_heads, args.head_dim, args.chunks, not args.full)
        result = simulate(a, Link(args.latency, args.gbit * 125e6), args.gflops)
        work = operations(a) / (args.gflops * 1e9) / ranks
        time = result["forward"] + result["backward"]
        print(f"{ranks:5} {-(-args.length // ranks):11} {memory(a) / 2**20:10.1f} {result['bytes'] / ranks / 1e9:8.2f} GB "
              f"{work:7.2f} s {result['forward']:8.2f} s {result['backward']:8.2f} s {work / time:10.2f}")


if __name__ == "__main__":
    main()
