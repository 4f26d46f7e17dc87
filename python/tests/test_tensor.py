"""Tensors share memory with NumPy and DLPack, or say why they cannot."""

import ctypes
import sys
import threading

import numpy as np
import pytest

import multihead as mh

DTYPES = ["float32", "float64", "float16", "int64", "int32", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_in_and_out_shares_memory(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    tensor = mh.tensor(array)
    assert tensor.data_ptr == array.ctypes.data
    assert tensor.shape == (3, 4) and tensor.dtype == dtype
    back = np.asarray(tensor)
    assert back.ctypes.data == array.ctypes.data and back.dtype == array.dtype
    array[1, 2] = 0
    assert back[1, 2] == 0


def test_views_are_taken_by_their_strides():
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for view in (array.transpose(2, 0, 1), array[:, ::2], array[1:, :, 1:4]):
        tensor = mh.tensor(view)
        assert tensor.data_ptr == view.__array_interface__["data"][0]
        np.testing.assert_array_equal(np.asarray(tensor), view)


def test_negative_strides_are_copied():
    array = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(mh.tensor(array[::-1])), array[::-1])


def test_foreign_byte_order_and_unaligned_memory_are_copied():
    array = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(mh.tensor(array.astype(">f4"))), array)
    unaligned = np.frombuffer(b"x" + array.tobytes(), dtype=np.uint8)[1:].view(np.float32)
    np.testing.assert_array_equal(np.asarray(mh.tensor(unaligned)), array)


def test_broadcast_views_are_read_only_and_copied():
    view = np.broadcast_to(np.arange(5, dtype=np.float32), (3, 4, 5))
    np.testing.assert_array_equal(np.asarray(mh.tensor(view)), view)


def test_read_only_memory_is_shared_with_functions_and_copied_by_tensor(tmp_path):
    np.ones((1, 1, 3, 4), dtype=np.float32).tofile(tmp_path / "x")
    array = np.memmap(tmp_path / "x", dtype=np.float32, mode="r", shape=(1, 1, 3, 4))
    np.testing.assert_array_equal(np.asarray(mh.attention(array, array, array)), 1)
    tensor = mh.tensor(array)  # may be written to: a shared one would end the process
    np.asarray(tensor)[...] = 2
    np.testing.assert_array_equal(array, 1)


def test_numbers_and_lists():
    assert mh.tensor([1.0, 2.0]).dtype == "float32"
    assert mh.tensor([1, 2]).dtype == "int64"
    assert mh.tensor(2.5).item() == 2.5
    assert mh.tensor([[1, 2], [3, 4]], dtype="float64").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert mh.tensor(np.float32(3)).shape == ()


