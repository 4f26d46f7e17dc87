"""Modules, optimisers, files, tokenizers, language models, training, the command line."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import multihead as mh
from multihead import nn

TEXT = "The quick brown fox jumps over the lazy dog. " * 60


def tiny(**changes):
    fields = dict(vocab_size=31, context=24, num_layers=2, num_heads=4, num_kv_heads=2, embed_dim=16, positions="rotary")
    return mh.models.LanguageModel(mh.models.LanguageModelConfig(**{**fields, **changes}), rng=mh.Rng(1))


def test_modules_have_pytorchs_names():
    a = nn.MultiHeadAttention(16, 4, rng=mh.Rng(1))
    assert sorted(a.state_dict()) == ["in_proj_bias", "in_proj_weight", "out_proj.bias", "out_proj.weight"]
    assert a.parameter_count() == 4 * 16 * 16 + 4 * 16 and a.num_heads == 4 and a.head_dim == 4
    layer = nn.TransformerLayer(embed_dim=16, num_heads=4, cross_attention=True)
    assert "multihead_attn.in_proj_weight" in layer.state_dict() and "linear1.weight" in layer.state_dict()


def test_modules_compute_and_have_gradients(rng):
    x = rng.standard_normal((2, 5, 16), dtype="f4")
    modules = [
        nn.Linear(16, 16),
        nn.LayerNorm(16),
        nn.RMSNorm(16),
        nn.FeedForward(16, 32, gated=True, activation="silu"),
        nn.MultiHeadAttention(16, 4, num_kv_heads=2),
        nn.TransformerLayer(embed_dim=16, num_heads=4, norm_first=True, norm="rms"),
        nn.TransformerEncoder(embed_dim=16, num_heads=4, num_layers=2, final_norm=True),
    ]
    for module in modules:
        with mh.Tape() as tape:
            y = module(x)
            assert y.shape == (2, 5, 16)
            tape.backward(mh.sum(y * y))
        for name, parameter in module.named_parameters():
            assert np.isfinite(np.asarray(parameter.grad)).all(), name
        module.zero_grad()
        assert all(p.grad is None for p in module.parameters())
    decoder = nn.TransformerDecoder(embed_dim=16, num_heads=4, num_layers=2)
    both = nn.Transformer(encoder=dict(embed_dim=16, num_heads=4), decoder=dict(embed_dim=16, num_heads=4))
    assert decoder(x, x).shape == both(x, x).shape == (2, 5, 16)
    out, weights = modules[-1](x, mask=mh.causal(), capture=True)
    assert len(weights) == 2 and weights[0].shape == (2, 4, 5, 5)


def test_module_options_are_checked():
    with pytest.raises(ValueError, match="divisible"):
        nn.MultiHeadAttention(10, 3)
    with pytest.raises(TypeError, match="unknown option 'heads'"):
        nn.TransformerLayer(embed_dim=16, num_heads=4, heads=2)
    with pytest.raises(TypeError, match="embed_dim is missing"):
        nn.TransformerEncoder(num_heads=4)
    with pytest.raises(ValueError, match="'gelu_tanh'"):
        nn.FeedForward(4, 8, activation="swish")
    with pytest.raises(mh.ShapeError, match="query must be"):
        nn.MultiHeadAttention(16, 4)(np.ones((2, 5, 15), "f4"))


def test_state_dicts_and_copies(rng):
    import copy
    import pickle

    a, b = nn.Linear(3, 4, rng=mh.Rng(1)), nn.Linear(3, 4, rng=mh.Rng(2))
    b.load_state_dict({k: np.asarray(v) for k, v in a.state_dict().items()})
    x = rng.standard_normal((2, 3), dtype="f4")
    np.testing.assert_array_equal(np.asarray(a(x)), np.asarray(b(x)))
    with pytest.raises(mh.FormatError) as info:
        b.load_state_dict({"weight": np.ones((3, 3), "f4"), "gain": np.ones(3, "f4")})
    assert all(word in str(info.value) for word in ("gain", "bias", "weight")) and "\n" in str(info.value)
    np.testing.assert_array_equal(np.asarray(a(x)), np.asarray(b(x)))
    c = copy.deepcopy(a)
    assert c.weight.data_ptr != a.weight.data_ptr
    with pytest.raises(TypeError, match="safetensors"):
        pickle.dumps(a)
    assert a.to("float64").weight.dtype == "float64"


class Classifier(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(31, 16)
        self.layers = [nn.TransformerLayer(embed_dim=16, num_heads=4) for _ in range(2)]
        self.head = nn.Linear(16, 3)
        self.scale = mh.tensor([1.0], requires_grad=True)

    def __call__(self, tokens, **options):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, **options)
        return self.head(x[:, 0]) * self.scale


def test_a_module_of_ones_own_learns(rng):
    model = Classifier()
    names = [name for name, _ in model.named_parameters()]
    assert "layers.1.self_attn.out_proj.weight" in names and "scale" in names
    tokens, targets = rng.integers(0, 31, (12, 7)), rng.integers(0, 3, 12)
    optimizer = mh.optim.AdamW(model, lr=1e-2)
    losses = []
    for _ in range(30):
        with mh.Tape() as tape:
            loss = mh.cross_entropy(model(tokens), targets)
            tape.backward(loss)
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    other = Classifier()
    other.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(np.asarray(other(tokens)), np.asarray(model(tokens)))
    with pytest.raises(mh.FormatError, match="missing scale"):
        other.load_state_dict({})


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD"])
def test_optimizers_follow_pytorchs(rng, kind):
    torch = pytest.importorskip("torch")
    start = rng.standard_normal((4, 3), dtype="f4")
    options = dict(lr=0.05, weight_decay=0.1, **({"momentum": 0.9} if kind == "SGD" else {}))
    x, y = mh.tensor(start.copy(), requires_grad=True), torch.tensor(start, requires_grad=True)
    ours, theirs = getattr(mh.optim, kind)([x], **options), getattr(torch.optim, kind)([y], **options)
    for step in range(5):
        g = rng.standard_normal((4, 3), dtype="f4")
        x.grad, y.grad = mh.tensor(g), torch.tensor(g)
        ours.step(), theirs.step()
    np.testing.assert_allclose(np.asarray(x), y.detach().numpy(), atol=1e-6)
    assert ours.steps == 5 and len(ours.state_dict()) >= 2
    with pytest.raises(mh.NumericError, match="0"):
        x.grad = mh.tensor(np.full((4, 3), np.nan, "f4"))
        ours.clip_grad_norm(1.0)


def test_schedules():
    rates = [mh.optim.learning_rate(s, kind="cosine", lr=1.0, warmup_steps=4, total_steps=20) for s in range(20)]
    assert rates[0] == 0.25 and max(rates) == 1.0 and rates[-1] < 0.05
    with pytest.raises(ValueError):
        mh.optim.learning_rate(0, kind="up")
    assert [mh.optim.learning_rate(s, kind="wsd", lr=1.0, total_steps=10) for s in (0, 8, 10)] == [1, 1, 0]


def test_safetensors(tmp_path, rng):
    path = str(tmp_path / "x.safetensors")
    tensors = {"a": rng.standard_normal((3, 4), dtype="f4"), "b": np.arange(5), "c": np.array([True, False])}
    mh.save_safetensors(path, {**tensors, "d": mh.tensor([1.0]).to("bfloat16")}, {"made": "here"})
    loaded = mh.load_safetensors(path)
    for name, array in tensors.items():
        np.testing.assert_array_equal(np.asarray(loaded[name]), array)
    assert loaded["d"].dtype == "bfloat16"
    with pytest.raises(OSError):
        mh.load_safetensors(str(tmp_path / "none.safetensors"))
    (tmp_path / "bad.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{]")
    with pytest.raises(mh.FormatError):
        mh.load_safetensors(str(tmp_path / "bad.safetensors"))


def test_tokenizers(tmp_path):
    t = mh.Tokenizer.train_bpe(TEXT, vocab_size=300)
    ids = t.encode("The lazy fox — 狐\x00")
    assert t.decode(ids) == "The lazy fox — 狐\x00" and t.decode_bytes(np.array(ids)) == "The lazy fox — 狐\x00".encode()
    t.save(str(tmp_path))
    assert pickle.loads(pickle.dumps(t)).eos_id == t.eos_id and copy.deepcopy(t).fingerprint == t.fingerprint
    again = mh.Tokenizer.load(str(tmp_path))
    assert again.encode("dog") == t.encode("dog") and again.fingerprint == t.fingerprint
    assert t.encode(b"\xff\xfe") and t.vocab_size == len(t) and t.eos_id is not None
    c = mh.Tokenizer.train_characters(["abc"])
    assert c.decode(c.encode("cab")) == "cab"
    assert c.decode([0, 99, 1]) == "ab"  # what a model is padded with stands for nothing, as in tokenizers
    for call in (lambda: c.encode("z"), lambda: c.decode([-1])):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError, match="str or bytes"):
        c.encode(3)


def test_language_model(tmp_path, rng):
    model = tiny()
    tokens = rng.integers(0, 31, (2, 9))
    logits = np.asarray(model(tokens))
    assert logits.shape == (2, 9, 31)
    shorter = np.asarray(model(tokens[:, :5]))
    np.testing.assert_array_equal(logits[:, :5], shorter)
    model.save(str(tmp_path))
    again = mh.models.LanguageModel.load(str(tmp_path))
    np.testing.assert_array_equal(np.asarray(again(tokens)), logits)
    assert again.config == model.config and len(model.attention_weights(tokens)) == 2
    with pytest.raises(ValueError, match="31"):
        model(np.full((1, 3), 31))
    with pytest.raises(TypeError, match="unknown field 'layers'"):
        mh.models.LanguageModelConfig(layers=3)
    with pytest.raises(OSError):
        mh.models.LanguageModel.load(str(tmp_path / "nowhere"))
    with mh.Tape() as tape:
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        tape.backward(loss)
    assert abs(loss.item() - np.log(31)) < 0.5


def test_saving_replaces_only_what_was_saved(tmp_path):
    folder, path = str(tmp_path / "m"), tmp_path / "m"
    tokenizer = mh.Tokenizer.train_characters(["abc"])
    for seed in (0, 1):  # in any order, again and again
        model = mh.models.LanguageModel(tiny().config, rng=mh.Rng(seed))
        model.save(folder)
        tokenizer.save(folder)
        model.save(folder)
        saved = mh.models.LanguageModel.load(folder)
        assert np.array_equal(saved.token_embedding.weight.numpy(), model.token_embedding.weight.numpy())
    another = tiny(embed_dim=32)  # which would get this one's tokenizer
    with pytest.raises(ValueError, match="holds another model"):
        another.save(folder)
    another.save(folder, overwrite=True)
    with pytest.raises(mh.FormatError, match="a model and no tokenizer; save one there, tokenizer.save"):
        mh.Tokenizer.load(folder)
    model.save(folder, overwrite=True)
    tokenizer.save(folder)
    (path / "config.json").write_text((path / "config.json").read_text() + " ")
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    with pytest.raises(ValueError, match='"config.json" was changed since multihead wrote it; move it away'):
        model.save(folder)
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before
    (path / "config.json").unlink()
    with pytest.raises(mh.FormatError, match="has no config.json: saving it was interrupted; save it again"):
        mh.models.LanguageModel.load(folder)
    model.save(folder)
    assert mh.models.LanguageModel.load(folder).config == model.config


def test_a_folder_of_transformers_loads_and_is_not_saved_over(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=31, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(str(tmp_path))
    model = mh.models.LanguageModel.load(str(tmp_path))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match='"config.json" was not written by multihead'):
        model.save(str(tmp_path))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


SCALINGS = {
    "linear": dict(factor=3.0),
    "llama3": dict(factor=8.0, original_context=8, low_freq_factor=0.5, high_freq_factor=1.5),
    "yarn": dict(factor=3.0, original_context=8, beta_fast=2.0, beta_slow=0.25),
}


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", *SCALINGS])
def test_hugging_face_reads_what_we_write(tmp_path, rng, name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    more = {"Qwen2ForCausalLM": dict(attention_bias=True), "Qwen3ForCausalLM": dict(qk_norm=True)}.get(name, {})
    if name in SCALINGS:
        more = dict(rotary_base=50.0, rotary_scaling=mh.RotaryScaling(kind=name, **SCALINGS[name]))
    fields = dict(norm="rms", gated=True, activation="silu", attention_bias=False, out_bias=False, ffn_bias=False)
    model = tiny(**{**fields, **more})
    model.save(str(tmp_path))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(tmp_path)).eval()
    assert type(theirs).__name__ == (name if name.endswith("LM") else "LlamaForCausalLM")
    tokens = rng.integers(0, 31, (2, 9))
    with torch.no_grad():
        want = theirs(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(np.asarray(model(tokens)), want, atol=2e-5)


def test_generation():
    model = tiny()
    one = model.generate([1, 2, 3], max_new_tokens=12, seed=5)
    assert len(one) == 12 and all(0 <= t < 31 for t in one)
    both = model.generate([[1, 2, 3], [4]], max_new_tokens=12, seed=5)
    assert both[0] == one and model.generate(np.array([1, 2, 3]), max_new_tokens=12, seed=5) == one
    seen = []
    stopped = model.generate([1], temperature=0, on_token=lambda row, token: seen.append((row, token)) or len(seen) < 3)
    assert len(seen) == 3 and [t for _, t in seen][: len(stopped)] == stopped
    with pytest.raises(ValueError):
        model.generate([[]], max_new_tokens=1)
    with pytest.raises(ValueError, match="temperature"):
        model.generate([1], temperature=-1)
    with pytest.raises(ZeroDivisionError):
        model.generate([1], on_token=lambda *_: 1 / 0)


def interrupt_after(seconds):
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("work", ["generate", "logprobs"])
def test_interrupts_end_generation_within_a_second(work):
    model = tiny() if work == "generate" else tiny(vocab_size=2000, context=512)
    interrupt_after(0.2)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        model.generate([1], max_new_tokens=10_000_000) if work == "generate" else model.logprobs([[1] * 512] * 1000)
    assert time.monotonic() - begin < 1.5


@pytest.mark.parametrize("inside", ["numpy", "packed", "torch"])
def test_interrupts_end_one_huge_attention(inside):
    x = np.full((1, 8, 32768, 64), 0.1, "f4")  # seconds of work
    if inside == "torch":
        torch = pytest.importorskip("torch")
        from multihead.torch import scaled_dot_product_attention as run
        arguments = [torch.from_numpy(x)] * 3
    elif inside == "packed":
        run, arguments = mh.attention_packed, [np.concatenate([x[0].transpose(1, 0, 2).reshape(1, 32768, 512)] * 3, 2), 8]
    else:
        run, arguments = mh.attention, [x, x, x]
    interrupt_after(0.3)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(*arguments)
    assert time.monotonic() - begin < 1.5
    small = x[:, :, :64]
    np.testing.assert_allclose(np.asarray(mh.attention(small, small, small)), small, rtol=1e-5)


@pytest.mark.parametrize("work", ["evaluate", "beam_search", "evaluation of a run"])
def test_interrupts_end_what_takes_long(work, tmp_path):
    tokens = np.zeros(3_000_000, "i4")
    translator = mh.models.Seq2Seq(
        mh.models.Seq2SeqConfig(source_vocab_size=9, max_positions=2000, embed_dim=8, num_heads=2)
    )
    (tmp_path / "text.txt").write_text(TEXT * 3000)

    def run():
        if work == "evaluate":
            mh.train.evaluate(tiny(), tokens)
        elif work == "beam_search":
            translator.beam_search([[3] * 9] * 3000, min_length=1500, max_length=1500)
        else:
            options = settings(eval_windows=0, validation_share=0.9, tokenizer="char")
            del options["vocab_size"]
            mh.train_language_model(str(tmp_path / "text.txt"), str(tmp_path / "run"), steps=5, **options)

    interrupt_after(0.7)
    with pytest.raises(KeyboardInterrupt):
        run()


SMALL = dict(layers=1, heads=2, width=16, context=16, batch=4, vocab_size=280, eval_every=0, log_every=1)


def settings(**changes):
    return {**SMALL, **changes}


def test_training_a_language_model(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    events = []
    run = str(tmp_path / "run")
    summary = mh.train_language_model(
        tmp_path / "text.txt", run, callback=lambda event, fields: events.append((event, fields)), **settings(steps=12)
    )
    losses = [fields["loss"] for event, fields in events if event == "step"]
    assert len(losses) >= 1 and summary and any(event == "evaluation" for event, _ in events)
    model, tokenizer = mh.models.LanguageModel.load(run), mh.Tokenizer.load(run)
    assert tokenizer.decode(model.generate(tokenizer.encode("The"), max_new_tokens=5))
    tuned = str(tmp_path / "tuned")
    mh.train_language_model(tmp_path / "text.txt", tuned, init=run, batch=4, steps=1, lr=1e-12, weight_decay=0)
    again = mh.models.LanguageModel.load(tuned)
    assert again.config == model.config
    np.testing.assert_allclose(np.asarray(again([[1, 2, 3]])), np.asarray(model([[1, 2, 3]])), atol=1e-6)
    with pytest.raises(TypeError, match="unknown setting 'stepps'"):
        mh.train_language_model(tmp_path / "text.txt", run, stepps=3)
    with pytest.raises(ValueError):
        mh.train_language_model(tmp_path / "text.txt", run, steps=-3)
    with pytest.raises(OSError):
        mh.train_language_model(tmp_path / "none.txt", str(tmp_path / "other"), **settings())


def test_interrupts_end_training_with_a_checkpoint(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    run = tmp_path / "run"
    started = []

    def callback(event, fields):
        if event == "step" and not started:
            started.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        mh.train_language_model(tmp_path / "text.txt", run, callback=callback, **settings(steps=1_000_000))
    assert time.monotonic() - started[0] < 2
    assert any(name.startswith("checkpoint") for name in os.listdir(run))


def test_the_command_line():
    here = subprocess.run([sys.executable, "-m", "multihead", "--version"], capture_output=True, text=True)
    if "no command line" in here.stderr:
        pytest.skip("built without the command line")
    first, *_, machine = here.stdout.splitlines()
    assert here.returncode == 0 and first == f"multihead {mh.__version__}"
    assert f"instruction set {mh.isa()}" in machine
    bad = subprocess.run([sys.executable, "-m", "multihead", "no-such-command"], capture_output=True, text=True)
    assert bad.returncode == 2


def test_import_is_quick_and_leaves_pytorch_alone():
    code = (
        "import numpy, sys, time; t = time.perf_counter(); import multihead; t = time.perf_counter() - t; "
        "assert 'torch' not in sys.modules; print(t)"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(5)]
    assert min(times) < 0.1


@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_capped_instruction_sets(isa):
    code = (
        "import numpy as np, multihead as mh; x = np.random.default_rng(0).standard_normal((1, 2, 70, 16), dtype='f4'); "
        "o = np.asarray(mh.attention(x, x, x, mask=mh.causal(), score_mod=mh.score_mod(lambda s, b, h, q, k: np.tanh(s))));"
        "print(mh.isa(), float(abs(o).sum()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "MULTIHEAD_ISA": isa}
    )
    if run.returncode and "lacks" in run.stderr:
        pytest.skip(f"this CPU has no {isa}")
    name, total = run.stdout.split()
    if name != isa:
        pytest.skip(f"this package was built without {isa}")
    here = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert abs(float(total) - float(here[1])) < 1e-2


def test_every_public_name_has_a_docstring():
    missing = [
        name
        for name in mh.__all__
        if callable(getattr(mh, name)) and not (getattr(mh, name).__doc__ or "").strip()
    ]
    assert missing == []


def test_packed_f32_weights_keep_every_bit(tmp_path):
    model = tiny(embed_dim=64, ffn_dim=96)
    tokens = np.arange(12)[None] % 31
    exact, ids = model(tokens).numpy(), model.generate([1, 2, 3], max_new_tokens=5, temperature=0)
    assert model.packed_dtype is None
    model.pack_weights("f32")
    assert model.packed_dtype == model.weight_dtype == "f32" and np.array_equal(model(tokens).numpy(), exact)
    assert model.generate([1, 2, 3], max_new_tokens=5, temperature=0) == ids
    with pytest.raises(ValueError, match="before pack_weights"):
        model.save(tmp_path / "packed")
    tiny(embed_dim=64, ffn_dim=96).save(tmp_path / "plain")
    loaded = mh.models.LanguageModel.load(tmp_path / "plain", packed=True)
    assert loaded.packed_dtype == "f32" and np.array_equal(loaded(tokens).numpy(), exact)
    with pytest.raises(ValueError, match="already"):
        model.pack_weights("q8")


@pytest.mark.parametrize("weights", ["bf16", "f16", "int8", "q8", "q4"])
def test_packed_weights(tmp_path, weights):
    model = tiny(embed_dim=64, ffn_dim=96)
    tokens = np.arange(12)[None] % 31
    exact, f32 = model(tokens).numpy(), model.weight_bytes
    model.save(tmp_path / "f32")
    model.pack_weights(weights)
    assert model.weight_dtype == weights and model.weight_bytes < f32 / (1.9 if weights in ("bf16", "f16") else 3)
    packed = model(tokens).numpy()
    error = np.linalg.norm(packed - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < (0.2 if weights == "q4" else 0.03)
    loaded = mh.models.LanguageModel.load(tmp_path / "f32", weights=weights)
    assert np.array_equal(loaded(tokens).numpy(), packed)
    model.save(tmp_path / "packed")
    again = mh.models.LanguageModel.load(tmp_path / "packed")
    assert again.weight_dtype == weights and np.array_equal(again(tokens).numpy(), packed)
    assert len(again.generate([1, 2, 3], max_new_tokens=5, temperature=0)) == 5
    with pytest.raises(ValueError, match="already"):
        again.pack_weights("q4")
    with pytest.raises(ValueError, match="cannot be trained"), mh.Tape():
        again.loss(tokens, tokens)
    with pytest.raises(ValueError, match="weight_dtype"):
        mh.models.LanguageModel.load(tmp_path / "f32", weights="q3")
