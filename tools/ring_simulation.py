#!/usr/bin/env python3
"""Step times of training on many ranks, simulated message by message (docs/distributed.md).

    tools/ring_simulation.py step --weights 4.9e6 --shard-seconds .12 --ranks 4 --bandwidth 125e6 --latency 50e-6
    tools/ring_simulation.py table            16 to 1,024 ranks, and one million tokens of context

A rank computes its shards, exchanges slices of the gradient along the tree of train/parallel/shard_tree.cc, updates its
slice of the weights and passes it round the ring. Every rank has one link, which carries one message at a time in each
direction at `bandwidth` bytes per second; a message takes `latency` seconds besides. Buckets of the gradient leave while the
backward goes on. Ranks on one machine share its cores: give --shard-seconds as they are when all cores are busy, for cores
slow each other down (threads of one core, memory), and --stack, for TCP takes processors from them.
"""

import argparse
from dataclasses import dataclass, field

import ring_attention_simulation


@dataclass
class Machine:
    bandwidth: float = 1.25e8  # bytes/s of a rank's link, each way
    latency: float = 50e-6  # s per message
    memory: float = 8e9  # bytes/s at which a rank copies and adds
    cores_share: float = 1.0  # of a rank: 1/2 where two ranks take turns on a core
    stack: float = float("inf")  # bytes that go through the network's software in a second of a core, both ends together


@dataclass
class Node:
    begin: int
    end: int
    first: int
    last: int
    left: "Node" = None
    right: "Node" = None
    holder: list = field(default_factory=list)