@pytest.mark.parametrize(
    "bad, message",
    [
        (np.ones(3, dtype=np.int8), "int8"),
        (np.ones(3, dtype=np.complex64), "complex64"),
        (np.array([None, 1], dtype=object), "object"),
        (np.array(["a"]), "U1"),
        (np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]), "'a'"),
        ("text", "str"),
        (None, "None"),
        ({}, "dict"),
        ([[1.0], [1.0, 2.0]], "list"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(bad, message):
    with pytest.raises(TypeError) as info:
        mh.tensor(bad)
    assert "tensor: data" in str(info.value) and message in str(info.value)


def test_more_axes_than_supported():
    with pytest.raises(mh.ShapeError, match="axes"):
        mh.tensor(np.zeros((1,) * 9, dtype=np.float32))


def test_memoryviews_are_taken():
    assert mh.tensor(memoryview(np.arange(3, dtype=np.int64))).tolist() == [0, 1, 2]


def test_tensor_keeps_the_array_alive_and_the_other_way_round():
    array = np.arange(1000, dtype=np.float32)
    before = sys.getrefcount(array)
    tensor = mh.tensor(array)
    assert sys.getrefcount(array) == before + 1
    view = np.asarray(tensor)
    del tensor
    assert sys.getrefcount(array) == before + 1
    del view
    assert sys.getrefcount(array) == before
    lone = np.asarray(mh.tensor(list(range(1000))))
    np.testing.assert_array_equal(lone, np.arange(1000))


def test_dlpack_between_numpy_and_tensor():
    tensor = mh.randn((3, 5), mh.Rng(1))
    assert tensor.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(tensor)
    assert array.__array_interface__["data"][0] == tensor.data_ptr
    capsule = tensor.__dlpack__()
    del capsule  # never taken: its destructor frees it


class AsksFor:
    """What numpy.from_dlpack() and torch.from_dlpack() ask a producer for."""

    def __init__(self, tensor, **words):
        self.tensor, self.words = tensor, words

    def __dlpack__(self, **_):
        return self.tensor.__dlpack__(**self.words)

    def __dlpack_device__(self):
        return (1, 0)


def test_dlpack_copies_where_it_is_asked_to():
    tensor = mh.tensor(np.arange(3, dtype=np.float32))
    copy, shared = (np.from_dlpack(AsksFor(tensor, copy=copy, dl_device=(1, 0))) for copy in (True, False))
    tensor[0] = 9
    assert copy.tolist() == [0, 1, 2] and shared.tolist() == [9, 1, 2]
    for wrong in ({"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError, match=next(iter(wrong))):
            tensor.__dlpack__(**wrong)
    with pytest.raises(TypeError, match="no argument 'device'"):
        tensor.__dlpack__(device="cpu")


class ForeignDevice:
    def __dlpack__(self, **_):
        raise AssertionError("must not be asked for")

    def __dlpack_device__(self):
        return (2, 0)


class Broken:
    def __dlpack__(self, **_):
        raise RuntimeError("not today")

    def __dlpack_device__(self):
        return (1, 0)


def test_foreign_devices_and_broken_producers():
    with pytest.raises(ValueError, match="CPU memory"):
        mh.tensor(ForeignDevice())
    with pytest.raises(TypeError, match="not today"):
        mh.tensor(Broken())


def test_buffer_protocol():
    tensor = mh.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    view = memoryview(tensor)
    assert view.shape == (2, 3) and view.format == "f" and not view.readonly
    assert bytes(view) == np.arange(6, dtype=np.float32).tobytes()
    with pytest.raises((BufferError, TypeError)):
        ctypes.c_char.from_buffer(mh.tensor(np.ones((4, 4), dtype=np.float32)).transpose(0, 1)[:, :2])


def test_bfloat16():
    tensor = mh.tensor([1.0, -2.5, 3.0]).to("bfloat16")
    assert tensor.dtype == "bfloat16" and tensor.nbytes == 6
    with pytest.raises((BufferError, TypeError)):
        memoryview(tensor)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.asarray(tensor)
    assert array.dtype == ml_dtypes.bfloat16 and array.astype("f4").tolist() == [1.0, -2.5, 3.0]
    assert mh.tensor(array).dtype == "bfloat16"


def test_arithmetic_follows_numpy(rng):
    a, b = rng.standard_normal((3, 5), dtype="f4"), rng.standard_normal((5,), dtype="f4") + 3
    x, y = mh.tensor(a), mh.tensor(b)
    for ours, numpy in [
        (x + y, a + b),
        (x - b, a - b),
        (x * 2, a * 2),
        (1 - x, 1 - a),
        (x / y, a / b),
        (2 / y, 2 / b),
        (-x, -a),
        (x @ mh.tensor(np.ones((5, 2), "f4")), a @ np.ones((5, 2), "f4")),
        (mh.tanh(x), np.tanh(a)),
        (mh.sum(x, 0), a.sum(0)),
        (mh.where(a > 0, x, 0 * x), np.where(a > 0, a, 0)),
        (mh.concat([x, x], 1), np.concatenate([a, a], 1)),
    ]:
        np.testing.assert_allclose(np.asarray(ours), numpy, rtol=2e-6, atol=2e-6)
    with pytest.raises(mh.ShapeError):
        x + mh.tensor(np.ones(4, "f4"))
    with pytest.raises(mh.DtypeError):
        x + mh.tensor(np.ones(5, "f8"))


def test_indexing(rng):
    a = rng.standard_normal((3, 4, 5), dtype="f4")
    x = mh.tensor(a)
    for key in [0, -1, slice(1, 3), (slice(None), 2), (..., 1), (None, 0), (slice(None), slice(0, 4, 2)), (0, 1, 2)]:
        np.testing.assert_array_equal(np.asarray(x[key]), a[key])
    with pytest.raises(IndexError):
        x[3]
    with pytest.raises(IndexError):
        x[0, 0, 0, 0]
    np.testing.assert_array_equal(np.asarray(x[[0, 1]]), a[[0, 1]])


def test_gradients_through_a_tape(rng):
    a = rng.standard_normal((3, 4), dtype="f4")
    x = mh.tensor(a, requires_grad=True)
    with mh.Tape() as tape:
        loss = mh.sum(x[1] * x[1]) + mh.sum(3 * x)
        assert len(tape) > 0 and x.grad is None
        tape.backward(loss)
    expected = np.full_like(a, 3)
    expected[1] += 2 * a[1]
    np.testing.assert_allclose(np.asarray(x.grad), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="inside the with block"):
        tape.backward(loss)
    with mh.Tape() as tape, mh.NoTape():
        assert not mh.sum(x).requires_grad


def test_errors_of_tapes():
    x = mh.tensor(np.ones(3, "f4"))
    with mh.Tape() as tape, pytest.raises(ValueError, match="requires a gradient"):
        tape.backward(mh.sum(x))


def test_blocks_without_a_tape_end_where_they_began():
    x = mh.tensor(np.ones(3, "f4"), requires_grad=True)
    hiding, refused = mh.NoTape(), []

    def leave():
        try:
            hiding.__exit__(None, None, None)
        except ValueError as error:
            refused.append(str(error))

    with mh.Tape():
        with hiding:
            with pytest.raises(ValueError, match="already hiding"):
                hiding.__enter__()
            assert not mh.sum(x).requires_grad  # still
            with mh.Tape():
                leave()
            other = threading.Thread(target=leave)
            other.start()
            other.join()
        assert mh.sum(x).requires_grad
    assert len(refused) == 2 and all("in the order in which they began" in text for text in refused)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: mh.reshape(x, 2**63), "reshape: shape must be an integer of 64 bits"),
        (lambda x: x.reshape([3.0]), "must be an integer, got float"),
        (lambda x: mh.zeros([2**64]), "must be an integer of 64 bits"),
        (lambda x: mh.sum(x, axis="0"), "sum: axis must be an integer, got str"),
        (lambda x: mh.sum(x, axis=10**30), "sum: axis must be an integer of 64 bits"),
        (lambda x: mh.causal(10**30), "align must be an integer of 64 bits"),
        (lambda x: mh.prefix(-(10**30)), "prefix: length must be an integer of 64 bits"),
        (lambda x: x + 10**400, "too large"),
    ],
)
def test_numbers_that_do_not_fit_are_named(call, message):
    with pytest.raises((TypeError, ValueError, OverflowError), match=message):
        call(mh.tensor(np.ones(3, "f4")))


