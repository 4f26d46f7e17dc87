"""The gallery of examples/variants: every variant equals its plain definition in PyTorch, and its page is current."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ROOT = pathlib.Path(__file__).parents[2]
GALLERY = ROOT / "examples" / "variants"
spec = importlib.util.spec_from_file_location("variants_run", GALLERY / "run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


@pytest.mark.parametrize("name", run.NAMES)
def test_variant_is_its_definition(name):
    module = importlib.import_module(name)
    assert max(run.errors(module, np.float64, (1, 2, 37))) < 1e-12
    assert max(run.errors(module, np.float32, (37, 130))) < 5e-6


@pytest.mark.parametrize("name", run.NAMES)
def test_threads_and_batch_change_no_bit(name):
    import multihead as mh

    module = importlib.import_module(name)
    threads = mh.num_threads()
    causal = run.modes(module)[0]
    arrays = module.inputs(np.random.default_rng(0), run.sizes(70))
    results = []
    for count in (1, 3):
        mh.set_num_threads(count)
        results.append(run.ours(module, arrays, causal, np.float32))
    mh.set_num_threads(threads)
    assert all(np.array_equal(a, b) for a, b in zip(results[0][0], results[1][0]))
    assert all(np.array_equal(results[0][1][n], results[1][1][n]) for n in results[0][1])


@pytest.mark.parametrize("name", run.NAMES)
def test_a_sample_has_the_same_bits_alone(name):
    import multihead as mh

    module = importlib.import_module(name)
    causal, batch = run.modes(module)[0], 5  # no other axis has this size
    arrays = module.inputs(np.random.default_rng(0), run.sizes(70, batch))

    def results(arrays):
        given = {n: x if x.dtype == bool else mh.tensor(x.astype("f4")) for n, x in arrays.items()}
        return [y.numpy() for y in run.as_tuple(module.variant(**given, causal=causal))]

    alone = results({n: np.take(x, [0], x.shape.index(batch)) if batch in x.shape else x for n, x in arrays.items()})
    assert all(np.array_equal(y[:1], one) for y, one in zip(results(arrays), alone))


def test_gallery_runs_and_its_page_is_current():
    listed = subprocess.run([sys.executable, str(GALLERY / "run.py"), "gated", "--length", "64"], capture_output=True, text=True)
    assert listed.returncode == 0 and "gated" in listed.stdout, listed.stderr
    page = subprocess.run([sys.executable, str(ROOT / "tools" / "variants_page.py"), "--check"], capture_output=True, text=True)
    assert page.returncode == 0, page.stdout + page.stderr
