"""Looking inside: caches, hooks, ablation, patching and attribution, each beside its definition."""

import gc

import numpy as np
import pytest

import multihead as mh

lens = mh.lens
KINDS = {
    "gpt2": {},
    "llama": {"positions": "rotary", "norm": "rms", "gated": True, "num_kv_heads": 2, "activation": "silu"},
    "phi": {"positions": "rotary", "block": "parallel_shared"},
    "attention_only": {"block": "attention_only", "positions": "learned"},
}


@pytest.fixture(params=KINDS)
def model(request):
    config = mh.models.LanguageModelConfig(
        vocab_size=50, context=32, num_layers=3, num_heads=4, embed_dim=32, init_std=0.3, **KINDS[request.param]
    )
    return mh.models.LanguageModel(config, rng=mh.Rng(3))


@pytest.fixture
def tokens():
    return np.random.default_rng(0).integers(0, 50, (3, 12))


def difference(logits):
    return np.asarray(logits)[:, -1, 7] - np.asarray(logits)[:, -1, 9]


def test_caching_changes_no_bit(model, tokens):
    logits, cache = lens.run_with_cache(model, tokens, points=["*.z", "layers.*.resid_*"])
    np.testing.assert_array_equal(np.asarray(logits), np.asarray(model(tokens)))
    assert cache.stack("self_attn.z").shape == (3, 3, 12, 4, 8)
    np.testing.assert_array_equal(cache["blocks.1.attn.hook_z"], cache["layers.1.self_attn.z"])
    np.testing.assert_array_equal(cache["layers.1.resid_pre"], cache["layers.0.resid_post"])
    with pytest.raises(KeyError, match="not in the cache"):
        cache["layers.7.resid_pre"]


def test_heads_and_rows(model, tokens):
    points = ["layers.1.self_attn.z", "layers.1.self_attn.pattern"]
    _, whole = lens.run_with_cache(model, tokens, points=points)
    _, part = lens.run_with_cache(model, tokens, points=points, heads=[2], rows=[-1, 4])
    z = np.asarray(whole["layers.1.self_attn.z"])
    np.testing.assert_array_equal(part["layers.1.self_attn.z"], z[:, [-1, 4]][:, :, [2]])
    pattern = np.asarray(whole["layers.1.self_attn.pattern"])
    np.testing.assert_array_equal(part["layers.1.self_attn.pattern"], pattern[:, [2]][:, :, [-1, 4]])
    np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)


def test_a_name_that_matches_nothing_is_an_error(model, tokens):
    with pytest.raises(ValueError, match='nothing is called "layers.9.resid_pre"; passed were .*embed'):
        lens.run_with_cache(model, tokens, points="layers.9.resid_pre")


def test_errors_of_hooks_arrive(model, tokens):
    def broken(x, name):
        raise KeyError(name)

    with pytest.raises(KeyError, match="layers.0.attn_out"):
        lens.run_with_hooks(model, tokens, hooks=[("layers.0.attn_out", broken)])
    with pytest.raises(mh.ShapeError, match=r"layers.0.attn_out must return f32 \[3, 12, 32\]"):
        lens.run_with_hooks(model, tokens, hooks=[("layers.0.attn_out", lambda x, name: np.zeros(3, np.float32))])
    assert np.isfinite(np.asarray(model(tokens))).all()


def test_points_act_on_their_thread_and_block_alone(model, tokens):
    before = np.asarray(model(tokens))
    points = mh.Points().edit("layers.*.attn_out", lambda x, name: 0 * x)
    with points:
        inside = np.asarray(model(tokens))
        with pytest.raises(ValueError, match="active already"), points:
            pass
    assert np.abs(inside - before).max() > 1e-3
    np.testing.assert_array_equal(np.asarray(model(tokens)), before)
    del points
    gc.collect()


def test_logit_lens_ends_with_the_logits(model, tokens):
    result = lens.logit_lens(model, tokens, rows=[-1, 3])
    assert result.shape == (4, 3, 2, 50)
    np.testing.assert_allclose(result[-1], np.asarray(model(tokens))[:, [-1, 3]], atol=1e-5)


