"""attn_implementation="multihead": transformers' models with the kernel, and their attention weights."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from conftest import keywords_of  # noqa: E402

import multihead as mh  # noqa: E402
import multihead.torch as mt  # noqa: E402

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ROTARY = {**SMALL, "intermediate_size": 48, "max_position_embeddings": 64}
OFF = {"attention_dropout": 0.0}


def configurations():
    t = transformers
    yield t.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    yield t.LlamaConfig(**ROTARY, num_key_value_heads=2)
    yield t.MistralConfig(**ROTARY, num_key_value_heads=2, sliding_window=5)
    yield t.GPTNeoXConfig(**ROTARY)
    yield t.Gemma2Config(**ROTARY, num_key_value_heads=2, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0)
    yield t.GptOssConfig(**ROTARY, num_key_value_heads=2, head_dim=8, sliding_window=5, num_local_experts=2, num_experts_per_tok=1)
    yield t.BertConfig(**ROTARY, hidden_dropout_prob=0, attention_probs_dropout_prob=0, is_decoder=False)


@pytest.fixture(scope="module", params=list(configurations()), ids=lambda c: c.model_type)
def models(request):
    mt.register_attention()
    torch.manual_seed(0)
    kind = transformers.AutoModelForMaskedLM if request.param.model_type == "bert" else transformers.AutoModelForCausalLM
    make = lambda how: kind.from_config(copy.deepcopy(request.param), attn_implementation=how).eval()  # noqa: E731
    model, ours = make("eager"), make("multihead")
    assert (model.config._attn_implementation, ours.config._attn_implementation) == ("eager", "multihead")
    ours.load_state_dict(model.state_dict())
    return model, ours


@pytest.fixture
def batch():
    ids = torch.from_numpy(np.random.default_rng(0).integers(2, 61, (3, 12)))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    mask[2, 3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_logits_gradients_and_weights(models, batch):
    eager, ours = models
    there = batch["attention_mask"].bool()
    outputs = [m(**batch, output_attentions=True) for m in models]
    torch.testing.assert_close(outputs[1].logits[there], outputs[0].logits[there], atol=2e-5, rtol=1e-4)
    assert len(outputs[1].attentions) == 2
    for a, b in zip(outputs[1].attentions, outputs[0].attentions):
        assert a.shape == b.shape
        rows = there[:, None, :, None].expand_as(a)
        torch.testing.assert_close(a[rows], b[rows], atol=1e-5, rtol=1e-4)
    for model, output in zip(models, outputs):
        model.zero_grad()
        output.logits[there].square().sum().backward()
    for p, q in zip(ours.parameters(), eager.parameters()):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, atol=2e-3, rtol=1e-3)


def test_without_a_mask(models, batch):
    eager, ours = models
    with torch.no_grad():
        torch.testing.assert_close(ours(batch["input_ids"]).logits, eager(batch["input_ids"]).logits, atol=2e-5, rtol=1e-4)


def test_generation(models, batch):
    eager, ours = models
    if not hasattr(eager, "generate") or eager.config.model_type == "bert":
        pytest.skip("no decoder")
    kept = {k: v[:1] for k, v in batch.items()}
    a, b = (m.generate(**kept, max_new_tokens=10, do_sample=False, pad_token_id=0) for m in models)
    assert a.tolist() == b.tolist()


def test_chosen_rows(models, batch):
    eager, ours = models
    mt.register_attention("multihead-last", heads=[2, 0], query_rows=[-1])
    ours.set_attn_implementation("multihead-last")
    try:
        with torch.no_grad():
            weights = ours(batch["input_ids"], output_attentions=True).attentions
            expected = eager(batch["input_ids"], output_attentions=True).attentions
        for a, b in zip(weights, expected):
            torch.testing.assert_close(a, b[:, [2, 0], -1:], atol=1e-5, rtol=1e-4)
    finally:
        ours.set_attn_implementation("multihead")


def without_sdpa():
    """Models that transformers refuses "sdpa": their modules say of no decoder that it is causal, of no encoder that it
    is not, and NLLB-MoE's experts read the mask, too."""
    t = transformers
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"vocab_size": 61, "d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, **layers}
    off = {"dropout": 0, "attention_dropout": 0, "activation_dropout": 0, "max_position_embeddings": 64}
    moe = {"num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "router_jitter_noise": 0.0}
    yield t.PegasusXModel, t.PegasusXConfig(**sizes, **off, block_size=4, num_global_tokens=4)
    yield t.NllbMoeModel, t.NllbMoeConfig(**sizes, **off, **moe, encoder_layerdrop=0, decoder_layerdrop=0)
    yield t.SplinterModel, t.SplinterConfig(**ROTARY, hidden_dropout_prob=0, attention_probs_dropout_prob=0)


@pytest.mark.parametrize("kind, config", list(without_sdpa()), ids=lambda x: getattr(x, "model_type", ""))
def test_models_without_sdpa_are_as_causal_as_eager_ones(kind, config, batch):
    mt.register_attention()
    eager, ours = (kind._from_config(copy.deepcopy(config), attn_implementation=how).eval() for how in ("eager", "multihead"))
    ours.load_state_dict(eager.state_dict())
    for mask in ({}, {"attention_mask": batch["attention_mask"]}):
        inputs = {"input_ids": batch["input_ids"], **mask}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = batch["input_ids"].flip(1)
        with torch.no_grad():
            out, want = ours(**inputs)[0], eager(**inputs)[0]
        rows = batch["attention_mask"].bool() if mask and not config.is_encoder_decoder else slice(None)
        torch.testing.assert_close(out[rows], want[rows], atol=2e-5, rtol=1e-4)


def test_a_static_cache_with_relative_positions(batch):
    mt.register_attention()
    config = transformers.T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0)
    kind, found = transformers.T5ForConditionalGeneration, []
    for how in ("eager", "multihead"):
        torch.manual_seed(0)
        model = kind._from_config(copy.deepcopy(config), attn_implementation=how).eval()
        start = {"decoder_input_ids": batch["input_ids"][:, :7], "max_new_tokens": 5, "min_new_tokens": 5}
        found.append(model.generate(**batch, **start, decoder_start_token_id=0, cache_implementation="static"))
    assert torch.equal(*found)


@pytest.mark.parametrize("name", [*(name for name in keywords_of(mh.attention) if name != "softcap"), "head_mask"])
def test_what_asks_for_another_attention_is_refused_by_name(name):
    mt.register_attention()
    attend = transformers.AttentionInterface()["multihead"]
    x = torch.randn(1, 2, 3, 8)
    with pytest.raises(ValueError, match=f": {name} is not supported"):
        attend(torch.nn.Identity(), x, x, x, None, **{name: 1})


def test_models_with_attention_of_their_own_are_refused():
    """They would add the boolean mask to their scores: padding and future tokens would be seen."""
    mt.register_attention()
    t = transformers
    for config in (t.BloomConfig(vocab_size=61, hidden_size=32, n_layer=1, n_head=4), t.MPNetConfig(**ROTARY)):
        model = t.AutoModel.from_config(config, attn_implementation="multihead").eval()
        with pytest.raises(ValueError, match="computes attention itself"):
            model(torch.ones(1, 4, dtype=torch.long))
