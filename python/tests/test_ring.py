"""ring_attention: the bits of attention() on any number of ranks, as threads and under mpirun."""

import numpy as np
import pytest

import multihead as mh
from multihead.distributed import SequenceShards, gather_rows, ring_attention, run_local_group
from test_distributed import MPIRUN, PLUGIN, run

LENGTH = 700


def inputs():
    draw = np.random.default_rng(3)
    return [draw.standard_normal((1, heads, LENGTH, 8), dtype=np.float32) for heads in (2, 1, 1, 2)]


def differentiated(attention, arrays, d_out):
    leaves = [mh.tensor(x, requires_grad=True) for x in arrays]
    rng = mh.Rng(5)
    with mh.Tape() as tape:
        out, lse = attention(*leaves, mask=mh.causal() & mh.window(300, 0), dropout_p=0.25, rng=rng, return_lse=True)
        tape.backward(out, d_out)
    return [np.asarray(x) for x in (out, lse, *(leaf.grad for leaf in leaves))]


def check_on(group):
    """On every rank: its rows of the outputs and gradients of the whole."""
    query, key, value, d_out = inputs()
    whole = differentiated(mh.attention, (query, key, value), d_out)
    shards = SequenceShards(LENGTH, group.size)
    own = [np.asarray(shards.take(x, 2, group.rank)) for x in (query, key, value, d_out)]
    mine = differentiated(lambda *x, **options: ring_attention(group, shards, *x, **options), own[:3], own[3])
    for ours, theirs in zip(mine, whole, strict=True):
        assert ours.tobytes() == np.asarray(shards.take(theirs, 2, group.rank)).tobytes()
    assert np.asarray(gather_rows(group, shards, mine[0], 2)).tobytes() == whole[0].tobytes()


def test_a_group_of_one():
    check_on(mh.distributed.group())


@pytest.mark.filterwarnings("ignore:nanobind")
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_are_threads(ranks):
    seen = []

    def body(group):
        check_on(group)
        seen.append(group)

    run_local_group(ranks, body)
    assert len(seen) == ranks
    with pytest.raises(TypeError):
        _ = seen[0].rank  # ended with the call


def test_shards_say_who_has_what():
    shards = SequenceShards(9 * 256 - 10, 2, 3)
    assert (shards.length, shards.ranks, shards.chunks) == (2294, 2, 5)
    assert shards.chunks_of(0) == [0, 3, 4] and shards.owner(3) == 0 and shards.chunk(4) == (2048, 2294)
    assert shards.rows(0) + shards.rows(1) == shards.length
    positions = np.concatenate([np.asarray(shards.positions(rank)) for rank in (0, 1)])
    assert sorted(positions.tolist()) == list(range(shards.length))


def test_what_does_not_fit_is_named():
    def body(group):
        ring_attention(group, SequenceShards(LENGTH, 3), *inputs()[:3])

    with pytest.raises(ValueError, match="shards are for 3 ranks, the group has 2"):
        run_local_group(2, body)
    with pytest.raises(ZeroDivisionError):
        run_local_group(2, lambda group: 1 / group.rank if group.rank == 0 else group.barrier())
    with pytest.raises(ValueError, match="length must be >= 0"):
        SequenceShards(-1, 2)


@pytest.mark.skipif(not (PLUGIN and MPIRUN), reason="no Open MPI, or no plugin for it (MULTIHEAD_MPI_PLUGIN)")
def test_under_mpirun(tmp_path):
    done = run(tmp_path, 2, "ring", after="import test_ring\ntest_ring.check_on(group)")
    assert done.returncode == 0, done.stderr