def test_numpy_may_ask_for_a_copy_in_its_own_words():
    x = mh.tensor(np.ones(3, "f4"))
    assert x.__array__(copy=np.bool_(True)).ctypes.data != x.data_ptr == x.__array__(copy=0).ctypes.data


def test_copies_and_pickles():
    import copy
    import pickle

    x = mh.tensor(np.ones(3, "f4"), requires_grad=True)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.data_ptr != x.data_ptr and y.requires_grad and y.tolist() == x.tolist()


def test_memory_errors():
    with pytest.raises((MemoryError, ValueError)):
        mh.zeros((2**40,))
    with pytest.raises(ValueError):
        mh.zeros((2**62, 4))
    with pytest.raises(ValueError):
        mh.zeros((-1,))


def test_lists_lose_no_gradient():
    w = mh.tensor(np.ones(2, "f4"), requires_grad=True)
    assert mh.tensor([w, w]).shape == (2, 2)  # nothing records
    with mh.Tape() as tape:
        for make in (lambda: mh.add([w, w], w), lambda: mh.softmax([[w[0], w[1]]]), lambda: mh.tensor([w, [w]])):
            with pytest.raises(TypeError, match=r"concat\(\)"):
                make()
        tape.backward(mh.add(mh.concat([w[None], w[None]], 0), [w.detach(), w.detach()]).sum())
    assert np.asarray(w.grad).tolist() == [2, 2]


def test_only_pythons_own_numbers_become_f32():
    class Array:
        def __array__(self, dtype=None, copy=None):
            return np.array([1 / 3])

    third = np.array([1 / 3])
    for values in ([third], [np.float64(1 / 3)], [mh.tensor(third)], [[0.5], third], Array()):
        assert mh.tensor(values).dtype == "float64"
    assert mh.tensor([1 / 3, 1]).dtype == mh.tensor([third.astype("f4"), third.astype("f4")]).dtype == "float32"
    endless = []
    endless.append(endless)
    with pytest.raises((TypeError, ValueError)):
        mh.tensor(endless)


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="filled"):
        mh.sum(np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]))


def test_results_of_an_outer_tape_and_seeds_of_another_type_are_refused():
    w = mh.tensor(np.ones(2, "f4"), requires_grad=True)
    with mh.Tape() as outer:
        y = w * w
        with mh.Tape():
            with pytest.raises(ValueError, match="an outer one"):
                y * w
        with pytest.raises(TypeError, match="seed must be f32 like the loss, got f64"):
            outer.backward(y, np.ones(2))
        outer.backward(y, np.ones(2, "f4"))
    assert np.asarray(w.grad).tolist() == [2, 2]


