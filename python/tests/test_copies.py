"""copy, deepcopy and pickle: equal results, independence, and what is tied stays tied."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import multihead as mh

RNG = np.random.default_rng(5)
Q, K, V = (RNG.standard_normal((2, 2, 6, 4)).astype("f4") for _ in range(3))
FLAGS = RNG.random((2, 2, 6, 6)) < 0.6
TABLE = RNG.standard_normal((2, 16)).astype("f4")
MASKS = {
    "none": lambda: mh.Mask(),
    "causal": lambda: mh.causal(),
    "causal start": lambda: mh.causal("start"),
    "causal offset": lambda: mh.causal(2),
    "causal offsets": lambda: mh.causal(np.array([1, 3])),
    "window": lambda: mh.window(2, 1),
    "prefix": lambda: mh.prefix(3),
    "prefix per sample": lambda: mh.prefix(np.array([3, 1]), "start"),
    "lengths": lambda: mh.lengths([4, 6]),
    "query_lengths": lambda: mh.query_lengths([4, 6]),
    "documents": lambda: mh.documents(np.array([0, 0, 1, 1, 1, 2])),
    "documents of both": lambda: mh.documents(np.array([0, 0, 1, 1, 1, 2]), np.array([0, 1, 1, 1, 2, 2])),
    "blocks": lambda: mh.blocks(np.eye(3, dtype=bool), 2, 2),
    "keep": lambda: mh.keep(FLAGS),
    "drop": lambda: mh.drop(FLAGS),
    "labml": lambda: mh.from_labml_mask(FLAGS[0, 0][:, :, None]),
    "torch_mha": lambda: mh.from_torch_mha_mask(FLAGS[0, 0]),
    "torch_padding": lambda: mh.from_torch_key_padding_mask(FLAGS[:, 0, 0]),
    "torch_sdpa": lambda: mh.from_torch_sdpa_mask(FLAGS),
    "mask_mod": lambda: mh.mask_mod(lambda b, h, i, j: (i - j) % (h + 2) != 1),
    "mask_mod of a table": lambda: mh.mask_mod(lambda b, h, i, j: TABLE[h, j] > -0.5, align="start"),
    "mask_mod in parts": lambda: mh.mask_mod(lambda b, h, i, j: (j <= i) & (i - j < 4) & (j != 1)),
    "joined": lambda: mh.causal() & mh.lengths([4, 6]) & mh.keep(FLAGS),
}
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {p}": lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@ways
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, way):
    mask = MASKS[name]()
    copied = way(mask)
    want, got = (np.asarray(mh.attention(Q, K, V, mask=m)) for m in (mask, copied))
    assert np.array_equal(want, got) and repr(mask) == repr(copied)


def test_a_deep_copy_of_a_mask_has_its_own_flags():
    flags = FLAGS.copy()
    mask = mh.keep(flags)
    before, copied, shared = np.asarray(mh.attention(Q, K, V, mask=mask)), copy.deepcopy(mask), copy.copy(mask)
    flags[...] = True
    assert np.array_equal(np.asarray(mh.attention(Q, K, V, mask=copied)), before)
    assert not np.array_equal(np.asarray(mh.attention(Q, K, V, mask=shared)), before)


@ways
def test_score_programs(way):
    weight = mh.tensor(RNG.standard_normal((2,)).astype("f4"), requires_grad=True)
    mod = mh.score_mod(lambda s, b, h, i, j: mh.sigmoid(s) if False else np.tanh(s) * weight[h] + TABLE[h, i - j + 6])
    copied = way(mod)
    want, got = (np.asarray(mh.attention(Q, K, V, score_mod=m)) for m in (mod, copied))
    assert np.array_equal(want, got) and mod.fingerprint == copied.fingerprint and len(mod) == len(copied)
    assert copied.learnt == mod.learnt and copied.tables[copied.learnt[0]].requires_grad


@ways
def test_generators_go_on_where_they_were(way):
    rng = mh.Rng(7)
    mh.randn((3,), rng)
    copied = way(rng)
    assert np.array_equal(np.asarray(mh.randn((3,), rng)), np.asarray(mh.randn((3,), copied)))


@ways
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_rotary_tables_and_scalings(way, layout):
    scaling = mh.RotaryScaling(kind="yarn", factor=4.0, original_context=64)
    table = mh.rotary_table(6, 4, [0, 2], layout=layout, scaling=way(scaling))
    x = RNG.standard_normal((2, 6, 2, 4)).astype("f4")
    assert way(scaling) == scaling
    assert np.array_equal(np.asarray(mh.rotary(x, way(table))), np.asarray(mh.rotary(x, table)))


@ways
def test_captures(way):
    wanted = way(mh.AttentionCapture(heads=[1], query_rows=[0, -1], key_mass=True, entropy=True, top_k=2))
    mh.attention(Q, K, V, capture=wanted)
    seen = way(wanted)
    for name in ("weights", "key_mass", "entropy", "top_weights", "top_keys"):
        assert np.array_equal(np.asarray(getattr(wanted, name)), np.asarray(getattr(seen, name)))
    assert seen.heads == [1] and seen.query_rows == [0, -1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"])
@ways
def test_tensors(way, dtype):
    tensor = mh.tensor(np.array([[0.0, 1.5], [-2.0, 3.0]])).to(dtype)
    tensor = mh.transpose(tensor, 0, 1)
    if dtype.endswith(("32", "64", "16")) and "int" not in dtype:
        tensor = mh.tensor(tensor, requires_grad=True)
    copied = way(tensor)
    assert copied.dtype == dtype and copied.tolist() == tensor.tolist()
    assert copied.requires_grad == tensor.requires_grad


def test_a_recorded_result_is_refused():
    w = mh.tensor(np.ones(2), requires_grad=True)
    with mh.Tape():
        y = w * 2
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="detach"):
            way(y)


class Net(mh.nn.Module):
    def __init__(self, how):
        self.emb = mh.nn.Embedding(7, 8, rng=mh.Rng(1))
        self.attention = mh.nn.MultiHeadAttention(8, 2, rng=mh.Rng(2))
        self.mask, self.rng, self.rotary = mh.causal(), mh.Rng(5), mh.rotary_table(3, 4)
        self.own = mh.tensor(np.full((8,), 0.5, "f4"), requires_grad=True)
        if how == "a weight by another attribute":
            self.head = self.emb.weight
        elif how == "before the module":
            self.__dict__ = {"head": self.emb.weight, **self.__dict__}
        elif how == "the same module twice":
            self.again = self.emb
        elif how == "in a list":
            self.parts = [self.emb, self.own, self.attention.out_proj.weight]
        elif how == "in a module of its own":
            self.inner = Inner(self.emb.weight, self.own)
        elif how == "a layer of a stack":
            self.stack = mh.nn.TransformerEncoder(embed_dim=8, num_heads=2, num_layers=2, rng=mh.Rng(4))
            self.first = self.stack.layers[0]
        elif how == "a score function":
            self.slope = mh.tensor(np.array([0.5, -0.5], "f4"), requires_grad=True)
            self.mod = mh.score_mod(lambda s, b, h, i, j: s + self.slope[h] * (j - i))


class Inner(mh.nn.Module):
    def __init__(self, *weights):
        self.weights = list(weights)


TIES = ["none", "a weight by another attribute", "before the module", "the same module twice", "in a list",
        "in a module of its own", "a layer of a stack", "a score function"]  # fmt: skip


@pytest.mark.parametrize("how", TIES)
def test_tied_weights_are_one_parameter_and_stay_tied(how):
    net = Net(how)
    pointers = [p.data_ptr for p in net.parameters()]
    assert len(set(pointers)) == len(pointers)
    copied = copy.deepcopy(net)
    assert [n for n, _ in copied.named_parameters()] == [n for n, _ in net.named_parameters()]
    theirs = [p.data_ptr for p in copied.parameters()]
    assert len(set(theirs)) == len(theirs) and not set(theirs) & set(pointers)
    before = [np.array(p) for p in copied.parameters()]
    for p in net.parameters():
        p.detach().numpy()[...] += 1
    assert all(np.array_equal(a, np.asarray(p)) for a, p in zip(before, copied.parameters()))
    if how == "a weight by another attribute":
        assert copied.head.data_ptr == copied.emb.weight.data_ptr
    if how == "a layer of a stack":
        assert copied.first.norm1.weight.data_ptr == copied.stack.layers[0].norm1.weight.data_ptr
    if how == "a score function":
        with mh.Tape() as tape:
            tape.backward(mh.sum(mh.square(mh.attention(Q, K, V, score_mod=copied.mod))))
        assert copied.slope.grad is not None and net.slope.grad is None


def test_one_update_of_a_tied_weight():
    net = Net("a weight by another attribute")
    optimizer = mh.optim.SGD(net, lr=1.0)
    before = np.array(net.head)
    with mh.Tape() as tape:
        tape.backward(mh.sum(net.emb(np.array([1]))) + mh.sum(net.head))
    optimizer.step()
    np.testing.assert_allclose(before - np.asarray(net.head), np.ones((7, 8)) + np.eye(7)[[1]].T, atol=1e-6)


def _send(queue):
    queue.put([mh.causal(), mh.Rng(3), mh.rotary_table(2, 4), mh.score_mod(lambda s, b, h, i, j: s + i), mh.ones((2,))])


def test_a_worker_process_sends_them():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=_send, args=(queue,))
    worker.start()
    mask, rng, *_ = queue.get(timeout=30)
    worker.join()
    assert repr(mask) == repr(mh.causal()) and rng.seed == 3


def test_what_cannot_be_pickled_says_so():
    for thing in (mh.nn.Linear(2, 2), mh.Tape(), mh.nn.MultiHeadAttention(8, 2).make_state(1, 4)):
        with pytest.raises(TypeError, match="pickle|picklable"):
            pickle.dumps(thing)


def test_a_state_fits_modules_of_any_type():
    class Model(mh.nn.Module):
        def __init__(self):
            self.linear = mh.nn.Linear(2, 2)

    model = Model()
    model.linear.to("bfloat16")
    model.load_state_dict({"linear.weight": np.ones((2, 2), "f4"), "linear.bias": np.ones(2, "f4")})
    assert (np.asarray(model.linear.weight.to("float32")) == 1).all() and model.linear.weight.dtype == "bfloat16"


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_sinusoids_are_copied(copied):
    encoding = mh.nn.SinusoidalPositionalEncoding(6, dropout_p=0.25, layout="halves")
    again = copied(encoding)
    x = np.ones((1, 3, 6), np.float32)
    assert np.array_equal(np.asarray(again(x)), np.asarray(encoding(x)))
    assert repr(again) == "SinusoidalPositionalEncoding(6, dropout_p=0.25, layout='halves')" == repr(encoding)
    given, own = (np.asarray(module(x, rng=mh.Rng(3))) for module in (encoding, again))
    assert np.array_equal(given, own)