@pytest.fixture
def post_norm():
    config = mh.models.LanguageModelConfig(
        vocab_size=50, context=32, num_layers=3, num_heads=4, embed_dim=32, init_std=0.3, norm_first=False
    )
    model = mh.models.LanguageModel(config, rng=mh.Rng(3))
    rng = np.random.default_rng(1)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.detach().numpy()[...] += rng.normal(size=weight.shape) * 0.5
    return model


def test_post_norm_models_end_in_their_last_norm(post_norm, tokens):
    result, logits = lens.logit_lens(post_norm, tokens), np.asarray(post_norm(tokens))
    np.testing.assert_array_equal(result[-1], logits)
    np.testing.assert_array_equal(lens.logit_lens(post_norm, tokens, rows=[-1])[-1], logits[:, -1:])
    _, cache = lens.run_with_cache(post_norm, tokens, points=["layers.2.resid_pre", "layers.1.resid_post"])
    np.testing.assert_array_equal(result[2], np.asarray(post_norm.logits(post_norm.final_norm(cache["layers.2.resid_pre"]))))
    normed = post_norm.layers[1].norm2(cache["layers.1.resid_post"])
    np.testing.assert_allclose(np.asarray(normed), cache["layers.2.resid_pre"], atol=1e-5)


@pytest.mark.parametrize("point", ["resid_pre", "resid_mid", "resid_post"])
def test_patching_is_that_of_hooks_with_post_norm(post_norm, tokens, point):
    clean, corrupted = tokens[:1], tokens[1:2]
    grid = lens.activation_patching(post_norm, clean, corrupted, difference, point=point)
    _, ours = lens.run_with_cache(post_norm, clean, points=f"layers.*.{point}")
    for layer, row in ((0, 3), (2, -1)):
        name = f"layers.{layer}.{point}"

        def patch(x, name):
            x = x.copy()
            x[:, row] = ours[name][:, row]
            return x

        expected = difference(lens.run_with_hooks(post_norm, corrupted, hooks=[(name, patch)]))
        assert grid[layer, row] == pytest.approx(expected[0], abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_kept_point_changes_a_bit(model, tokens, dtype):
    model = model.to(dtype)
    logits = np.asarray(model(tokens))
    for name in lens.run_with_cache(model, tokens)[1]:
        if not name.startswith(("layers.1", "layers.2")):
            np.testing.assert_array_equal(np.asarray(lens.run_with_cache(model, tokens, points=name)[0]), logits, err_msg=name)


@pytest.mark.parametrize("against", [None, 9])
def test_attributions_sum_to_the_logit(model, tokens, against):
    parts = lens.direct_logit_attribution(model, tokens[0], 7, against=against, row=5)
    logits = np.asarray(model(tokens[:1]))[0, 5]
    expected = float(logits[7] - (logits[against] if against else 0))
    assert sum(parts.values()) == pytest.approx(expected, abs=1e-5 * max(1, abs(expected)))
    assert "layers.2.head.3" in parts


@pytest.mark.parametrize("value", ["zero", "mean", "resample"])
def test_ablation_is_that_of_hooks(model, tokens, value):
    swept = lens.ablate_heads(model, tokens, difference, value=value, batch=6, rng=np.random.default_rng(1))
    order = np.random.default_rng(1).permutation(3)

    def ablated(z, name, head):
        z = np.array(z)
        z[:, :, head] = {"zero": 0, "mean": z[:, :, head].mean((0, 1)), "resample": z[order][:, :, head]}[value]
        return z

    for layer in range(3):
        for head in range(4):
            hook = (f"layers.{layer}.self_attn.z", lambda z, name, head=head: ablated(z, name, head))
            expected = difference(lens.run_with_hooks(model, tokens, hooks=[hook])).mean()
            assert swept[layer, head] == pytest.approx(expected, abs=2e-5)
    last = lens.ablate_heads(model, tokens, lambda x: difference(x), rows=[-1])
    np.testing.assert_allclose(last, lens.ablate_heads(model, tokens, difference), atol=2e-5)


def test_gates_scale_heads_and_have_gradients(model, tokens):
    gates = mh.tensor(np.ones((3, 4), np.float32), requires_grad=True)
    with mh.Tape() as tape:
        logits = lens.run_with_hooks(model, tokens, hooks=lens.head_gates(gates))
        tape.backward(mh.sum(logits[:, -1, 7]))
    gradient = np.asarray(gates.grad)
    moved = np.ones((3, 4), np.float32)
    moved[1, 2] += 1e-2
    up = np.asarray(lens.run_with_hooks(model, tokens, hooks=lens.head_gates(moved)))[:, -1, 7].sum()
    moved[1, 2] -= 2e-2
    down = np.asarray(lens.run_with_hooks(model, tokens, hooks=lens.head_gates(moved)))[:, -1, 7].sum()
    assert (up - down) / 2e-2 == pytest.approx(gradient[1, 2], rel=2e-2, abs=2e-3)


def test_patching_everything_gives_the_clean_run(model, tokens):
    clean, corrupted = tokens[:1], tokens[:1].copy()
    corrupted[0, 4] = (corrupted[0, 4] + 1) % 50
    grid = lens.activation_patching(model, clean, corrupted, difference)
    assert grid.shape == (3, 12)
    clean_value, corrupted_value = difference(model(clean))[0], difference(model(corrupted))[0]
    # Only token 4 differs in front of the first layer; earlier tokens differ nowhere.
    assert grid[0, 4] == pytest.approx(clean_value, abs=1e-5)
    np.testing.assert_allclose(grid[:, :4], corrupted_value, atol=1e-5)
    assert lens.activation_patching(model, clean, corrupted, difference, point="self_attn.z").shape == (3, 4)
    path = lens.path_patching(model, clean, clean, (0, 1), ["layers.2.self_attn.q"], difference)
    assert path == pytest.approx(clean_value, abs=1e-5)


def test_attribution_is_patching_to_first_order(model, tokens):
    clean, corrupted = tokens[:1], tokens[1:2]
    step = 1e-2
    metric = lambda logits: logits[:, -1, 7] - logits[:, -1, 9]  # noqa: E731
    for p in model.parameters():
        p.requires_grad = True
    estimate = lens.attribution_patching(model, clean, corrupted, metric)["blocks.1.hook_resid_pre"]
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    _, a = lens.run_with_cache(model, clean, points="layers.1.resid_pre")
    towards = lambda x, name: np.asarray(x) + step * (np.asarray(a[name]) - np.asarray(x))  # noqa: E731
    back = lambda x, name: np.asarray(x) - step * (np.asarray(a[name]) - np.asarray(x))  # noqa: E731
    moved = [difference(lens.run_with_hooks(model, corrupted, hooks=[("layers.1.resid_pre", f)]))[0] for f in (towards, back)]
    assert (moved[0] - moved[1]) / (2 * step) == pytest.approx(estimate.sum(), rel=2e-2, abs=5e-3)


def test_integrated_gradients_are_complete(model, tokens):
    metric = lambda logits: logits[:, -1, 7] - logits[:, -1, 9]  # noqa: E731
    parts = lens.integrated_gradients(model, tokens[0], metric, steps=256)
    start = np.asarray(model.token_embedding.weight).mean(0)
    blank = lens.run_with_hooks(model, tokens[:1], hooks=[("embed", lambda x, name: np.broadcast_to(start, x.shape).copy())])
    expected = difference(model(tokens[:1]))[0] - difference(blank)[0]
    assert parts.shape == (12, 32)
    assert parts.sum() == pytest.approx(expected, rel=2e-2, abs=2e-2)
    with pytest.raises(ValueError, match="expected one number per row, 32, got shape"):
        lens.integrated_gradients(model, tokens[0], lambda logits: logits[0, -1, 7])


def test_integrated_gradients_need_weights_with_gradients(model, tokens, tmp_path):
    model.save(tmp_path)
    packed = mh.models.LanguageModel.load(tmp_path, packed=True)
    with pytest.raises(ValueError, match="packed=False"):
        lens.integrated_gradients(packed, tokens[0], lambda logits: logits[:, -1, 7])


def test_importance_is_the_gradient_of_gates(model, tokens):
    importance = lens.head_importance(model, tokens)
    np.testing.assert_allclose(np.linalg.norm(importance, axis=1), 1, atol=1e-6)
    raw = np.zeros((3, 4))
    for row in tokens:
        gates = mh.tensor(np.ones((3, 4), np.float32), requires_grad=True)
        with mh.Tape() as tape:
            logits = lens.run_with_hooks(model, row[None, :-1], hooks=lens.head_gates(gates))
            tape.backward(mh.cross_entropy(logits, row[None, 1:]))
        raw += np.abs(np.asarray(gates.grad))
    np.testing.assert_allclose(importance, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=1e-4)


def test_rollout_and_scores(model, tokens):
    _, cache = lens.run_with_cache(model, tokens, points="layers.*.self_attn.pattern")
    rollout = lens.attention_rollout(cache)
    np.testing.assert_allclose(rollout.sum(-1), 1, atol=1e-5)
    assert rollout.shape == (3, 12, 12)
    scores = lens.head_scores(model, length=10, batch=2)
    assert {name: x.shape for name, x in scores.items()} == {
        name: (3, 4) for name in ("induction", "previous_token", "duplicate_token")
    }


def test_cutting_an_edge(model, tokens):
    points = mh.Points().exclude("layers.*.self_attn", lens.knock_out([(5, 2)], 12)).keep("layers.*.self_attn.pattern")
    with points:
        model(tokens)
    pattern = np.asarray(points.kept["layers.2.self_attn.pattern"])
    assert (pattern[:, :, 5, 2] == 0).all() and (pattern[:, :, 6, 2] > 0).all()


def test_encoders_have_the_same_points():
    encoder = mh.models.Encoder(mh.models.EncoderConfig(vocab_size=40, num_layers=2, num_heads=2, embed_dim=16))
    out, cache = lens.run_with_cache(encoder.features, [[1, 2, 3], [4, 5]], points=["*.z", "*.pattern", "*.resid_post"])
    assert cache["layers.0.self_attn.z"].shape == (1, 5, 2, 8)
    assert cache["layers.0.self_attn.pattern"].shape == (2, 2, 3, 3)
    with pytest.raises(ValueError, match="packed sequences cannot be edited"):
        lens.run_with_hooks(encoder.features, [[1, 2]], hooks=[("*.pattern", lambda x, name: x)])


def test_pruned_models_are_those_with_zeros(model, tokens, tmp_path):
    heads, units = ([[0, 2], [1, 3], [0, 3]], [list(range(i, 100, 3)) for i in range(3)])
    if model.config.num_kv_heads == 2:  # one of each group
        heads = [[0, 2], [1, 3], [0, 3]]
    units = None if model.config.block == "attention_only" else [some[:30] for some in units]
    smaller = lens.prune(model, heads=heads, units=units)
    assert smaller.config.num_heads == 2 and smaller.parameter_count() < model.parameter_count()
    gates = np.ones((3, 4), np.float32)
    for layer, some in enumerate(heads):
        gates[layer, some] = 0

    def silenced(x, name):
        x = np.array(x)
        x[..., units[int(name.split(".")[1])]] = 0
        return x

    hooks = lens.head_gates(gates) + ([("layers.*.mlp_post", silenced)] if units else [])
    expected = np.asarray(lens.run_with_hooks(model, tokens, hooks=hooks))
    np.testing.assert_allclose(np.asarray(smaller(tokens)), expected, atol=2e-5)
    smaller.save(str(tmp_path / "small"))
    again = mh.models.LanguageModel.load(str(tmp_path / "small"))
    np.testing.assert_array_equal(np.asarray(again(tokens)), np.asarray(smaller(tokens)))


def test_what_cannot_be_pruned(model):
    for heads, message in (
        ([[], [], [], [0]], "names 4 layers, the model has 3"),
        ([[4], [0], [0]], "layer 0 has no head 4, it has 4"),
        ([[0, 1, 2, 3]] * 3, "would lose all of its 4 heads"),
    ):
        with pytest.raises(ValueError, match=message):
            lens.prune(model, heads=heads)
    if model.config.num_kv_heads == 2:
        with pytest.raises(ValueError, match="would keep 2 query heads of key head 1 and 1 of key head 0"):
            lens.prune(model, heads=[[0]])
    if model.config.block != "attention_only":
        with pytest.raises(ValueError, match="remove as many in every layer"):
            lens.prune(model, units=[[0], [1], []])


def test_layers_may_keep_different_heads(model, tokens, tmp_path):
    heads = [[0, 1], [], [0, 2]]  # a whole group, none, one of each group
    small = mh.models.prune(mh.models.prune(model, heads=[[0, 1]]), heads=heads)
    assert small.config.num_heads == 4 and small.config.pruned_heads == heads
    gates = np.ones((3, 4), np.float32)
    for layer, some in enumerate(heads):
        gates[layer, some] = 0
    expected = np.asarray(lens.run_with_hooks(model, tokens, hooks=lens.head_gates(gates)))
    np.testing.assert_allclose(np.asarray(small(tokens)), expected, atol=2e-5)
    small.save(str(tmp_path / "small"))
    again = mh.models.LanguageModel.load(str(tmp_path / "small"))
    np.testing.assert_array_equal(np.asarray(again(tokens)), np.asarray(small(tokens)))
    state = again.make_state(batch=len(tokens))
    step = [np.asarray(again(tokens[:, i : i + 1], state=state)) for i in range(tokens.shape[1])]
    np.testing.assert_allclose(np.concatenate(step, 1), np.asarray(small(tokens)), atol=2e-5)
    mh.models.save_state(str(tmp_path / "state"), state, again)
    assert mh.models.load_state(str(tmp_path / "state"), again).lengths == state.lengths


def test_grouped_keys_and_values_are_means(model, tokens):
    if model.config.num_kv_heads != 4:
        pytest.skip("grouped already")
    grouped = mh.models.pool_kv_heads(model, 2)
    old = np.asarray(model.layers[0].self_attn.in_proj_weight)[32:64].reshape(2, 2, 8, 32).mean(1).reshape(16, 32)
    np.testing.assert_allclose(np.asarray(grouped.layers[0].self_attn.in_proj_weight)[32:48], old, atol=1e-7)
    assert grouped(tokens).shape == model(tokens).shape


def test_gates_close_what_costs_more_than_it_is_worth(model, tokens):
    batches = [(tokens[:, :-1], tokens[:, 1:])] * 60
    few = lens.train_head_gates(model, batches, penalty=10.0)
    many = lens.train_head_gates(model, batches, penalty=0.0)
    assert few.shape == (3, 4) and (few >= 0).all() and (many <= 1).all()
    assert few.mean() < 0.1 < many.mean()
    assert all(p.requires_grad for p in model.parameters())


def test_pruned_llamas_load_in_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = mh.models.LanguageModelConfig(
        vocab_size=50, context=32, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=32, positions="rotary", norm="rms",
        gated=True, activation="silu", attention_bias=False, out_bias=False, ffn_bias=False, tie_embeddings=False,
        init_std=0.3,
    )  # fmt: skip
    model = lens.prune(mh.models.LanguageModel(config, rng=mh.Rng(1)), heads=[[0, 1], [2, 3]], units=[[1, 5], [0, 7]])
    model.save(str(tmp_path))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = np.arange(10)[None]
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(np.asarray(model(tokens)), expected, atol=2e-5)
