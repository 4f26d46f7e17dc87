"""Wrong arguments of everything bound: an error in one line that says which argument, never a crash."""

import re
import subprocess
import sys

import numpy as np
import pytest

import multihead as mh
from multihead import _core

W = np.ones((2, 3), "f4")
LEARNS = mh.tensor(W, requires_grad=True)
ONE = mh.tensor(np.float32(0.5), requires_grad=True)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: mh.nn.Linear(2, 3, bais=True), "Linear: no argument 'bais'; did you mean 'bias'?"),
        (lambda: mh.nn.MultiHeadAttention(8, 2)(ONE, scale=1), "MultiHeadAttention: no argument 'scale'; it takes query, key"),
        (lambda: mh.nn.Linear(2), "Linear: out_features is missing; it takes in_features, out_features, bias, rng"),
        (lambda: mh.nn.Linear(2, None), "Linear: out_features must be an integer, got None"),
        (lambda: mh.nn.Linear("2", 3), "Linear: in_features must be an integer, got str"),
        (lambda: mh.nn.Linear(2, 3, False), "Linear: takes 2 positional arguments, got 3; it takes"),
        (lambda: mh.nn.MultiHeadAttention(8, 2, dropout=0.1), "MultiHeadAttention: no argument 'dropout'"),
        (lambda: mh.nn.MultiHeadAttention(8, 2, rng=3), "MultiHeadAttention: rng must be Rng or None, got int"),
        (lambda: mh.nn.Norm(4, eps="small"), "Norm: eps must be a number, got str"),
        (lambda: _core.torch_forward(W, W, W, scale="a"), "scaled_dot_product_attention: scale must be a number or None"),
        (lambda: mh.window(1.5, 2), "window: left must be an integer, got float"),
        (lambda: mh.keep(None), "keep: flags must not be None"),
        (lambda: mh.softmax(W, axis="last"), "softmax: axis must be an integer, got str"),
        (lambda: mh.optim.AdamW([LEARNS], learning_rate=1), "AdamW: no argument 'learning_rate'"),
        (lambda: mh.optim.Adam([LEARNS, None]), "parameters must be Tensors"),
        (lambda: mh.optim.SGD([None]), "parameters must be Tensors"),
        (lambda: mh.optim.SGD([("a", LEARNS), LEARNS]), "all Tensors or all (name, Tensor), got both"),
        (lambda: mh.optim.AdamW(LEARNS), "optimizer: parameters must be a list, got one Tensor"),
        (lambda: mh.attention(W, W, W, is_causal=True), "attention: no argument 'is_causal'; say mask=causal"),
    ],
)
def test_messages(call, text):
    with pytest.raises(TypeError) as caught:
        call()
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_a_wrong_value_of_a_property():
    optimizer = mh.optim.SGD([LEARNS])
    with pytest.raises(TypeError, match="SGD: the value of an attribute must be a number, got str"):
        optimizer.lr = "fast"


