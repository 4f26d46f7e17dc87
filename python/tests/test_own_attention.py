"""Attention that a user writes, in our language models: examples/own_attention, and what is refused."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import multihead as mh

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "own_attention"
spec = importlib.util.spec_from_file_location("own_attention_run", EXAMPLES / "run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


def model_of(name, **fields):
    own = run.attention_of(name)
    sizes = dict(vocab_size=19, context=24, num_layers=2, num_heads=2, embed_dim=16, ffn_dim=24, init_std=0.3)
    config = mh.models.LanguageModelConfig(**{**sizes, "positions": "rotary", **fields})
    return mh.models.LanguageModel(config, attention=own, rng=mh.Rng(1))


def tokens(batch, length):
    return np.random.default_rng(length).integers(0, 19, (batch, length))


@pytest.mark.parametrize("name", run.NAMES)
def test_cached_is_whole_bit_for_bit(name):
    model = model_of(name)
    x = tokens(2, 17)
    whole = model(x).numpy()
    state = model.make_state(2)
    parts = [model(x[:, a:b], state=state).numpy() for a, b in ((0, 6), (6, 7), (7, 17))]
    assert np.array_equal(np.concatenate(parts, 1), whole)
    # Rows of other lengths, forked, exchanged, and one of them begun again.
    state = model.make_state(2)
    model(x[:, :9], state=state, counts=[4, 9])
    fork = state.fork()
    state.reorder([1, 0])
    y = model(np.stack([x[1, 9:12], x[0, 4:7]]), state=state).numpy()
    assert np.array_equal(y, np.stack([whole[1, 9:12], whole[0, 4:7]]))
    fork.clear(0)
    y = model(x[:, :3], state=fork, counts=[3, 0]).numpy()
    assert np.array_equal(y[0], whole[0, :3])


@pytest.mark.parametrize("name", run.NAMES)
def test_gradients_are_those_of_differences(name):
    model = model_of(name).to("float64")
    x, rng = tokens(2, 9), np.random.default_rng(3)
    with mh.Tape() as tape:
        tape.backward(model.loss(x[:, :-1], x[:, 1:]))
    own = [(n, p) for n, p in model.named_parameters() if ".self_attn." in n]
    assert len(own) >= 4
    for path, weight in own:
        data, direction = weight.detach().numpy(), rng.normal(size=weight.shape)
        kept, values = data.copy(), []
        for h in (1e-6, -1e-6):
            data[...] = kept + h * direction
            values.append(float(model.loss(x[:, :-1], x[:, 1:]).numpy()))
        data[...] = kept
        expected = (values[0] - values[1]) / 2e-6
        assert abs((weight.grad.numpy() * direction).sum() - expected) < 1e-5 * max(1, abs(expected)), path


@pytest.mark.parametrize("name", run.NAMES)
def test_a_run_resumes_loads_and_generates(name, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("She was not to be persuaded, and he was not to be seen. " * 40)
    small = dict(layers=1, width=32, heads=2, context=24, batch=2)
    run.train(name, text, tmp_path / "whole", 6, **small)
    with pytest.raises(KeyboardInterrupt):
        run.train(name, text, tmp_path / "parts", 6, stop_at=3, **small)
    run.train(name, text, tmp_path / "parts", 6, resume=True, **small)
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "parts")]
    assert weights[0] == weights[1]
    command = [sys.executable, EXAMPLES / "run.py", "--use", name, tmp_path / "whole"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("She was ")


def test_a_process_that_does_not_know_the_class_says_so(tmp_path):
    model_of("sigmoid").save(tmp_path / "model")
    code = f"import multihead as mh; mh.models.LanguageModel.load({str(tmp_path / 'model')!r})"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'attention "Sigmoid" is not known here; define its class' in failed.stderr


def test_copies_share_nothing():
    model = model_of("forgetting")
    copy = model.clone()
    before = model(tokens(1, 5)).numpy()
    for _, weight in copy.named_parameters():
        weight.detach().numpy()[...] = 0
    assert np.array_equal(model(tokens(1, 5)).numpy(), before)
    wide = model.clone().to("float64")
    assert wide(tokens(1, 5)).dtype == "float64" and model(tokens(1, 5)).dtype == "float32"
    copy.load_state_dict(model.state_dict())
    assert np.array_equal(copy(tokens(1, 5)).numpy(), before)


def test_the_class_begins_training_as_it_is_made():
    shift = model_of("sigmoid").state_dict()["layers.1.self_attn.shift"].numpy()
    assert np.array_equal(shift, np.full(2, -np.log(64), np.float32))


def test_what_cannot_take_it_says_so(tmp_path):
    delta = model_of("delta_rule")
    named = 'attention "DeltaRule"'
    for refused in (
        lambda: delta.pack_weights("q8"),
        lambda: mh.models.prune(delta, heads=[[0], [0]]),
        lambda: delta.make_state(dtype="bfloat16"),
        lambda: delta.generate([[1, 2]], draft="lookup"),
        lambda: delta.sequence_features([[1, 2, 3]]),
        lambda: delta.attention_weights(tokens(1, 4)),
    ):
        with pytest.raises((ValueError, TypeError), match=named):
            refused()
    for fields, message in (
        ({"window": 3}, "a mask or window"),
        ({"attention_softcap": 3.0}, "softcap"),
    ):
        with pytest.raises(ValueError, match=message):
            model_of("delta_rule", **fields)(tokens(1, 4))
    with pytest.raises(TypeError, match="a subclass of multihead.nn.Attention"):
        mh.models.LanguageModel(delta.config, attention=mh.nn.Linear)


@pytest.mark.parametrize("fields", [{}, {"latent_dim": 8, "rotary_fraction": 0.5}])
def test_values_of_heads_are_refused_by_name(fields):
    if fields:
        config = mh.models.LanguageModelConfig(vocab_size=19, num_layers=2, num_heads=2, embed_dim=16, positions="rotary", **fields)
        model = mh.models.LanguageModel(config, rng=mh.Rng(1))
    else:
        model = model_of("delta_rule")
    x, named = tokens(2, 5), "values of heads; layers.0.self_attn is no multi-head attention"
    for refused in (
        lambda: mh.lens.ablate_heads(model, x, lambda logits: np.asarray(logits)[:, -1, 0]),
        lambda: mh.lens.run_with_hooks(model, x, hooks=mh.lens.head_gates(np.ones((2, 2)))),
        lambda: mh.lens.run_with_cache(model, x, points="layers.*.self_attn.pattern"),
        lambda: mh.lens.head_scores(model, length=4, batch=1),
    ):
        with pytest.raises(ValueError, match=named):
            refused()
    with pytest.raises(ValueError, match='nothing is called "layers.9.self_attn.z"'):
        mh.lens.run_with_cache(model, x, points="layers.9.self_attn.z")


def test_results_are_checked():
    class Narrow(mh.nn.Attention):
        def __call__(self, x, call):
            self.call = call
            return call.grown("k", x[..., None])[..., :3, 0] if call.is_cached else x[..., :3]

    model = mh.models.LanguageModel(
        mh.models.LanguageModelConfig(vocab_size=5, num_layers=1, embed_dim=8, num_heads=2, positions="none"), attention=Narrow
    )
    with pytest.raises(ValueError, match='attention "Narrow": its result must be'):
        model([[1, 2]])
    with pytest.raises(ValueError, match='attention "Narrow": "k" must be'):
        model([[1, 2]], state=model.make_state(1))
