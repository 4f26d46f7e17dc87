"""Modules of a user's own: what of their attributes is a parameter."""

import copy

import numpy as np
import pytest

import multihead as mh


def weight(*values):
    return mh.tensor(np.array(values, np.float32), requires_grad=True)


def names(module):
    return [name for name, _ in module.named_parameters()]


class Child(mh.nn.Module):
    def __init__(self, parent):
        self.parent = parent
        self.w = weight(1)


class Parent(mh.nn.Module):
    def __init__(self):
        self.child = Child(self)
        self.around = [self.child]
        self.around.append(self.around)


def test_modules_that_refer_to_each_other_are_entered_once():
    parent = Parent()
    assert names(parent) == ["child.w"]
    assert names(parent.child) == ["w"]
    assert "w [1]" in repr(parent)
    twin = copy.deepcopy(parent)
    assert twin.child.parent is twin
    twin.load_state_dict({"child.w": np.array([3], np.float32)})
    assert twin.child.w.item() == 3 and parent.child.w.item() == 1
    for module in (twin, mh.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="a dict, got list"):
            module.load_state_dict([1])


def test_dicts_hold_parameters():
    class Gated(mh.nn.Module):
        def __init__(self):
            self.gates = {"a": weight(1, 2), "layers": [mh.nn.Linear(2, 3, bias=False)], 5: weight(4)}
            self.seen = {}

    module = Gated()
    assert names(module) == ["gates.a", "gates.layers.0.weight", "gates.5"]
    assert "0 (Linear): 6" in repr(module)
    with mh.Tape() as tape:
        module.seen["product"] = mh.mul(module.gates["a"], module.gates["a"])
        assert len(names(module)) == 3  # a result is no parameter
        tape.backward(mh.sum(module.seen["product"]))
    assert module.gates["a"].grad.tolist() == [2, 4]


def test_frozen_layers_are_saved():
    class Tuned(mh.nn.Module):
        def __init__(self):
            self.inner = {"embedding": mh.nn.Embedding(3, 2), "head": mh.nn.Linear(2, 3)}
            self.scale = mh.tensor(np.ones(3, np.float32))  # a constant

    module, twin = Tuned(), Tuned()
    every = names(module)
    module.inner["embedding"].weight.requires_grad = False
    assert names(module) == every == list(module.state_dict()) and len(every) == 3
    twin.load_state_dict(module.state_dict())
    assert twin.inner["embedding"].weight.tolist() == module.inner["embedding"].weight.tolist()
    module.load_state_dict(twin.state_dict())
    before = module.inner["embedding"].weight.tolist()
    optimizer = mh.optim.AdamW(module, weight_decay=0.1)
    with mh.Tape() as tape:
        tape.backward(mh.sum(module.inner["head"](module.inner["embedding"]([0, 1]))))
    optimizer.step()
    module.zero_grad()
    assert module.inner["embedding"].weight.tolist() == before


def test_two_parameters_of_one_name_are_refused():
    module = Child({1: weight(1), "1": weight(2)})
    with pytest.raises(ValueError, match="Child: two parameters are named parent.1"):
        module.parameters()


class Gates(mh.nn.Attention):
    def __init__(self, sizes, rng):
        super().__init__(sizes, rng)
        self.gates = {"out": weight(1)}
        self.me = [self, (self,)]

    def attend(self, q, k, v, x, call):
        assert self.me[0] is self and self.me[1][0] is self
        return mh.attention(q, k, v, **call.options) * self.gates["out"]


def test_own_attention_may_hold_dicts_and_itself():
    config = mh.models.LanguageModelConfig(vocab_size=9, num_layers=2, embed_dim=8, num_heads=2)
    model = mh.models.LanguageModel(config, attention=Gates)
    assert [n for n in names(model) if "gates" in n] == [f"layers.{i}.self_attn.gates.out" for i in range(2)]
    wide = copy.deepcopy(model).to("float64")
    assert {p.dtype for p in wide.parameters()} == {"float64"} and {p.dtype for p in model.parameters()} == {"float32"}
    with mh.Tape() as tape:
        tape.backward(mh.sum(wide([[1, 2, 3]])))
    assert all(p.grad is not None for p in wide.parameters())
    np.testing.assert_allclose(wide([[1, 2, 3]]).numpy(), model([[1, 2, 3]]).numpy(), rtol=1e-4, atol=1e-5)