NUMBERS = {
    "scale of attention": lambda x: mh.attention(*[np.ones((1, 2, 3, 4), "f4")] * 3, scale=x),
    "softcap of attention": lambda x: mh.attention(*[np.ones((1, 2, 3, 4), "f4")] * 3, softcap=x),
    "dropout_p of attention": lambda x: mh.attention(*[np.ones((1, 2, 3, 4), "f4")] * 3, dropout_p=x, rng=mh.Rng(1)),
    "softcap of a module": lambda x: mh.nn.MultiHeadAttention(4, 2)(np.ones((1, 3, 4), "f4"), softcap=x),
    "scale of a module": lambda x: mh.nn.MultiHeadAttention(4, 2, scale=x),
    "scale": lambda x: mh.scale(W, x),
    "add_scalar": lambda x: mh.add_scalar(W, x),
    "eps of a norm": lambda x: mh.layer_norm(W, eps=x),
    "p of dropout": lambda x: mh.dropout(W, x, mh.Rng(1)),
    "label_smoothing": lambda x: mh.cross_entropy(W, np.array([0, 1]), label_smoothing=x),
    "lr": lambda x: mh.optim.AdamW([LEARNS], lr=x),
    "base of rotary_table": lambda x: mh.rotary_table(3, 4, base=x),
    "a layer's dropout": lambda x: mh.nn.TransformerLayer(embed_dim=4, num_heads=2, dropout_p=x),
    "a field of a config": lambda x: mh.models.LanguageModelConfig(vocab_size=4, dropout_p=x),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_tensor_that_requires_a_gradient_is_no_number(name):
    call = NUMBERS[name]
    with pytest.raises(TypeError):
        call(ONE)
    with mh.Tape(), pytest.raises(TypeError):
        call(ONE * 0.5)
    call(0.5), call(np.float32(0.5)), call(ONE.detach())  # numbers are


def test_a_torch_parameter_is_no_number():
    torch = pytest.importorskip("torch")
    for call in NUMBERS.values():
        with pytest.raises(TypeError):
            call(torch.tensor(0.5, requires_grad=True))


class TestWhatTheLibraryRuns:
    def test_layers_cannot_be_replaced(self):
        config = mh.models.LanguageModelConfig(vocab_size=5, context=4, embed_dim=4, num_layers=2, num_heads=2)
        encoder = mh.nn.TransformerEncoder(embed_dim=4, num_heads=2, num_layers=2)
        for stack in (mh.models.LanguageModel(config), encoder):
            assert len(stack.layers) == 2 and stack.layers[-1].norm1.weight.shape == (4,)
            for change in (lambda x: x.__setitem__(0, None), lambda x: x.append(1), lambda x: x.__delitem__(0), lambda x: x.pop()):
                with pytest.raises(TypeError, match="runs its own layers"):
                    change(stack.layers)
            with pytest.raises(AttributeError):
                stack.layers = []

    @pytest.mark.parametrize("base", ["LanguageModel", "Seq2Seq", "Tokenizer", "Rng", "Points"])
    def test_methods_cannot_be_overridden(self, base):
        base = getattr(_core, base)
        names = [n for n in vars(base) if not n.startswith("_")] + ["__call__"] * ("__call__" in vars(base))
        assert names
        for name in names:
            with pytest.raises(TypeError, match=f"'{name}' of {base.__name__} cannot be overridden"):
                type("Mine", (base,), {name: lambda self: None})
        mine = type("Mine", (base,), {"__init__": lambda self: None, "of_my_own": lambda self: 1})
        with pytest.raises(TypeError, match="cannot be overridden"):
            type("Deeper", (mine,), {names[0]: lambda self: None})

    def test_building_blocks_can(self):
        class Doubled(mh.nn.Linear):
            def __call__(self, x):
                return super().__call__(x) * 2

        doubled = Doubled(3, 2)
        np.testing.assert_allclose(np.asarray(doubled(W)), 2 * np.asarray(mh.nn.Linear.__call__(doubled, W)))


def test_a_schedule_without_an_end_is_refused():
    for kind in ("cosine", "linear", "wsd"):
        with pytest.raises(ValueError, match="total_steps"):
            mh.optim.learning_rate(5, kind=kind)


def test_a_model_that_is_not_here(tmp_path):
    for load in (mh.models.LanguageModel.load, mh.AutoModel.from_pretrained, mh.Tokenizer.load, mh.SentenceEncoder, mh.CrossEncoder):
        with pytest.raises(OSError, match="nothing is downloaded.*hf download"):
            load("openai-community/gpt2")


def test_save_refuses_the_folder_of_another_model(tmp_path):
    def model(width, seed=0):
        config = mh.models.LanguageModelConfig(vocab_size=5, context=4, embed_dim=width, num_layers=1, num_heads=2)
        return mh.models.LanguageModel(config, rng=mh.Rng(seed))

    model(4).save(tmp_path / "m")
    model(4, seed=1).save(tmp_path / "m")  # another step of the same training
    kept = (tmp_path / "m" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds another model.*is 4 there and 8 here"):
        model(8).save(tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == kept
    model(8).save(tmp_path / "n")


FUZZ = r"""
import inspect, os, re, sys, tempfile
import numpy as np
import multihead as mh
from multihead import _core

os.chdir(tempfile.mkdtemp())
x, weight = np.ones((1, 2, 3, 4), "f4"), mh.tensor(np.ones((2, 3), "f4"), requires_grad=True)
objects = [mh.nn.Linear(3, 2), mh.nn.MultiHeadAttention(8, 2), mh.nn.TransformerLayer(embed_dim=8, num_heads=2), weight,
           mh.causal(), mh.Rng(1), mh.optim.Adam([weight]), mh.nn.MultiHeadAttention(8, 2).make_state(1, 4),
           mh.models.LanguageModelConfig(vocab_size=5, context=4, embed_dim=4, num_layers=1, num_heads=2),
           mh.models.LanguageModel(mh.models.LanguageModelConfig(vocab_size=5, context=4, embed_dim=4, num_layers=1, num_heads=2)),
           mh.AttentionCapture(), mh.rotary_table(3, 4), mh.score_mod(lambda s, b, h, i, j: s), mh.Points()]
wrong = [None, [None], (None, None), {"a": None}, [("a", None)], [weight, None], "text", b"x", object(), [objects[0]]]
functions = [f for f in vars(_core).values() if callable(f)]
for kind in [f for f in functions if isinstance(f, type)]:
    functions += [getattr(kind, n) for n, f in vars(kind).items() if type(f).__name__ == "nb_func"]
for thing in objects:
    functions += [getattr(thing, n) for n, f in vars(type(thing)).items() if type(f).__name__ == "nb_method" and n != "__init__"]
calls = texts = 0
for f in functions:
    signatures = getattr(f, "__nb_signature__", ()) or getattr(getattr(f, "__init__", None), "__nb_signature__", ())
    names = sorted({n for s in signatures for n in re.findall(r"[(,*] ?(\w+):", s[0]) if n != "self"})
    tries = [((v,) * n, {}) for v in wrong for n in (1, 2, 3)] + [((x, x, x), {n: v}) for n in names for v in wrong]
    tries += [((), {n: v}) for n in names for v in wrong] + [((), {"no_such_argument": 1})]
    for arguments, keywords in tries:
        calls += 1
        print(getattr(f, "__name__", f), [type(a).__name__ for a in arguments], {k: repr(v)[:40] for k, v in keywords.items()}, file=sys.stderr)
        try:
            f(*arguments, **keywords)
        except Exception as error:
            text = str(error)
            if "incompatible function arguments" in text or re.search(r"std::|nanobind::|multihead::", text) or isinstance(error, SystemError):
                texts += 1
                print("TEXT", getattr(f, "__name__", f), text[:200])
print("DONE", len(functions), calls, texts, flush=True)
os._exit(0)
"""


def test_nothing_crashes_on_none_and_wrong_types():
    run = subprocess.run([sys.executable, "-c", FUZZ], capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    last = run.stderr.strip().splitlines()[-3:]
    match = re.search(r"DONE (\d+) (\d+) (\d+)", run.stdout)
    assert run.returncode == 0 and match, (run.returncode, last)
    assert int(match[1]) > 250 and int(match[2]) > 10000
    assert int(match[3]) == 0, [line for line in run.stdout.splitlines() if line.startswith("TEXT")][:20]
