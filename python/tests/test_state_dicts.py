"""State dicts of PyTorch's modules by their names, and what messages say of names that do not fit."""

import numpy as np
import pytest

import multihead as mh

torch = pytest.importorskip("torch")

LAYER = dict(embed_dim=8, num_heads=2, hidden_dim=12, activation="relu")


def torch_pairs():
    tn = torch.nn
    yield mh.nn.MultiHeadAttention(8, 2), tn.MultiheadAttention(8, 2)
    yield mh.nn.MultiHeadAttention(8, 2, query_bias=False, key_bias=False, value_bias=False, out_bias=False), tn.MultiheadAttention(8, 2, bias=False)
    yield mh.nn.TransformerLayer(**LAYER), tn.TransformerEncoderLayer(8, 2, 12)
    yield mh.nn.TransformerLayer(**LAYER, cross_attention=True), tn.TransformerDecoderLayer(8, 2, 12)
    yield mh.nn.TransformerEncoder(num_layers=2, **LAYER), tn.TransformerEncoder(tn.TransformerEncoderLayer(8, 2, 12), 2)
    yield mh.nn.TransformerDecoder(num_layers=2, **LAYER), tn.TransformerDecoder(tn.TransformerDecoderLayer(8, 2, 12), 2)
    yield mh.nn.Linear(3, 4), tn.Linear(3, 4)
    yield mh.nn.Embedding(3, 4), tn.Embedding(3, 4)


def test_the_names_are_those_of_torch():
    for ours, theirs in torch_pairs():
        state = {name: tensor.detach() for name, tensor in theirs.state_dict().items()}
        ours.load_state_dict(state)
        got = ours.state_dict()
        assert set(got) == set(state)
        for name, tensor in state.items():
            np.testing.assert_array_equal(np.asarray(got[name]), tensor.numpy())


def test_a_message_names_what_is_missing_unexpected_and_misshaped_and_the_nearest():
    layer = mh.nn.TransformerLayer(**LAYER)
    state = {name: np.asarray(tensor) for name, tensor in layer.state_dict().items()}
    before = {name: tensor.copy() for name, tensor in state.items()}
    state["self_attn.in_projection_weight"] = state.pop("self_attn.in_proj_weight") + 1
    state["linear1.weight"] = np.zeros((8, 12), np.float32)
    with pytest.raises(mh.FormatError) as error:
        layer.load_state_dict(state)
    message = str(error.value)
    assert "missing self_attn.in_proj_weight [24, 8]; the nearest is self_attn.in_projection_weight" in message
    assert "linear1.weight: expected [12, 8], got [8, 12]" in message
    assert "unexpected self_attn.in_projection_weight [24, 8]" in message
    for name, tensor in layer.state_dict().items():
        np.testing.assert_array_equal(np.asarray(tensor), before[name])
