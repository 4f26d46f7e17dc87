"""Many calls from many threads and from forked children: right answers and flat memory."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

import multihead as mh

THREADS, CALLS = 8, 10_000
SLACK = 1 << 20  # bytes: a leak of 105 per call shows


def resident():
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def arrays():
    rng = np.random.default_rng(1337)
    return [rng.standard_normal((2, 3, 17, 11)).astype("f4") for _ in range(3)]


def plain():
    q, k, v = arrays()
    mask = mh.causal() & mh.lengths([17, 13])
    return lambda: np.asarray(mh.attention(q, k, v, mask=mask))


def dropout():
    q, k, v = arrays()
    return lambda: np.asarray(mh.attention(q, k, v, dropout_p=0.3, rng=mh.Rng(7)))


def gradients():
    q, k, v = arrays()

    def call():
        query = mh.tensor(q)
        query.requires_grad = True
        with mh.Tape() as tape:
            tape.backward(mh.sum(mh.attention(query, k, v)))
        return np.asarray(query.grad)

    return call


def traced_functions():
    q, k, v = arrays()
    slopes = np.array([0.5, 0.25, 0.125], dtype="f4")

    def call():
        score = mh.score_mod(lambda s, b, h, i, j: s * s - slopes[h] * (i - j))
        return np.asarray(mh.attention(q, k, v, score_mod=score, mask=mh.mask_mod(lambda b, h, i, j: (i + j) % 3 > 0)))

    return call


def capture():
    q, k, v = arrays()

    def call():
        captured = mh.AttentionCapture(heads=[1])
        mh.attention(q, k, v, capture=captured)
        return np.from_dlpack(captured.weights)

    return call


def module():
    layer = mh.nn.MultiHeadAttention(24, 4, rng=mh.Rng(3))
    x = np.random.default_rng(5).standard_normal((2, 7, 24)).astype("f4")

    def call():  # the threads share the layer and its gradients
        with mh.Tape() as tape:
            out = layer(x, x, x)
            tape.backward(mh.mean(out))
        for parameter in layer.parameters():
            gradient, parameter.grad = parameter.grad, None
            assert gradient is None or gradient.shape == parameter.shape
        return np.asarray(out)

    return call


def refusals():
    q, k, v = arrays()

    def call():
        with pytest.raises(mh.ShapeError):
            mh.attention(q, k, v[:, :, :3])
        with pytest.raises(TypeError):
            mh.attention(q, k, object())
        return q

    return call


def in_pytorch():
    torch = pytest.importorskip("torch")
    import multihead.torch as mt

    q, k, v = (torch.from_numpy(x) for x in arrays())

    def call():
        query = q.clone().requires_grad_()
        mt.scaled_dot_product_attention(query, k, v, is_causal=True).sum().backward()
        return query.grad.numpy()

    return call


def flex_in_pytorch():
    torch = pytest.importorskip("torch")
    import multihead.torch as mt

    q, k, v = (torch.from_numpy(x) for x in arrays())
    table, document = torch.arange(40) * 0.1, torch.arange(17) // 5

    def call():
        mask = mt.create_block_mask(lambda b, h, i, j: document[i] == document[j])
        query = q.clone().requires_grad_()
        mt.flex_attention(query, k, v, lambda s, b, h, i, j: s + table[i - j + 17], mask).sum().backward()
        return query.grad.numpy()

    return call


SCENARIOS = [plain, dropout, gradients, traced_functions, capture, module, refusals, in_pytorch, flex_in_pytorch]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda f: f.__name__)
def test_ten_thousand_calls_from_eight_threads_leave_memory_flat(scenario):
    call = scenario()
    want = call().copy()
    wrong = []
    # The threads live on: what a new thread costs (its stack, its heap's arena) is not what a call costs.
    start, rounds = threading.Barrier(THREADS + 1), 3

    def work():
        for _ in range(rounds):
            start.wait()
            for _ in range(CALLS // THREADS):
                try:
                    if not np.array_equal(call(), want):
                        wrong.append("another answer")
                except Exception as error:
                    wrong.append(repr(error))
            start.wait()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    sizes = []
    [t.start() for t in threads]
    for _ in range(rounds):
        start.wait()
        start.wait()
        sizes.append(resident())
    [t.join() for t in threads]
    assert not wrong, wrong[:3]
    assert sizes[-1] - sizes[0] < SLACK, sizes


def finished(children, seconds=600):
    """The exit codes; what hangs is killed (its code is -9)."""
    deadline, codes = time.monotonic() + seconds, {}
    while len(codes) < len(children):
        for pid in set(children) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return list(codes.values())


def forked(check):
    """A child that leaves with 0 if check() is true."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [plain, in_pytorch], ids=lambda f: f.__name__)
def test_a_thousand_forked_children_give_the_answer_and_leave_memory_flat(scenario):
    call = scenario()
    want = call().copy()
    sizes = []
    for _ in range(10):
        for _ in range(25):
            codes = finished([forked(lambda: np.array_equal(call(), want)) for _ in range(4)])
            assert codes == [0] * 4
        sizes.append(resident())
    assert sizes[-1] - sizes[1] < SLACK, sizes
    np.testing.assert_array_equal(call(), want)


def stays_flat(call, want):
    sizes = []
    for i in range(1200):
        if not np.array_equal(call(), want):
            return False
        if i >= 200:
            sizes.append(resident() if i % 100 == 0 else sizes[-1])
    return sizes[-1] - sizes[0] < SLACK


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda f: f.__name__)
def test_a_thousand_calls_in_forked_children_leave_memory_flat(scenario):
    call = scenario()
    want = call().copy()
    assert finished([forked(lambda: stays_flat(call, want)) for _ in range(2)]) == [0] * 2


def wide():
    q = np.random.default_rng(3).standard_normal((4, 8, 64, 32)).astype("f4")
    return lambda: np.asarray(mh.attention(q, q, q))


def tasks():
    return len(os.listdir("/proc/self/task"))


def test_a_forked_child_has_workers_of_its_own():
    call, before = wide(), mh.num_threads()
    mh.set_num_threads(3)
    try:
        want = call()

        def check():
            alone = tasks() == 1 and mh.num_threads() == 3
            same = np.array_equal(call(), want)
            grandchild = finished([forked(lambda: tasks() == 1 and np.array_equal(call(), want))])
            return alone and same and tasks() == 3 and grandchild == [0]

        assert finished([forked(check)]) == [0]
        np.testing.assert_array_equal(call(), want)
    finally:
        mh.set_num_threads(before)


def test_forks_while_other_threads_compute():
    call = wide()
    want, stop, wrong = call(), threading.Event(), []

    def work():
        while not stop.is_set():
            if not np.array_equal(call(), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    try:
        for _ in range(20):
            assert finished([forked(lambda: np.array_equal(call(), want)) for _ in range(4)]) == [0] * 4
    finally:
        stop.set()
        [t.join() for t in threads]
    assert not wrong