class Tree:
    """As ShardTree: nodes in post-order, with the rank that holds each slice of each node."""

    def __init__(self, shards, ranks):
        self.starts = [shards * r // ranks for r in range(ranks + 1)]
        self.nodes = []
        root = self._build(0, shards)
        self._place(root, list(range(ranks)))

    def _rank_of(self, shard):
        low, high = 0, len(self.starts) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.starts[middle] <= shard else (low, middle)
        return low

    def _build(self, begin, end):
        node = Node(begin, end, self._rank_of(begin), self._rank_of(end - 1))
        if end - begin > 1 and node.first != node.last:  # below, all is local
            half = 1 << ((end - begin - 1).bit_length() - 1)
            node.left, node.right = self._build(begin, begin + half), self._build(begin + half, end)
        self.nodes.append(node)
        return node

    def _place(self, node, holder):
        node.holder = holder
        if node.left is None:
            return
        for child in (node.left, node.right):
            count = child.last - child.first + 1
            self._place(
                child, [h if child.first <= h <= child.last else child.first + k % count for k, h in enumerate(holder)]
            )


class Links:
    """Messages in flight: when each link is free again, each way."""

    def __init__(self, ranks, machine):
        self.out, self.into = [0.0] * ranks, [0.0] * ranks
        self.machine, self.bytes = machine, 0.0

    def arrival(self, source, target, size, ready):
        begin = max(ready, self.out[source], self.into[target])
        self.out[source] = self.into[target] = begin + size / self.machine.bandwidth
        self.bytes += size
        return self.out[source] + self.machine.latency


def buckets_of(weights, ranks):
    """As least_bucket() of multihead/train/parallel/data_parallel.cc, all of one size."""
    return max(1, int(weights / max(1 << 17, 1024 * ranks, weights * ranks / 8192))) if ranks > 1 else 1


def climb(tree, slice_bytes, links, add, clocks):
    """One bucket, which rank r has at clocks[r], up the tree: when every rank has its slice of the sum."""
    for node in tree.nodes:
        if node.first == node.last:
            continue
        messages = []
        for k, target in enumerate(node.holder):
            sources = {node.left.holder[k], node.right.holder[k]} - {target}
            messages += [(source, target) for source in sources]
        # A rank's messages leave in the order of slices, those of all ranks side by side.
        arrived = [
            (links.arrival(s, t, slice_bytes, clocks[s]), t) for s, t in sorted(messages, key=lambda m: clocks[m[0]])
        ]
        for time, target in sorted(arrived):
            clocks[target] = max(clocks[target], time) + add
    return clocks


def reduce_time(weights, shards, ranks, machine, ends, backward):
    """Adds the gradients. `ends`: of the ranks' last backwards, which last `backward` seconds and complete one bucket
    after the other; each leaves at once. Every rank has its slices at the returned time."""
    tree, links, buckets = Tree(shards, ranks), Links(ranks, machine), buckets_of(weights, ranks)
    slice_bytes = 4 * weights / buckets / ranks
    add = 1.5 * slice_bytes / machine.memory / machine.cores_share
    done = list(ends)
    for bucket in range(1, buckets + 1):
        ready = [end - backward * (1 - bucket / buckets) for end in ends]
        done = [max(pair) for pair in zip(done, climb(tree, slice_bytes, links, add, ready))]
    return done


def gather_time(part_bytes, ranks, machine, clocks):
    """A ring: R - 1 turns, each with one part of the whole."""
    for _ in range(ranks - 1):
        turn = part_bytes / machine.bandwidth + machine.latency
        clocks = [max(clocks[r], clocks[r - 1]) + turn for r in range(ranks)]
    return clocks


def step_seconds(weights, shard_seconds, shards, ranks, machine, optimizer=28.0):
    """The time of one optimiser step. shard_seconds: forward and backward of one shard on a rank with a whole core."""
    own = [shards * (r + 1) // ranks - shards * r // ranks for r in range(ranks)]
    # Each shard but the first is added to the sum before it. A backward is two thirds of a shard.
    add = 3 * 4 * weights / machine.memory
    clocks = [(n * shard_seconds + (n - 1) * add) / machine.cores_share for n in own]
    clocks = reduce_time(weights, shards, ranks, machine, clocks, shard_seconds * 2 / 3 / machine.cores_share)
    clocks = gather_time(24, ranks, machine, clocks)  # losses
    clocks = gather_time(8 * weights / 256 / ranks, ranks, machine, clocks)  # squares
    update = (optimizer * weights / ranks + 2 * 4 * weights) / machine.memory / machine.cores_share
    clocks = gather_time(4 * weights / ranks, ranks, machine, [c + update for c in clocks])
    # Each rank sends its share of the sum up the tree and of the weights round the ring.
    software = 2 * 4 * weights * (ranks - 1) / ranks / machine.stack / machine.cores_share
    # The order of the next step.
    return max(clocks) + software + machine.latency * max(ranks - 1, 0).bit_length()


def print_table():
    machine = Machine(bandwidth=3.1e9, latency=5e-6, memory=50e9)
    flops = 1.5e12  # of a rank: 32 cores at half of their f32 peak
    print("Ranks of 32 cores, 1.5 TFLOP/s each, links of 25 Gbit/s with 5 us.\n")
    print("GPT of 124 M weights; every rank has one shard of 16 x 1,024 tokens:\n")
    print("| ranks | step, s | of it exchange | tokens/s | efficiency |\n|---:|---:|---:|---:|---:|")
    weights, tokens = 124e6, 16 * 1024
    shard = 6 * weights * tokens / flops
    alone = step_seconds(weights, shard, 1, 1, machine)
    for ranks in (1, 16, 64, 256, 1024):
        time = step_seconds(weights, shard, ranks, ranks, machine)
        print(
            f"| {ranks:,} | {time:.2f} | {time - alone:.2f} | {ranks * tokens / time:,.0f} | {alone / time:.0%} |"
        )
    print("\nOne layer of attention, one million tokens, 8 heads of 128, causal, forward and backward:\n")
    print("| ranks | time, s | efficiency | sent by a rank, GB | memory of a rank, MB |\n|---:|---:|---:|---:|---:|")
    link = ring_attention_simulation.Link(machine.latency, machine.bandwidth)
    for ranks in (16, 64, 256, 1024):
        attention = ring_attention_simulation.Attention(2**20, ranks, 8, 8, 128)
        result = ring_attention_simulation.simulate(attention, link, flops / 1e9)
        time = result["forward"] + result["backward"]
        share = ring_attention_simulation.operations(attention) / flops / ranks / time
        memory = ring_attention_simulation.memory(attention) / 1e6
        print(f"| {ranks:,} | {time:.1f} | {share:.2f} | {result['bytes'] / ranks / 1e9:.1f} | {memory:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    step = verbs.add_parser("step", help="one configuration")
    step.add_argument("--weights", type=float, required=True)
    step.add_argument("--shard-seconds", type=float, required=True, help="forward and backward of one shard")
    step.add_argument("--shards", type=int, default=8)
    step.add_argument("--ranks", type=int, default=2)
    step.add_argument("--cores", type=float, default=0, help="of the one machine that all ranks share; 0: one each")
    step.add_argument("--bandwidth", type=float, default=Machine.bandwidth)
    step.add_argument("--latency", type=float, default=Machine.latency)
    step.add_argument("--memory", type=float, default=Machine.memory)
    step.add_argument("--stack", type=float, default=Machine.stack, help="bytes a core moves through TCP per second")
    verbs.add_parser("table", help="the tables of docs/distributed.md")
    options = parser.parse_args()
    if options.verb == "table":
        return print_table()
    share = min(1.0, options.cores / options.ranks) if options.cores else 1.0
    machine = Machine(options.bandwidth, options.latency, options.memory, share, options.stack)
    print(f"{step_seconds(options.weights, options.shard_seconds, options.shards, options.ranks, machine):.4f}")


if __name__ == "__main__":
    main()