READ_ONLY = {
    "slice": lambda x: mh.slice(x, 0, 0, 2),
    "contiguous": mh.contiguous,
    "reshape": lambda x: mh.reshape(x, (2, 2)),
    "expand": lambda x: mh.expand(x, (3, 4)),
    "cast": lambda x: mh.cast(x, "float64"),
    "clamp": mh.clamp,
    "permute": lambda x: mh.permute(x, (0,)),
    "split": lambda x: mh.split(x, [1, 3], 0)[1],
    "pad": lambda x: mh.pad(x, 0),
    "roll": lambda x: mh.roll(x, 0, 0),
    "dropout": lambda x: mh.dropout(x, 0.5),
    "concat": lambda x: mh.concat([x], 0),
    "activate": lambda x: mh.activate(x, "none"),
    "tensor": mh.tensor,
}


@pytest.mark.parametrize("name", READ_ONLY)
def test_results_over_read_only_memory_are_copies(name, tmp_path):
    np.arange(4.0).tofile(tmp_path / "x")
    text = np.arange(4.0).tobytes()
    frozen = np.broadcast_to(np.arange(4.0), (4,))
    for x in (np.memmap(tmp_path / "x", np.float64, mode="r"), np.frombuffer(text), frozen, memoryview(text).cast("d")):
        y = READ_ONLY[name](x)
        before = y.tolist()
        np.asarray(y)[...] = 9  # would end the process where the pages are read-only
        y[...] = 8
        np.testing.assert_array_equal(np.asarray(x), np.arange(4))
        assert READ_ONLY[name](x).tolist() == before
    writable = np.arange(4.0)
    shares = np.shares_memory(READ_ONLY[name](writable).numpy(), writable)
    assert shares == np.shares_memory(READ_ONLY[name](mh.tensor(writable)).numpy(), writable)


def test_a_gradient_in_read_only_memory_is_copied():
    x = mh.tensor(np.zeros(4, np.float32), requires_grad=True)
    frozen = np.ones(4, np.float32)
    frozen.setflags(write=False)
    x.grad = frozen
    x.grad[0] = 3
    assert x.grad.tolist() == [3, 1, 1, 1] and frozen.tolist() == [1, 1, 1, 1]


def test_a_tensor_may_be_set_as_its_own_gradient():
    live = mh.memory_stats()["live_bytes"]
    for _ in range(20):
        x = mh.tensor(mh.ones((10_000,)), requires_grad=True)
        x.grad = x
        assert not x.grad.requires_grad
        del x
    assert mh.memory_stats()["live_bytes"] == live


def test_tensor_refuses_to_lose_a_gradient():
    x = mh.tensor(np.ones(2, np.float32), requires_grad=True)
    assert not mh.tensor(x).requires_grad
    with mh.Tape() as tape:
        for y in (x, x * 2.0):
            with pytest.raises(TypeError, match="tensor: data is a Tensor that requires a gradient, which would be lost"):
                mh.tensor(y)
        y = mh.tensor((x * 2.0).detach(), requires_grad=True)
        tape.backward(mh.sum(x * y))
    assert x.grad.tolist() == [2, 2] and y.grad.tolist() == [1, 1]


def _writers():
    w = mh.tensor(np.array([1, 2, 3], np.float32), requires_grad=True)
    w.grad = np.ones(3, np.float32)
    linear = mh.nn.Linear(2, 1)

    class Own(mh.nn.Module):
        def __init__(self):
            self.w = w

    return w, {
        "optimizer: step": mh.optim.SGD([w], lr=1.0).step,
        "Linear: ": lambda: linear.load_state_dict(linear.state_dict()),
        "load_state_dict: ": lambda: Own().load_state_dict({"w": np.ones(3)}),
    }


@pytest.mark.parametrize("who", _writers()[1])
def test_weights_do_not_change_before_a_backward_that_reads_them(who):
    w, writers = _writers()
    write = writers[who]
    write()
    with mh.Tape() as tape:
        write()
        before = w.tolist()
        loss = mh.sum(mh.square(w))
        with pytest.raises(ValueError, match=f"{who}.*a Tape holds operations whose backward"), mh.NoTape():
            write()
        assert w.tolist() == before
        w.grad = None
        tape.backward(loss)
        assert w.grad.tolist() == [2 * x for x in before]
        write()
        mh.square(w)
    write()  # an ended Tape holds nothing
