"""Decoding states of modules, and the parts of modules: stepwise equals everything at once, bit for bit."""

import copy

import numpy as np
import pytest

import multihead as mh
from multihead import nn

OPTIONS = {
    "post-norm": dict(embed_dim=16, num_heads=4, hidden_dim=24, activation="relu"),
    "pre-norm": dict(embed_dim=16, num_heads=4, num_kv_heads=2, norm_first=True, norm="rms", scale=0.2),
    "no biases": dict(embed_dim=16, num_heads=2, attention_bias=False, out_bias=False, ffn_bias=False),
}
LENGTHS = [7, 3]


def decoder_of(name):
    return nn.TransformerDecoder(num_layers=2, final_norm=name == "pre-norm", rng=mh.Rng(3), **OPTIONS[name])


@pytest.fixture
def sequences(rng):
    return rng.standard_normal((2, 11, 16), dtype="f4"), rng.standard_normal((2, 7, 16), dtype="f4")


def equal(a, b):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("chunks", [[1] * 11, [4, 1, 6], [11]])
@pytest.mark.parametrize("name", OPTIONS)
def test_decoder_by_steps_is_the_decoder_at_once(sequences, name, chunks):
    x, memory = sequences
    decoder = decoder_of(name)
    whole = np.asarray(decoder(x, memory, memory_mask=mh.lengths(LENGTHS)))
    state = decoder.start(memory, LENGTHS, capacity=11)
    at = 0
    for chunk in chunks:
        equal(decoder(x[:, at : at + chunk], state=state), whole[:, at : at + chunk])
        at += chunk
    assert state.lengths == [11, 11] and state.cross_lengths == LENGTHS and state.batch == 2
    assert [key.shape for key, _ in state.cross()] == [(2, decoder.layers[0].self_attn.num_kv_heads, 7, 16 // decoder.layers[0].self_attn.num_heads)] * 2


def test_decoder_with_rows_of_their_own_lengths(sequences):
    x, memory = sequences
    decoder = decoder_of("post-norm")
    whole = np.asarray(decoder(x, memory))
    state = decoder.start(memory, capacity=11)
    decoder(x[:, :5], state=state, counts=[5, 2])
    assert state.lengths == [5, 2]
    following = np.stack([x[0, 5:8], x[1, 2:5]])
    out = np.asarray(decoder(following, state=state))
    equal(out[0], whole[0, 5:8])
    equal(out[1], whole[1, 2:5])


def test_a_state_is_reordered_forked_truncated_and_cleared(sequences):
    x, memory = sequences
    decoder = decoder_of("pre-norm")
    whole = np.asarray(decoder(x, memory))
    state = decoder.start(memory, capacity=11)
    decoder(x[:, :4], state=state)

    other = state.fork()
    equal(decoder(x[:, 4:5], state=other), decoder(x[:, 4:5], state=copy.deepcopy(state)))
    assert other.lengths == [5, 5] and state.lengths == [4, 4]

    # Exchanged rows take their memory along; hypotheses of one sentence share it.
    state.reorder([1, 0])
    equal(decoder(x[::-1, 4:6], state=state), whole[::-1, 4:6])
    state.truncate(4)
    state.repeat(3)
    assert state.batch == 6 and state.group == 3
    beams = np.repeat(x[::-1, 4:5], 3, axis=0)
    equal(decoder(beams, state=state), np.repeat(whole[::-1, 4:5], 3, axis=0))
    with pytest.raises(ValueError, match="two sentences"):
        state.reorder([0, 1, 3, 3, 4, 5])

    state = decoder.start(memory, capacity=11)
    decoder(x, state=state)
    state.clear(1)
    assert state.lengths == [11, 0]
    equal(decoder(x[:, :3], state=state, counts=[0, 3])[1], whole[1, :3])


def test_what_does_not_fit_a_state_is_refused_and_changes_nothing(sequences):
    x, memory = sequences
    decoder = decoder_of("post-norm")
    state = decoder.start(memory, capacity=4)
    cases = {
        "neither": (ValueError, "a memory or a state", lambda: decoder(x)),
        "both": (ValueError, "not both", lambda: decoder(x, memory, state=state)),
        "capacity": (ValueError, "capacity is 4", lambda: decoder(x, state=state)),
        "rows": (mh.ShapeError, "2 rows", lambda: decoder(x[:1, :1], state=state)),
        "counts": (ValueError, "adds 3 of 2", lambda: decoder(x[:, :2], state=state, counts=[3, 0])),
        "layers": (mh.ShapeError, "one layer", lambda: decoder.layers[0](x[:, :1], state=state)),
        "lengths": (ValueError, "exceeds the memory", lambda: decoder.start(memory, [8, 1], capacity=4)),
        "memory": (mh.ShapeError, "memory must be", lambda: decoder.start(memory[0], capacity=4)),
        "no room": (ValueError, "must be positive", lambda: decoder.start(memory, capacity=0)),
    }
    for name, (error, text, call) in cases.items():
        with pytest.raises(error, match=text):
            call()
        assert state.lengths == [0, 0], name


@pytest.mark.parametrize("window", [0, 3])
def test_a_layer_and_an_attention_go_step_by_step(sequences, window):
    x, memory = sequences
    mask = mh.window(window - 1, 0) if window else mh.causal()
    layer = nn.TransformerLayer(rng=mh.Rng(5), **OPTIONS["pre-norm"])
    whole = np.asarray(layer(x, mask=mask))
    capacity = 300 if window else 11  # a ring drops whole blocks
    state = layer.make_state(2, capacity, window=window)
    out = [np.asarray(layer(x[:, i : i + 1], state=state)) for i in range(11)]
    equal(np.concatenate(out, 1), whole)

    attention = layer.self_attn
    state = attention.make_state(2, capacity, window=window)
    out = [np.asarray(attention.decode(x[:, i : i + 1], state)) for i in range(11)]
    equal(np.concatenate(out, 1), attention(x, mask=mask))
    assert state.lengths == [11, 11]


def test_a_decoder_layer_and_projected_memories(sequences):
    x, memory = sequences
    layer = nn.TransformerLayer(cross_attention=True, rng=mh.Rng(5), **OPTIONS["post-norm"])
    whole = np.asarray(layer(x, memory=memory, memory_mask=mh.lengths(LENGTHS), mask=mh.causal()))
    state = layer.start(memory, LENGTHS, capacity=11)
    out = [np.asarray(layer(x[:, i : i + 1], state=state)) for i in range(11)]
    equal(np.concatenate(out, 1), whole)
    with pytest.raises(ValueError, match="not both"):
        layer(x[:, :1], memory=memory, state=state)

    attention = layer.multihead_attn
    projected = attention.project_memory(memory)
    assert [t.shape for t in projected] == [(2, 4, 7, 4)] * 2
    equal(attention.attend(x, projected, mask=mh.lengths(LENGTHS)), attention(x, memory, mask=mh.lengths(LENGTHS)))


def test_positions_and_rotary_follow_the_state(sequences):
    x, memory = sequences
    decoder, encoding = decoder_of("post-norm"), nn.SinusoidalPositionalEncoding(16)
    table = mh.rotary_table(11, 4)
    whole = np.asarray(decoder(encoding(x), memory, rotary=table))
    state = decoder.start(memory, capacity=11)
    for i in range(11):
        step = encoding(x[:, i : i + 1], state.lengths)
        equal(decoder(step, state=state, rotary=mh.rotary_table(1, 4, state.lengths)), whole[:, i : i + 1])


def test_a_translator_goes_step_by_step(rng, tmp_path):
    config = mh.models.Seq2SeqConfig(source_vocab_size=31, encoder_layers=1, decoder_layers=2, embed_dim=16, num_heads=4)
    model = mh.models.Seq2Seq(config, rng=mh.Rng(1))
    source, target = rng.integers(1, 31, (2, 7)), rng.integers(1, 31, (2, 5))
    whole = np.asarray(model(source, target, source_lengths=LENGTHS))
    state = model.start(source, source_lengths=LENGTHS, capacity=5)
    equal(model.step(target[:, :2], state), whole[:, :2])
    path = str(tmp_path / "state.safetensors")
    mh.models.save_state(path, state, model)
    for s in (state, mh.models.load_state(path, model)):
        equal(model.step(target[:, 2:], s), whole[:, 2:])
    memory = model.encode(source, source_lengths=LENGTHS)
    assert memory.shape == (2, 7, 16)
    with pytest.raises(mh.FormatError, match="another model"):
        mh.models.load_state(path, mh.models.Seq2Seq(config, rng=mh.Rng(2)))


def test_parts_are_the_modules_own():
    layer = nn.TransformerLayer(cross_attention=True, qk_norm=True, rng=mh.Rng(5), **OPTIONS["post-norm"])
    state = layer.state_dict()
    for name, weight in state.items():  # every parameter can be reached by its PyTorch name
        part = layer
        for attribute in name.split("."):
            part = getattr(part, attribute)
        assert part.data_ptr == weight.data_ptr, name
    assert layer.self_attn is layer.self_attn and layer.feed_forward.fc1.weight.data_ptr == layer.linear1.weight.data_ptr
    assert nn.TransformerLayer(embed_dim=16, num_heads=4).multihead_attn is None
    assert layer.self_attn.q_proj is None and nn.MultiHeadAttention(16, 4, key_bias=False).q_proj.in_features == 16

    encoder = nn.TransformerEncoder(embed_dim=16, num_heads=4, num_layers=3)
    part = encoder.layers[2].linear2
    del encoder
    part.weight.detach().numpy()[...] = 0  # a part keeps its module alive
    assert part.out_features == 16
    both = nn.Transformer(encoder=dict(embed_dim=16, num_heads=4), decoder=dict(embed_dim=16, num_heads=4, num_layers=1))
    assert len(both.decoder.layers) == 1 and both.encoder.norm is None
    both.decoder.layers[0].norm3.load_state_dict({"weight": np.full(16, 2, "f4"), "bias": np.zeros(16, "f4")})
    assert (np.asarray(both.state_dict()["decoder.layers.0.norm3.weight"]) == 2).all()
    both.to("float64")
    assert both.decoder.layers[0].self_attn.in_proj_weight.dtype == "float64"


def test_scale_and_biases_of_layers(rng):
    x = rng.standard_normal((2, 5, 16), dtype="f4")
    blog = nn.TransformerLayer(embed_dim=16, num_heads=4, scale=16**-0.5, rng=mh.Rng(1))
    assert blog.self_attn.scale == 0.25 and nn.TransformerLayer(embed_dim=16, num_heads=4).self_attn.scale == 0.5
    usual = nn.TransformerLayer(embed_dim=16, num_heads=4, rng=mh.Rng(1))
    captured = [mh.AttentionCapture(), mh.AttentionCapture()]
    blog(x, capture=captured[0]), usual(x, capture=captured[1], softcap=0.0)
    soft, sharp = (np.asarray(c.weights).max() for c in captured)
    assert soft < sharp
    labml = nn.TransformerLayer(embed_dim=16, num_heads=4, query_bias=False, key_bias=False)
    assert labml.self_attn.q_proj.bias is None and labml.self_attn.v_proj.bias is not None
    with pytest.raises(TypeError, match="scale has the wrong type"):
        nn.TransformerLayer(embed_dim=16, num_heads=4, scale="soft")


def test_stacks_give_self_and_cross_weights(sequences):
    x, memory = sequences
    decoder = decoder_of("post-norm")
    out, own, cross = decoder(x, memory, capture=True, cross_capture=True)
    assert [w.shape for w in own + cross] == [(2, 4, 11, 11)] * 2 + [(2, 4, 11, 7)] * 2
    equal(out, decoder(x, memory))
    state = decoder.start(memory, capacity=11)
    _, cross_steps = decoder(x, state=state, cross_capture=True)
    equal(cross_steps[1], cross[1])


def test_scores_with_valid_lengths_as_the_documents_have_them(rng):
    torch = pytest.importorskip("torch")
    scores = rng.standard_normal((2, 3, 5), dtype="f4")
    before = scores.copy()
    for lengths in ([2, 5], [[1, 2, 3], [5, 4, 1]]):
        valid = np.arange(5) < (np.array(lengths)[:, None, None] if np.ndim(lengths) == 1 else np.array(lengths)[..., None])
        valid = np.broadcast_to(valid, scores.shape)
        expected = np.where(valid, scores, np.float32(-1e6))
        equal(mh.masked_X(scores, lengths), expected)
        equal(mh.masked_scores(scores, lengths, value=0), np.where(valid, scores, 0))
        np.testing.assert_allclose(np.asarray(mh.masked_softmax(scores, lengths)), torch.tensor(expected).softmax(-1), atol=1e-7)
    equal(scores, before)
    equal(mh.masked_softmax(np.full((1, 2, 3), np.nan, "f4"), [0]), np.zeros((1, 2, 3)))
    with pytest.raises(mh.ShapeError, match="valid_lens must be"):
        mh.masked_softmax(scores, [1, 2, 3])
    for length in (-1, 6):
        with pytest.raises(ValueError, match=f"valid_lens must be in .0, Tk=5., got {length}"):
            mh.masked_softmax(scores, [5, length])
        with pytest.raises(ValueError, match="masked_scores: valid_lens must be in"):
            mh.masked_scores(scores, [5, length])


def test_masks_of_other_systems_are_checked_where_they_are_used():
    q, k = np.zeros((3, 2, 5, 4), "f4"), np.zeros((3, 2, 7, 4), "f4")
    for make, good, bad in (
        (mh.from_labml_mask, [(5, 7, 3), (1, 7, 3), (5, 7, 1)], [(5, 1, 3), (1, 1, 1), (4, 7, 3), (5, 7, 2)]),
        (mh.from_torch_mha_mask, [(5, 7)], [(1, 7), (5, 1), (6, 5, 7)]),
        (mh.from_torch_key_padding_mask, [(3, 7)], [(1, 7), (3, 1), (7,)]),
    ):
        for shape in good:
            mh.attention(q, k, k, mask=make(np.ones(shape, bool)))
        for shape in bad:
            with pytest.raises(mh.ShapeError):
                mh.attention(q, k, k, mask=make(np.ones(shape, bool)))
    with pytest.raises(mh.ShapeError, match="must have Tk=7, got 1: this axis is not broadcast"):
        mh.attention(q, k, k, mask=mh.from_labml_mask(np.ones((5, 1, 3))))


def test_labels_of_tokens():
    tokenizer = mh.Tokenizer.train_bpe("the fox", vocab_size=258)
    ids = tokenizer.encode("a\u72d0\xe9")
    labels = mh.text.token_labels(tokenizer, ids)
    assert labels == ["a"] + [f"\u72d0{x}" for x in ("\xb9\u2044\u2083", "\xb2\u2044\u2083", "\xb3\u2044\u2083")] + [
        f"\xe9{x}" for x in ("\xb9\u2044\u2082", "\xb2\u2044\u2082")
    ]
    view = mh.AttentionView(np.eye(6, dtype="f4"), tokens=labels)
    assert view.svg().count("text-anchor") == 6 and view.svg(cell=5).count("text-anchor") == 2
