"""Ranks of a job in Python: the same weights on any number of them, beside mpi4py too."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import multihead as mh

BUILT = [p / "multihead_openmpi.so" for p in (pathlib.Path(mh.__file__).parent, *pathlib.Path(mh.__file__).parents[1:4])]
PLUGIN = os.environ.get("MULTIHEAD_MPI_PLUGIN") or next((str(p) for p in BUILT if p.exists()), None)
MPIRUN = shutil.which("mpirun.openmpi") or shutil.which("mpirun")

SCRIPT = """
import sys
{before}
import multihead as mh
group = mh.distributed.group()
events = []
mh.train_language_model(sys.argv[1], sys.argv[2], tokenizer="char", layers=1, heads=2, width=16, context=16, batch=2, steps=4,
                        shards=4, callback=lambda event, fields: events.append(event))
assert bool(events) == (group.rank == 0)
assert group.broadcast(b"from %d" % group.rank, root=group.size - 1) == b"from %d" % (group.size - 1)
assert group.gather(bytes([group.rank])) == ([bytes([r]) for r in range(group.size)] if group.rank == 0 else [])
if group.rank == 0 and group.size > 1:
    group.send(1, b"abc")
    group.send(1, b"abc"), group.send(1, b"abcd")
if group.rank == 1:
    assert group.recv(0, 3) == b"abc"
    for expected in (4, 3):
        try:
            group.recv(0, expected)
            raise SystemExit("a message of another size was taken")
        except ValueError as error:
            assert "another number of bytes" in str(error)
group.barrier()
{after}
"""


def run(tmp_path, ranks, name, before="", after=""):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat and saw nine dogs run home.\n" * 40)
    script = tmp_path / f"{name}.py"
    script.write_text(SCRIPT.format(before=before, after=after))
    environment = dict(
        os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
        PYTHONPATH=os.pathsep.join([*filter(None, sys.path), str(pathlib.Path(__file__).parent)]),
    )
    launcher = []
    if ranks > 1:
        environment["MULTIHEAD_MPI_PLUGIN"] = PLUGIN
        launcher = [MPIRUN, "-n", str(ranks)]
    command = [*launcher, sys.executable, str(script), str(text), str(tmp_path / name)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def weights(tmp_path, name):
    return (tmp_path / name / "model.safetensors").read_bytes()


def test_a_process_alone_is_a_group_of_one():
    group = mh.distributed.group()
    assert (group.rank, group.size, group.bytes_sent) == (0, 1, 0)
    group.barrier()
    assert group.gather(b"a") == [b"a"] and group.broadcast(b"b") == b"b"
    with pytest.raises(ValueError, match="no peer 1"):
        group.send(1, b"a")
    with pytest.raises(ValueError, match="no rank 1"):
        group.broadcast(b"a", root=1)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        group.recv(0, -1)


@pytest.mark.skipif(not (PLUGIN and MPIRUN), reason="no Open MPI, or no plugin for it (MULTIHEAD_MPI_PLUGIN)")
def test_ranks_train_the_weights_of_one(tmp_path):
    alone = run(tmp_path, 1, "alone")
    assert alone.returncode == 0, alone.stderr
    for ranks in (2, 3):
        done = run(tmp_path, ranks, f"ranks{ranks}")
        assert done.returncode == 0, done.stderr
        assert weights(tmp_path, f"ranks{ranks}") == weights(tmp_path, "alone")
    failing = run(tmp_path, 2, "failing", after="1 / (group.rank - 1)")
    assert failing.returncode != 0 and "ZeroDivisionError" in failing.stderr


@pytest.mark.skipif(not (PLUGIN and MPIRUN and importlib.util.find_spec("mpi4py")), reason="no Open MPI or mpi4py")
def test_beside_mpi4py(tmp_path):
    after = "assert MPI.COMM_WORLD.allreduce(1) == group.size and MPI.COMM_WORLD.Get_rank() == group.rank"
    done = run(tmp_path, 2, "beside", before="from mpi4py import MPI", after=after)
    assert done.returncode == 0, done.stderr
    assert weights(tmp_path, "beside")
